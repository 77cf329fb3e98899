//! Parcels that the device is to take in: who was told of one finds it, and none is left.

use std::time::Duration;

use motet::CopyId;
use motet::device::{Export, NextExport, transfer_queue};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, mpsc, thread};

const COPY: CopyId = CopyId(1);
const OTHER: CopyId = CopyId(2);
const NO_TIMEOUT: Duration = Duration::MAX;

const IMPORT_BUGS: [InjectedBug; 2] = [
    InjectedBug::TransferQueuePutInTwoSteps,
    InjectedBug::LockOrdersNothing,
];

/// Two sequences want the same copy, each a parcel of its own. The device takes the first
/// in while the second is put there.
#[test]
fn announced_import_is_found() {
    model(
        "a parcel is put while another is taken",
        &IMPORT_BUGS,
        || {
            let (_device_end, host_end) = transfer_queue::<u32>();
            let imports = host_end.imports.clone();
            let (sender, receiver) = mpsc::channel();
            let copies = thread::spawn(move || {
                for detached_state in 0..2 {
                    imports.put(COPY, detached_state);
                    sender.send(()).expect("the device listens");
                }
            });
            for _ in 0..2 {
                receiver.recv().expect("two are made");
                assert!(host_end.imports.take(COPY).is_some(), "what was told of");
            }
            copies.join().unwrap();
            assert!(host_end.imports.is_empty(), "each is taken once");
        },
    );
}

/// As before, but one of the sequences has left: the pager throws its parcel away while
/// the device takes the other's.
#[test]
fn discarded_state_belongs_to_no_other_sequence() {
    model("a parcel is put while two are taken", &IMPORT_BUGS, || {
        let (_device_end, host_end) = transfer_queue::<u32>();
        let [device_sender, pager_sender] = [mpsc::channel(), mpsc::channel()];
        let (device_sender, for_device) = device_sender;
        let (pager_sender, for_pager) = pager_sender;
        let copies = {
            let imports = host_end.imports.clone();
            thread::spawn(move || {
                imports.put(COPY, 0);
                device_sender.send(()).expect("the device listens");
                imports.put(COPY, 1);
                pager_sender.send(()).expect("the pager listens");
            })
        };
        let device = {
            let imports = host_end.imports.clone();
            thread::spawn(move || {
                for_device.recv().expect("it is made");
                imports.take(COPY)
            })
        };
        for_pager.recv().expect("it is made");
        let discarded = host_end.imports.take(COPY);
        copies.join().unwrap();
        let taken = device.join().unwrap();
        assert!(taken.is_some(), "what the device was told of");
        assert!(discarded.is_some(), "what the pager was told of");
        assert_ne!(taken, discarded, "a parcel each");
        assert!(host_end.imports.is_empty(), "and none is left");
    });
}

/// The device loses everything while one parcel waits for it and another is being made.
/// The pager throws away what has come, and what comes; then it has another made.
#[test]
fn state_from_before_a_reset_is_not_imported_after_it() {
    const BEFORE: u32 = 0;
    const AFTER: u32 = 1;
    model(
        "a reset against a parcel that is being made",
        &IMPORT_BUGS,
        || {
            let (_device_end, host_end) = transfer_queue::<u32>();
            host_end.imports.put(COPY, BEFORE);
            let (give, jobs) = mpsc::channel();
            let (sender, done) = mpsc::channel();
            let copies = {
                let imports = host_end.imports.clone();
                thread::spawn(move || {
                    imports.put(COPY, BEFORE);
                    sender.send(()).expect("the pager listens");
                    jobs.recv().expect("it is to be made again");
                    imports.put(COPY, AFTER);
                    sender.send(()).expect("the pager listens");
                })
            };
            // The device, which then says so.
            let device = {
                let imports = host_end.imports.clone();
                thread::spawn(move || imports.clear())
            };
            device.join().unwrap();
            host_end.imports.clear();
            done.recv().expect("it ends");
            let discarded = host_end.imports.take(COPY);
            assert_ne!(discarded, Some(AFTER), "it is not made yet");
            give.send(()).expect("the thread listens");
            done.recv().expect("it ends");
            assert_eq!(host_end.imports.take(COPY), Some(AFTER), "made since");
            copies.join().unwrap();
            assert!(host_end.imports.is_empty(), "and nothing else is there");
        },
    );
}

/// A device thread that was left behind comes back, and clears what it knows of, while
/// another takes its place and is brought a parcel.
#[test]
fn abandoned_thread_takes_no_import_of_its_successor() {
    model(
        "a device thread comes back while another takes its place",
        &[
            InjectedBug::TransferQueueClearInTwoSteps,
            InjectedBug::LockOrdersNothing,
        ],
        || {
            let (prototype, host_end) = transfer_queue::<u32>();
            let first = prototype.successor();
            host_end.imports.put(COPY, 1);
            let abandoned = thread::spawn(move || {
                first.clear();
                first.take(COPY)
            });
            let second = prototype.successor();
            host_end.imports.put(COPY, 2);
            let taken = second.take(COPY);
            assert_eq!(taken, Some(2), "what was brought for it");
            assert_eq!(abandoned.join().unwrap(), None, "it had cleared its own");
            assert!(host_end.imports.is_empty(), "and nothing else is there");
        },
    );
}

/// As before, but what comes back hands a segment over. What is on it was computed on a device
/// that nobody listens to any more.
#[test]
fn abandoned_thread_exports_nothing() {
    let finds = [
        InjectedBug::TransferQueueExportInTwoSteps,
        InjectedBug::LockOrdersNothing,
    ];
    model("a device thread comes back and hands over", &finds, || {
        let (prototype, host_end) = transfer_queue();
        let first = prototype.successor();
        let abandoned = thread::spawn(move || first.export(COPY, Ok(Guarded::new(1))));
        let second = prototype.successor();
        second.export(OTHER, Ok(Guarded::new(2))).expect("room");
        abandoned.join().unwrap().expect("nobody waits for it");
        assert!(host_end.exports.wait(), "it was rung");
        let NextExport::Ready(Export {
            copy,
            detached_state,
        }) = host_end.exports.next(NO_TIMEOUT, |_| true)
        else {
            panic!("what the second has handed over")
        };
        let detached_state = detached_state.expect("a parcel");
        assert_eq!((copy, detached_state.read()), (OTHER, 2));
        assert!(host_end.exports.is_empty(), "and nothing else is there");
    });
}

/// The copy thread takes what the device hands over, and sleeps when there is nothing.
#[test]
fn no_export_is_missed() {
    let finds = [InjectedBug::LockOrdersNothing];
    model("two exports against who takes them", &finds, || {
        let (prototype, host_end) = transfer_queue();
        let device = prototype.successor();
        let device = thread::spawn(move || {
            for copy in [COPY, OTHER] {
                let detached_state = Guarded::new(0);
                detached_state.write(copy.0);
                device.export(copy, Ok(detached_state)).expect("room");
            }
        });
        let mut taken = Vec::new();
        while taken.len() < 2 {
            match host_end
                .exports
                .next(NO_TIMEOUT, |detached_state| detached_state.read() > 0)
            {
                NextExport::Ready(Export {
                    copy,
                    detached_state,
                }) => {
                    assert_eq!(detached_state.expect("a parcel").read(), copy.0);
                    taken.push(copy);
                }
                NextExport::NotComputed(_) => panic!("it was computed before"),
                NextExport::Nothing => assert!(host_end.exports.wait(), "the device lives"),
            }
        }
        device.join().unwrap();
        assert_eq!(taken, [COPY, OTHER], "in order");
    });
}
