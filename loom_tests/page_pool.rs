//! Page pool: bytes in use and idle bytes add up, whatever the order of drops.

use std::time::Instant;

use motet_sync::page_pool::{IdleLimits, PageBlock, PagePool, PageSize, PoolStats};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{model, thread};

const BLOCK_BYTES: usize = 4096;

fn take(pool: &PagePool) -> PageBlock {
    let block = pool.take(BLOCK_BYTES..=BLOCK_BYTES, PageSize::Default);
    block.expect("memory is available")
}

/// The pager frees a copy while a thread makes another.
#[test]
fn bytes_in_use_are_counted_once() {
    let finds = [InjectedBug::BufferTwoLocks, InjectedBug::LockOrdersNothing];
    model("a block is returned while one is taken", &finds, || {
        let limits = IdleLimits {
            bytes_max: BLOCK_BYTES,
            blocks_max: 2,
        };
        let pool = PagePool::new(limits, Instant::now);
        let copy = take(&pool);
        let copies = {
            let pool = pool.clone();
            thread::spawn(move || {
                let other = take(&pool);
                let in_use_bytes = pool.stats().in_use_bytes;
                assert!(in_use_bytes >= BLOCK_BYTES, "its bytes are in use");
                drop(other);
            })
        };
        drop(copy);
        copies.join().unwrap();
        let at_rest = PoolStats {
            in_use_bytes: 0,
            idle_bytes: BLOCK_BYTES,
        };
        assert_eq!(pool.stats(), at_rest, "one block stays idle");
    });
}
