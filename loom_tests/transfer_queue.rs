//! Transfer queue: every announced state is found, and none is left.

use std::time::Duration;

use motet::CopyId;
use motet_device::{Export, NextExport, transfer_queue};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, mpsc, thread};

const COPY: CopyId = CopyId(1);
const OTHER: CopyId = CopyId(2);
const NO_TIMEOUT: Duration = Duration::MAX;

const IMPORT_BUGS: [InjectedBug; 2] = [
    InjectedBug::TransferQueuePutInTwoSteps,
    InjectedBug::LockOrdersNothing,
];

/// Two sequences load the same copy, each with a detached state of its own. The device imports
/// the first while the second is put into the queue.
#[test]
fn announced_import_is_found() {
    model(
        "a detached state is put while another is taken",
        &IMPORT_BUGS,
        || {
            let (_device_end, host_end) = transfer_queue::<u32>();
            let imports = host_end.imports.clone();
            let (sender, receiver) = mpsc::channel();
            let copies = thread::spawn(move || {
                for detached_state in 0..2 {
                    imports.put(COPY, detached_state);
                    sender.send(()).expect("the device is alive");
                }
            });
            for _ in 0..2 {
                receiver.recv().expect("two states are put");
                assert!(
                    host_end.imports.take(COPY).is_some(),
                    "an announced state is found"
                );
            }
            copies.join().unwrap();
            assert!(host_end.imports.is_empty(), "each state is taken once");
        },
    );
}

/// As before, but one of the sequences has cancelled: the pager discards its state while the
/// device takes the other's.
#[test]
fn discarded_state_belongs_to_no_other_sequence() {
    model(
        "a detached state is put while two are taken",
        &IMPORT_BUGS,
        || {
            let (_device_end, host_end) = transfer_queue::<u32>();
            let [device_sender, pager_sender] = [mpsc::channel(), mpsc::channel()];
            let (device_sender, for_device) = device_sender;
            let (pager_sender, for_pager) = pager_sender;
            let copies = {
                let imports = host_end.imports.clone();
                thread::spawn(move || {
                    imports.put(COPY, 0);
                    device_sender.send(()).expect("the device is alive");
                    imports.put(COPY, 1);
                    pager_sender.send(()).expect("the pager is alive");
                })
            };
            let device = {
                let imports = host_end.imports.clone();
                thread::spawn(move || {
                    for_device.recv().expect("the state is put");
                    imports.take(COPY)
                })
            };
            for_pager.recv().expect("the state is put");
            let discarded = host_end.imports.take(COPY);
            copies.join().unwrap();
            let taken = device.join().unwrap();
            assert!(taken.is_some(), "the device finds the announced state");
            assert!(discarded.is_some(), "the pager finds the announced state");
            assert_ne!(taken, discarded, "each takes a state of its own");
            assert!(host_end.imports.is_empty(), "no state is left");
        },
    );
}

/// The device loses all state while one detached state waits and another is being unpacked. The
/// pager discards both, and then has the copy unpacked again.
#[test]
fn state_from_before_a_reset_is_not_imported_after_it() {
    const BEFORE: u32 = 0;
    const AFTER: u32 = 1;
    model(
        "a reset against a detached state that is being made",
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
                    sender.send(()).expect("the pager is alive");
                    jobs.recv().expect("the pager has it unpacked again");
                    imports.put(COPY, AFTER);
                    sender.send(()).expect("the pager is alive");
                })
            };
            // The device clears the queue, then reports the reset.
            let device = {
                let imports = host_end.imports.clone();
                thread::spawn(move || imports.clear())
            };
            device.join().unwrap();
            host_end.imports.clear();
            done.recv().expect("the job ends");
            let discarded = host_end.imports.take(COPY);
            assert_ne!(discarded, Some(AFTER), "the new state is not unpacked yet");
            give.send(()).expect("the worker is alive");
            done.recv().expect("the job ends");
            assert_eq!(
                host_end.imports.take(COPY),
                Some(AFTER),
                "the state unpacked after the reset"
            );
            copies.join().unwrap();
            assert!(host_end.imports.is_empty(), "no other state is left");
        },
    );
}

/// An abandoned device thread returns and clears its states while a successor takes its place
/// and receives a state.
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
            assert_eq!(taken, Some(2), "the successor's own state");
            assert_eq!(
                abandoned.join().unwrap(),
                None,
                "the abandoned thread had cleared its own"
            );
            assert!(host_end.imports.is_empty(), "no other state is left");
        },
    );
}

/// As before, but the abandoned thread exports a segment, computed on a device that is no
/// longer served.
#[test]
fn abandoned_thread_exports_nothing() {
    let finds = [
        InjectedBug::TransferQueueExportInTwoSteps,
        InjectedBug::LockOrdersNothing,
    ];
    model("a device thread comes back and exports", &finds, || {
        let (prototype, host_end) = transfer_queue();
        let first = prototype.successor();
        let abandoned = thread::spawn(move || first.export(COPY, Ok(Guarded::new(1))));
        let second = prototype.successor();
        second
            .export(OTHER, Ok(Guarded::new(2)))
            .expect("the queue has capacity");
        abandoned
            .join()
            .unwrap()
            .expect("a dropped export is no error");
        assert!(host_end.exports.wait(), "a wakeup was sent");
        let NextExport::Ready(Export {
            copy,
            detached_state,
        }) = host_end.exports.next(NO_TIMEOUT, |_| true)
        else {
            panic!("expected the successor's export")
        };
        let detached_state = detached_state.expect("the export succeeded");
        assert_eq!((copy, detached_state.read()), (OTHER, 2));
        assert!(host_end.exports.is_empty(), "no other state is left");
    });
}

/// The copy worker takes the device's exports, and sleeps when there are none.
#[test]
fn no_export_is_missed() {
    let finds = [InjectedBug::LockOrdersNothing];
    model("two exports against their receiver", &finds, || {
        let (prototype, host_end) = transfer_queue();
        let device = prototype.successor();
        let device = thread::spawn(move || {
            for copy in [COPY, OTHER] {
                let detached_state = Guarded::new(0);
                detached_state.write(copy.0);
                device
                    .export(copy, Ok(detached_state))
                    .expect("the queue has capacity");
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
                    assert_eq!(detached_state.expect("the export succeeded").read(), copy.0);
                    taken.push(copy);
                }
                NextExport::NotComputed(_) => panic!("the export was computed before"),
                NextExport::Nothing => assert!(host_end.exports.wait(), "the device is alive"),
            }
        }
        device.join().unwrap();
        assert_eq!(taken, [COPY, OTHER], "exports come in order");
    });
}
