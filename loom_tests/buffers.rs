//! Memory for copies: what is out and what is spare add up, whoever gives back last.

use motet::storage::tiers::{BufferPool, PoolStats};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{model, thread};

/// A page is what a pool hands out at least.
const PAGE: usize = 4096;

/// The pager frees a copy while a thread makes another.
#[test]
fn bytes_in_use_are_counted_once() {
    let finds = [InjectedBug::BufferTwoLocks, InjectedBug::LockOrdersNothing];
    model("a buffer is given back while one is taken", &finds, || {
        let pool = BufferPool::new(PAGE);
        let copy = pool.take(1).expect("memory");
        let copies = {
            let pool = pool.clone();
            thread::spawn(move || {
                let other = pool.take(1).expect("memory");
                assert!(pool.stats().in_use_bytes >= PAGE, "it is out");
                drop(other);
            })
        };
        drop(copy);
        copies.join().unwrap();
        let at_rest = PoolStats {
            in_use_bytes: 0,
            idle_bytes: PAGE,
        };
        assert_eq!(pool.stats(), at_rest, "one page is kept");
    });
}
