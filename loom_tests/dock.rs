//! Parcels that the device is to take in: who was told of one finds it, and none is left.

use motet::CopyId;
use motet::device::dock;

use crate::world::{model, mpsc, thread};

const COPY: CopyId = CopyId(1);

/// Two sequences want the same copy, each a parcel of its own. The device takes the first
/// in while the second is put there.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn who_was_told_of_a_parcel_finds_it() {
    model("a parcel is put while another is taken", || {
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
    });
}

/// As before, but one of the sequences has left: the pager throws its parcel away while
/// the device takes the other's.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn what_is_thrown_away_is_nobody_elses() {
    model("a parcel is put while two are taken", || {
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
#[cfg_attr(motet_planted_bug, should_panic)]
fn nothing_of_before_a_reset_is_taken_in_after_it() {
    const BEFORE: u32 = 0;
    const AFTER: u32 = 1;
    model("a reset against a parcel that is being made", || {
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
    });
}

/// A device thread that was left behind comes back, and clears what it knows of, while
/// another takes its place and is brought a parcel.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn who_was_left_behind_takes_nothing_that_is_its_successors() {
    model(
        "a device thread comes back while another takes its place",
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
