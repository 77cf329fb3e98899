//! A segment is evicted only while it has no lease, and cannot be leased afterwards.

use motet_protocol::SegmentId;
use motet_sync::lease::LeaseCount;
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, thread};

/// A reader leases and reads the segment while the cache evicts and frees it.
#[test]
fn lease_and_eviction_exclude_each_other() {
    let finds = [
        InjectedBug::LeaseEvictInTwoSteps,
        InjectedBug::LeaseDropRelease,
        InjectedBug::LeaseEvictAcquire,
    ];
    model("lease against eviction", &finds, || {
        let lease_count = LeaseCount::new(SegmentId(1));
        let is_present = Guarded::new(true);
        let reader = {
            let (lease_count, is_present) = (lease_count.clone(), is_present.clone());
            thread::spawn(move || {
                let lease = lease_count.lease();
                if lease.is_some() {
                    assert!(is_present.read(), "read after free");
                }
                lease.is_some()
            })
        };
        let evicted = lease_count.try_evict();
        if evicted {
            is_present.write(false);
        }
        let read = reader.join().unwrap();
        assert!(evicted || read, "one side gets the segment");
        if !evicted {
            assert!(lease_count.try_evict(), "the last lease was released");
        }
    });
}

/// A fork takes a second lease while the first is dropped and the cache evicts.
#[test]
fn fork_races_with_the_last_drop_and_an_eviction() {
    let finds = [
        InjectedBug::LeaseEvictInTwoSteps,
        InjectedBug::LeaseDropInTwoSteps,
        InjectedBug::LeaseDropRelease,
        InjectedBug::LeaseEvictAcquire,
    ];
    model("fork against last drop against eviction", &finds, || {
        let lease_count = LeaseCount::new(SegmentId(1));
        let first = lease_count.lease().expect("a new segment is not evicted");
        let is_present = Guarded::new(true);
        let forker = {
            let (lease_count, is_present) = (lease_count.clone(), is_present.clone());
            thread::spawn(move || {
                if let Some(_second) = lease_count.lease() {
                    assert!(is_present.read(), "read after free");
                }
            })
        };
        let evicter = {
            let (lease_count, is_present) = (lease_count.clone(), is_present.clone());
            thread::spawn(move || {
                let evicted = lease_count.try_evict();
                if evicted {
                    is_present.write(false);
                }
                evicted
            })
        };
        assert!(is_present.read(), "leased, so not freed");
        drop(first);
        forker.join().unwrap();
        let evicted = evicter.join().unwrap();
        assert_eq!(lease_count.leases(), 0, "every lease was released");
        assert_ne!(
            evicted,
            lease_count.try_evict(),
            "evicted exactly once in the end"
        );
    });
}
