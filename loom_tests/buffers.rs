//! Buffer pool: bytes in use and idle bytes add up, whatever the order of drops.

use motet::storage::tiers::{BufferPool, PoolStats};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{model, thread};

/// Smallest buffer of a pool: one page.
const PAGE: usize = 4096;

/// The pager frees a copy while a thread makes another.
#[test]
fn bytes_in_use_are_counted_once() {
    let finds = [InjectedBug::BufferTwoLocks, InjectedBug::LockOrdersNothing];
    model("a buffer is returned while one is taken", &finds, || {
        let pool = BufferPool::new(PAGE);
        let copy = pool.take(1).expect("memory is available");
        let copies = {
            let pool = pool.clone();
            thread::spawn(move || {
                let other = pool.take(1).expect("memory is available");
                assert!(pool.stats().in_use_bytes >= PAGE, "its bytes are in use");
                drop(other);
            })
        };
        drop(copy);
        copies.join().unwrap();
        let at_rest = PoolStats {
            in_use_bytes: 0,
            idle_bytes: PAGE,
        };
        assert_eq!(pool.stats(), at_rest, "one page stays idle");
    });
}
