//! Permits and tokens of the engine: one caller takes some, a sequence releases some, and a
//! drain waits until all are released.

use motet::UserId;
use motet_sync::admission::users::UserLimits;
use motet_sync::admission::{Admission, AdmissionError};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, mpsc, thread};

const ADA: UserId = UserId(1);

/// A sequence of Ada starts and ends while she submits another and the engine drains.
#[test]
fn permits_are_returned_before_a_drain_ends() {
    let finds = [
        InjectedBug::AdmissionInTwoSteps,
        InjectedBug::AdmissionLeaveRelease,
        InjectedBug::AdmissionInsideAcquire,
        InjectedBug::UsersTwoLocks,
        InjectedBug::LockOrdersNothing,
    ];
    model("budget taken, returned, shut down", &finds, || {
        let admission = Admission::new(2, 3).with_user_limits(UserLimits {
            requests_max: 2,
            tokens_max: 3,
        });
        let is_open = Guarded::new(true);
        // Replaces tokio's `Notify`, which loom does not see.
        let (left_sender, left_receiver) = mpsc::channel();
        let mut running = admission.enter(ADA).expect("the engine is empty");
        running.claim(2).expect("no other prompt waits");
        let sequence = {
            let (left_sender, is_open) = (left_sender.clone(), is_open.clone());
            thread::spawn(move || {
                running.started();
                assert!(is_open.read(), "inside a closed engine");
                drop(running);
                left_sender.send(()).expect("the drain is alive");
            })
        };
        let caller = {
            let (admission, is_open) = (admission.clone(), is_open.clone());
            thread::spawn(move || {
                let submitted = admission.enter(ADA).and_then(|mut permit| {
                    let claimed = permit.claim(2);
                    assert!(is_open.read(), "inside a closed engine");
                    claimed
                });
                left_sender.send(()).expect("the drain is alive");
                submitted
            })
        };
        admission.shut();
        while admission.inside() > 0 {
            left_receiver
                .recv()
                .expect("each request reports when it is released");
        }
        is_open.write(false);
        sequence.join().unwrap();
        match caller.join().unwrap() {
            Ok(()) | Err(AdmissionError::Shut) => {}
            // Ada's other prompt still waited.
            Err(AdmissionError::UserTokens { excess, waiting }) => {
                assert_eq!((excess, waiting), (1, 2))
            }
            Err(other) => panic!("{other:?} within the bounds"),
        }
        assert_eq!((admission.inside(), admission.waiting_tokens()), (0, 0));
        assert!(admission.users().expect("there are limits").is_empty());
    });
}
