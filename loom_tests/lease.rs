//! A segment is evicted only while nobody has a lease, and then nobody gets one.

use motet::SegmentId;
use motet_sync::lease::LeaseWord;
use motet_sync::primitives::plant::Plant;

use crate::world::{Guarded, model, thread};

/// A reader leases and reads while the cache evicts and frees.
#[test]
fn a_lease_and_an_eviction_exclude_each_other() {
    let finds = [
        Plant::LeaseEvictInTwoSteps,
        Plant::LeaseDropRelease,
        Plant::LeaseEvictAcquire,
    ];
    model("lease against eviction", &finds, || {
        let word = LeaseWord::new(SegmentId(1));
        let is_there = Guarded::new(true);
        let reader = {
            let (word, is_there) = (word.clone(), is_there.clone());
            thread::spawn(move || {
                let lease = word.lease();
                if lease.is_some() {
                    assert!(is_there.read(), "read after free");
                }
                lease.is_some()
            })
        };
        let evicted = word.try_evict();
        if evicted {
            is_there.write(false);
        }
        let read = reader.join().unwrap();
        assert!(evicted || read, "somebody gets the segment");
        if !evicted {
            assert!(word.try_evict(), "the last lease was given back");
        }
    });
}

/// A fork takes a second lease while the first is dropped and the cache evicts.
#[test]
fn a_fork_races_with_the_last_drop_and_an_eviction() {
    let finds = [
        Plant::LeaseEvictInTwoSteps,
        Plant::LeaseDropInTwoSteps,
        Plant::LeaseDropRelease,
        Plant::LeaseEvictAcquire,
    ];
    model("fork against last drop against eviction", &finds, || {
        let word = LeaseWord::new(SegmentId(1));
        let first = word.lease().expect("a fresh word is not evicted");
        let is_there = Guarded::new(true);
        let forker = {
            let (word, is_there) = (word.clone(), is_there.clone());
            thread::spawn(move || {
                if let Some(_second) = word.lease() {
                    assert!(is_there.read(), "read after free");
                }
            })
        };
        let evicter = {
            let (word, is_there) = (word.clone(), is_there.clone());
            thread::spawn(move || {
                let evicted = word.try_evict();
                if evicted {
                    is_there.write(false);
                }
                evicted
            })
        };
        assert!(is_there.read(), "leased, so not freed");
        drop(first);
        forker.join().unwrap();
        let evicted = evicter.join().unwrap();
        assert_eq!(word.leases(), 0, "every lease was given back");
        assert_ne!(evicted, word.try_evict(), "evicted exactly once in the end");
    });
}
