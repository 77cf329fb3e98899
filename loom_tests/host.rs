//! Host memory stores exactly the packed copies that are still awaited.

use std::sync::Arc;

use motet::CopyId;
use motet::model::{ModelError, SegmentSize};
use motet_core::cache::SaltDigest;
use motet_core::pager::{Job, Label, Precision, Task};
use motet_device::{Export, transfer_queue};
use motet_model::{Floats, Packer};
use motet_protocol::KeyDigest;
use motet_storage::copy_worker::{Host, MemoryCopyWorker};
use motet_storage::tiers::BufferPool;
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{model, thread};

/// Packs a state of one number into one byte for each token.
#[derive(Clone, Debug)]
struct OneNumber;

impl Packer for OneNumber {
    type DetachedState = u8;

    fn identity(&self) -> u64 {
        0
    }

    fn packed_bytes(&self, segment_size: SegmentSize) -> usize {
        segment_size.tokens
    }

    fn pack(&self, detached_state: &u8, into: &mut [u8]) -> Result<(), ModelError> {
        into.fill(*detached_state);
        Ok(())
    }

    fn unpack(&self, _: SegmentSize, bytes: &[u8]) -> Result<u8, ModelError> {
        Ok(bytes[0])
    }

    fn floats(&self, _: SegmentSize) -> Vec<Floats> {
        Vec::new()
    }
}

fn job(copy: CopyId, task: Task) -> Job {
    let label = Label::new(
        KeyDigest::of(SaltDigest([0; 32])),
        &[1, 2, 3],
        0,
        0,
        Precision::Full,
        3,
    );
    let label = Arc::new(label);
    let path = Vec::new();
    Job {
        copy,
        label,
        task,
        path,
    }
}

/// Two segments are exported. The pager gives the first up while the copy worker packs both.
#[test]
fn copy_given_up_during_packing_is_not_stored() {
    const GIVEN_UP: CopyId = CopyId(1);
    const PACKED: CopyId = CopyId(2);
    let finds = [
        InjectedBug::HostKeepTwoLocks,
        InjectedBug::LockOrdersNothing,
    ];
    model("a copy is given up while it is packed", &finds, || {
        let (_device_end, host_end) = transfer_queue();
        let (host, pool) = (Host::new(1 << 20), BufferPool::new(0));
        let imports = host_end.imports.clone();
        let mut copy_worker = MemoryCopyWorker::new(OneNumber, pool.clone(), host.clone(), imports);
        for copy in [GIVEN_UP, PACKED] {
            assert!(
                copy_worker.run_job(job(copy, Task::Pack)).is_none(),
                "the job waits for the export"
            );
        }
        let copies = thread::spawn(move || {
            let done = [(GIVEN_UP, 7), (PACKED, 8)].map(|(copy, detached_state)| {
                let detached_state = Ok(detached_state);
                copy_worker.pack(Export {
                    copy,
                    detached_state,
                })
            });
            (copy_worker, done)
        });
        host.forget(GIVEN_UP);
        let (mut copy_worker, [_, packed]) = copies.join().unwrap();
        assert!(packed.expect("the copy is awaited").result.is_ok());
        let in_use = pool.stats().in_use_bytes;
        assert_eq!(in_use, BufferPool::capacity_bytes(3), "one copy is stored");
        for (copy, detached_state) in [(GIVEN_UP, None), (PACKED, Some(8))] {
            let done = copy_worker.run_job(job(copy, Task::Unpack));
            let result = done.expect("the job ends at once").result;
            assert_eq!(result.is_ok(), detached_state.is_some(), "{copy}");
            assert_eq!(host_end.imports.take(copy), detached_state);
        }
    });
}
