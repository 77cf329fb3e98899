//! A segment is evicted only while nobody has a lease, and then nobody gets one.

use motet::SegmentId;
use motet::shared::lease::LeaseWord;

use crate::world::{Arc, AtomicBool, Ordering, model, thread};

/// A reader leases and reads while the cache evicts and frees.
#[test]
fn a_lease_and_an_eviction_exclude_each_other() {
    model("lease against eviction", || {
        let word = LeaseWord::new(SegmentId(1));
        let freed = Arc::new(AtomicBool::new(false));
        let reader = {
            let (word, freed) = (word.clone(), freed.clone());
            thread::spawn(move || {
                let lease = word.lease();
                if lease.is_some() {
                    thread::yield_now();
                    assert!(!freed.load(Ordering::SeqCst), "read after free");
                }
                lease.is_some()
            })
        };
        let evicted = word.try_evict();
        if evicted {
            freed.store(true, Ordering::SeqCst);
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
    model("fork against last drop against eviction", || {
        let word = LeaseWord::new(SegmentId(1));
        let first = word.lease().expect("a fresh word is not evicted");
        let freed = Arc::new(AtomicBool::new(false));
        let forker = {
            let (word, freed) = (word.clone(), freed.clone());
            thread::spawn(move || {
                if let Some(_second) = word.lease() {
                    assert!(!freed.load(Ordering::SeqCst), "read after free");
                }
            })
        };
        let evicter = {
            let (word, freed) = (word.clone(), freed.clone());
            thread::spawn(move || {
                let evicted = word.try_evict();
                if evicted {
                    freed.store(true, Ordering::SeqCst);
                }
                evicted
            })
        };
        assert!(!freed.load(Ordering::SeqCst), "leased, so not freed");
        drop(first);
        forker.join().unwrap();
        let evicted = evicter.join().unwrap();
        assert_eq!(word.leases(), 0, "every lease was given back");
        assert_ne!(evicted, word.try_evict(), "evicted exactly once in the end");
    });
}
