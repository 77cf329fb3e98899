//! Host memory keeps what it was told to keep when the bytes come, and nothing else.

use std::sync::Arc;

use motet::CopyId;
use motet::device::{Leaving, dock};
use motet::model::{Extent, Floats, ModelError, Packer};
use motet::storage::carrier::{Host, MemoryCarrier};
use motet::storage::tiers::BufferPool;
use motet_core::cache::SaltDigest;
use motet_core::pager::{Job, Label, Precision, Task};
use motet_sync::primitives::plant::Plant;

use crate::world::{model, thread};

/// A byte a token, of a state that is one number.
#[derive(Clone, Debug)]
struct OneNumber;

impl Packer for OneNumber {
    type Parcel = u8;

    fn packed_bytes(&self, extent: Extent) -> usize {
        extent.tokens
    }

    fn pack(&self, parcel: &u8, into: &mut [u8]) -> Result<(), ModelError> {
        into.fill(*parcel);
        Ok(())
    }

    fn unpack(&self, _: Extent, bytes: &[u8]) -> Result<u8, ModelError> {
        Ok(bytes[0])
    }

    fn floats(&self, _: Extent) -> Option<Floats> {
        None
    }
}

fn job(copy: CopyId, task: Task) -> Job {
    let label = Label::new(SaltDigest([0; 32]), &[1, 2, 3], 0, 0, Precision::Full, 3);
    let label = Arc::new(label);
    Job { copy, label, task }
}

/// Two segments leave. The pager gives the first up while the copy thread packs both.
#[test]
fn what_is_given_up_while_it_is_packed_is_not_kept() {
    const GIVEN_UP: CopyId = CopyId(1);
    const KEPT: CopyId = CopyId(2);
    let finds = [Plant::HostKeepTwoLocks, Plant::LockOrdersNothing];
    model("a copy is given up while it is packed", &finds, || {
        let (_dock, quay) = dock();
        let (host, pool) = (Host::new(1 << 20), BufferPool::new(0));
        let arrived = quay.arrived.clone();
        let mut carrier = MemoryCarrier::new(OneNumber, pool.clone(), host.clone(), arrived);
        for copy in [GIVEN_UP, KEPT] {
            assert!(carrier.carry(job(copy, Task::Pack)).is_none(), "it waits");
        }
        let copies = thread::spawn(move || {
            let done = [(GIVEN_UP, 7), (KEPT, 8)].map(|(copy, parcel)| {
                let parcel = Ok(parcel);
                carrier.pack(Leaving { copy, parcel })
            });
            (carrier, done)
        });
        host.forget(GIVEN_UP);
        let (mut carrier, [_, kept]) = copies.join().unwrap();
        assert!(kept.expect("it is awaited").result.is_ok());
        let in_use = pool.stats().in_use_bytes;
        assert_eq!(in_use, BufferPool::capacity_bytes(3), "one is kept");
        for (copy, parcel) in [(GIVEN_UP, None), (KEPT, Some(8))] {
            let done = carrier.carry(job(copy, Task::Unpack));
            let result = done.expect("it is done at once").result;
            assert_eq!(result.is_ok(), parcel.is_some(), "{copy}");
            assert_eq!(quay.arrived.take(copy), parcel);
        }
    });
}
