//! A worker that parks is woken for new work, in whatever order the two happen.
//!
//! Loom treats sequentially consistent loads and stores as acquire and release, but supports
//! sequentially consistent fences: the handshake uses those.

use std::cell::Cell;

use motet_sync::gate::gate;
use motet_sync::parking::Parking;
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Arc, AtomicBool, Ordering, model, thread};

/// Either the worker finds the loop before it parks, or the opener sees that it parks.
#[test]
fn no_loop_is_missed_by_a_parked_worker() {
    let finds = [
        InjectedBug::ParkingWakerFence,
        InjectedBug::ParkingSleeperFence,
    ];
    model("a worker parks while a loop is opened", &finds, || {
        let (mut opener, entrance) = gate();
        let parking = Arc::new(Parking::new(1));
        let worker = {
            let parking = parking.clone();
            thread::spawn(move || {
                // Whether it has parked at any time.
                let has_parked = Cell::new(false);
                let find = || {
                    let found = entrance.number(0);
                    has_parked.set(has_parked.get() || found.is_none());
                    found
                };
                let number = parking.wait(0, find, || false);
                let inside = entrance.enter(number.expect("the pool has not ended"));
                (has_parked.get(), inside.map(|inside| inside.shown()))
            })
        };
        let opened = opener.open(7_u64);
        let is_woken = parking.parked().next().is_some();
        // A worker that missed the loop is unparked too: loom cannot end a thread that is
        // parked forever.
        worker.thread().unpark();
        let (has_parked, seen) = worker.join().unwrap();
        assert!(
            is_woken || !has_parked,
            "a parked worker would miss the loop"
        );
        assert_eq!(seen, Some(7));
        drop(opened);
    });
}

/// The end of a pool unparks all workers, parked or not: it needs no fence.
#[test]
fn a_worker_ends_when_its_pool_does() {
    model("a worker parks while its pool ends", &[], || {
        let (mut opener, entrance) = gate();
        let parking = Arc::new(Parking::new(1));
        let is_finished = Arc::new(AtomicBool::new(false));
        let worker = {
            let (parking, is_finished) = (parking.clone(), is_finished.clone());
            thread::spawn(move || {
                let mut seen = 0;
                let ended = || is_finished.load(Ordering::Relaxed);
                while let Some(number) = parking.wait(0, || entrance.number(seen), ended) {
                    seen = number;
                    // The loop may have ended already.
                    drop(entrance.enter(number));
                }
            })
        };
        drop(opener.open(7_u64));
        is_finished.store(true, Ordering::Relaxed);
        worker.thread().unpark();
        worker.join().unwrap();
    });
}
