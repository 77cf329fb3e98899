//! Parcels that the device is to take in: who was told of one finds it, and none is left.

use std::time::Duration;

use motet::CopyId;
use motet::device::{Leaving, NextExport, dock};
use motet_sync::primitives::plant::Plant;

use crate::world::{Guarded, model, mpsc, thread};

const COPY: CopyId = CopyId(1);
const OTHER: CopyId = CopyId(2);
const EVER: Duration = Duration::MAX;

const OF_PUTTING: [Plant; 2] = [Plant::DockPutInTwoSteps, Plant::LockOrdersNothing];

/// Two sequences want the same copy, each a parcel of its own. The device takes the first
/// in while the second is put there.
#[test]
fn who_was_told_of_a_parcel_finds_it() {
    model(
        "a parcel is put while another is taken",
        &OF_PUTTING,
        || {
            let (_dock, quay) = dock::<u32>();
            let arrived = quay.arrived.clone();
            let (tell, told) = mpsc::channel();
            let copies = thread::spawn(move || {
                for parcel in 0..2 {
                    arrived.put(COPY, parcel);
                    tell.send(()).expect("the device listens");
                }
            });
            for _ in 0..2 {
                told.recv().expect("two are made");
                assert!(quay.arrived.take(COPY).is_some(), "what was told of");
            }
            copies.join().unwrap();
            assert!(quay.arrived.is_empty(), "each is taken once");
        },
    );
}

/// As before, but one of the sequences has left: the pager throws its parcel away while
/// the device takes the other's.
#[test]
fn what_is_thrown_away_is_nobody_elses() {
    model("a parcel is put while two are taken", &OF_PUTTING, || {
        let (_dock, quay) = dock::<u32>();
        let [tell_device, tell_pager] = [mpsc::channel(), mpsc::channel()];
        let (tell_device, for_device) = tell_device;
        let (tell_pager, for_pager) = tell_pager;
        let copies = {
            let arrived = quay.arrived.clone();
            thread::spawn(move || {
                arrived.put(COPY, 0);
                tell_device.send(()).expect("the device listens");
                arrived.put(COPY, 1);
                tell_pager.send(()).expect("the pager listens");
            })
        };
        let device = {
            let arrived = quay.arrived.clone();
            thread::spawn(move || {
                for_device.recv().expect("it is made");
                arrived.take(COPY)
            })
        };
        for_pager.recv().expect("it is made");
        let discarded = quay.arrived.take(COPY);
        copies.join().unwrap();
        let taken = device.join().unwrap();
        assert!(taken.is_some(), "what the device was told of");
        assert!(discarded.is_some(), "what the pager was told of");
        assert_ne!(taken, discarded, "a parcel each");
        assert!(quay.arrived.is_empty(), "and none is left");
    });
}

/// The device loses everything while one parcel waits for it and another is being made.
/// The pager throws away what has come, and what comes; then it has another made.
#[test]
fn nothing_of_before_a_reset_is_taken_in_after_it() {
    const BEFORE: u32 = 0;
    const AFTER: u32 = 1;
    model(
        "a reset against a parcel that is being made",
        &OF_PUTTING,
        || {
            let (_dock, quay) = dock::<u32>();
            quay.arrived.put(COPY, BEFORE);
            let (give, jobs) = mpsc::channel();
            let (tell, done) = mpsc::channel();
            let copies = {
                let arrived = quay.arrived.clone();
                thread::spawn(move || {
                    arrived.put(COPY, BEFORE);
                    tell.send(()).expect("the pager listens");
                    jobs.recv().expect("it is to be made again");
                    arrived.put(COPY, AFTER);
                    tell.send(()).expect("the pager listens");
                })
            };
            // The device, which then says so.
            let device = {
                let arrived = quay.arrived.clone();
                thread::spawn(move || arrived.clear())
            };
            device.join().unwrap();
            quay.arrived.clear();
            done.recv().expect("it ends");
            let thrown_away = quay.arrived.take(COPY);
            assert_ne!(thrown_away, Some(AFTER), "it is not made yet");
            give.send(()).expect("the thread listens");
            done.recv().expect("it ends");
            assert_eq!(quay.arrived.take(COPY), Some(AFTER), "made since");
            copies.join().unwrap();
            assert!(quay.arrived.is_empty(), "and nothing else is there");
        },
    );
}

/// A device thread that was left behind comes back, and clears what it knows of, while
/// another takes its place and is brought a parcel.
#[test]
fn who_was_left_behind_takes_nothing_that_is_its_successors() {
    model(
        "a device thread comes back while another takes its place",
        &[Plant::DockClearInTwoSteps, Plant::LockOrdersNothing],
        || {
            let (prototype, quay) = dock::<u32>();
            let first = prototype.successor();
            quay.arrived.put(COPY, 1);
            let left_behind = thread::spawn(move || {
                first.clear();
                first.take(COPY)
            });
            let second = prototype.successor();
            quay.arrived.put(COPY, 2);
            let taken = second.take(COPY);
            assert_eq!(taken, Some(2), "what was brought for it");
            assert_eq!(left_behind.join().unwrap(), None, "it had cleared its own");
            assert!(quay.arrived.is_empty(), "and nothing else is there");
        },
    );
}

/// As before, but what comes back hands a segment over. What is on it was computed on a device
/// that nobody listens to any more.
#[test]
fn who_was_left_behind_hands_nothing_over() {
    let finds = [Plant::DockLeaveInTwoSteps, Plant::LockOrdersNothing];
    model("a device thread comes back and hands over", &finds, || {
        let (prototype, quay) = dock();
        let first = prototype.successor();
        let left_behind = thread::spawn(move || first.leave(COPY, Ok(Guarded::new(1))));
        let second = prototype.successor();
        second.leave(OTHER, Ok(Guarded::new(2))).expect("room");
        left_behind.join().unwrap().expect("nobody waits for it");
        assert!(quay.leaving.wait(), "it was rung");
        let NextExport::Ready(Leaving { copy, parcel }) = quay.leaving.next(EVER, |_| true) else {
            panic!("what the second has handed over")
        };
        let parcel = parcel.expect("a parcel");
        assert_eq!((copy, parcel.read()), (OTHER, 2));
        assert!(quay.leaving.is_empty(), "and nothing else is there");
    });
}

/// The copy thread takes what the device hands over, and sleeps when there is nothing.
#[test]
fn no_export_is_slept_through() {
    let finds = [Plant::LockOrdersNothing];
    model("two exports against who takes them", &finds, || {
        let (prototype, quay) = dock();
        let device = prototype.successor();
        let device = thread::spawn(move || {
            for copy in [COPY, OTHER] {
                let parcel = Guarded::new(0);
                parcel.write(copy.0);
                device.leave(copy, Ok(parcel)).expect("room");
            }
        });
        let mut taken = Vec::new();
        while taken.len() < 2 {
            match quay.leaving.next(EVER, |parcel| parcel.read() > 0) {
                NextExport::Ready(Leaving { copy, parcel }) => {
                    assert_eq!(parcel.expect("a parcel").read(), copy.0);
                    taken.push(copy);
                }
                NextExport::NotComputed(_) => panic!("it was computed before"),
                NextExport::Nothing => assert!(quay.leaving.wait(), "the device lives"),
            }
        }
        device.join().unwrap();
        assert_eq!(taken, [COPY, OTHER], "in order");
    });
}
