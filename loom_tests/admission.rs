//! Admission never exceeds its bounds and loses no permit.

use motet::UserId;
use motet_sync::admission::{Admission, AdmissionError};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, thread};

/// Bugs that let two requests in at a bound of one, or hide the writes of the previous request.
const ADMISSION_BUGS: [InjectedBug; 3] = [
    InjectedBug::AdmissionInTwoSteps,
    InjectedBug::AdmissionEnterAcquire,
    InjectedBug::AdmissionLeaveRelease,
];

/// These tests have no limits for single users.
const USER: UserId = UserId(1);

#[test]
fn bound_holds_for_concurrent_callers() {
    model("two submits at a bound of one", &ADMISSION_BUGS, || {
        let admission = Admission::new(1, 1);
        let inside_state = Guarded::new(0);
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (admission, inside_state) = (admission.clone(), inside_state.clone());
                thread::spawn(move || {
                    let permit = admission.enter(USER);
                    if permit.is_ok() {
                        // No other request is inside.
                        inside_state.write(inside_state.read() + 1);
                    }
                    permit.is_ok()
                })
            })
            .collect();
        let entered = callers
            .into_iter()
            .filter_map(|c| c.join().unwrap().then_some(()));
        let entered = entered.count();
        assert!(entered >= 1, "a free permit is granted");
        assert_eq!(
            inside_state.read(),
            entered,
            "each request sees the writes of the one before"
        );
        assert_eq!(admission.inside(), 0, "every permit was released");
    });
}

/// One caller asks for two permits, another for one; there are two.
#[test]
fn group_gets_all_its_permits_or_none() {
    model(
        "a submit of two against a submit of one",
        &ADMISSION_BUGS,
        || {
            let admission = Admission::new(2, 0);
            let inside_state = Guarded::new(());
            let enter = |requests: usize| {
                let (admission, inside_state) = (admission.clone(), inside_state.clone());
                move || {
                    let permits = admission.enter_all(USER, requests);
                    if let Ok(permits) = &permits {
                        assert_eq!(permits.len(), requests);
                        // The group and the single request would be three.
                        inside_state.write(());
                    }
                    permits.is_ok()
                }
            };
            let group = thread::spawn(enter(2));
            let single = enter(1)();
            let group = group.join().unwrap();
            assert!(group || single, "at least one request is admitted");
            assert_eq!(admission.inside(), 0, "every permit was released");
        },
    );
}

/// Two prompts claim their tokens; one gets its slot, the other is cancelled.
#[test]
fn token_bound_holds_and_no_token_is_lost() {
    model(
        "two claims at a bound of one prompt",
        &ADMISSION_BUGS,
        || {
            let admission = Admission::new(2, 3);
            let waiting = Guarded::new(());
            let claim = |starts: bool| {
                let (admission, waiting) = (admission.clone(), waiting.clone());
                move || {
                    let mut permit = admission.enter(USER).expect("there is a permit for both");
                    let claimed = permit.claim(2);
                    if claimed.is_ok() {
                        // No other prompt waits.
                        waiting.write(());
                        if starts {
                            permit.started();
                        }
                    }
                    claimed
                }
            };
            let leaves = thread::spawn(claim(false));
            let starts = claim(true)();
            let leaves = leaves.join().unwrap();
            for rejected in [starts, leaves].into_iter().filter_map(Result::err) {
                assert_eq!(rejected, AdmissionError::Tokens { excess: 1 });
            }
            assert!(
                starts.is_ok() || leaves.is_ok(),
                "at least one request is admitted"
            );
            assert_eq!(admission.waiting_tokens(), 0, "every token was released");
            assert_eq!(admission.inside(), 0, "every permit was released");
        },
    );
}

/// A drain shuts the gate and waits until no request is inside, while a late submit arrives.
#[test]
fn no_request_enters_after_the_gate_is_shut() {
    let finds = [
        InjectedBug::AdmissionInTwoSteps,
        InjectedBug::AdmissionLeaveRelease,
        InjectedBug::AdmissionInsideAcquire,
    ];
    model("shutdown drain against a late submit", &finds, || {
        let admission = Admission::new(2, 0);
        let is_open = Guarded::new(true);
        let caller = {
            let (admission, is_open) = (admission.clone(), is_open.clone());
            thread::spawn(move || {
                if let Ok(_permit) = admission.enter(USER) {
                    assert!(is_open.read(), "inside a closed engine");
                }
            })
        };
        admission.shut();
        if admission.inside() == 0 {
            is_open.write(false);
        }
        caller.join().unwrap();
        assert_eq!(admission.enter(USER).map(drop), Err(AdmissionError::Shut));
        assert_eq!(admission.inside(), 0, "the engine is empty in the end");
        assert!(admission.is_shut());
    });
}

#[test]
#[cfg_attr(motet_loom, ignore = "single-threaded")]
fn too_long_prompt_waits_alone() {
    let admission = Admission::new(3, 10);
    let mut long = admission.enter(USER).unwrap();
    assert_eq!(long.claim(1_000), Ok(()), "no other waits");
    let mut short = admission.enter(USER).unwrap();
    assert_eq!(short.claim(1), Err(AdmissionError::Tokens { excess: 991 }));
    long.started();
    assert_eq!(short.claim(1), Ok(()));
    assert_eq!((admission.inside(), admission.waiting_tokens()), (2, 1));
    drop((long, short));
    assert_eq!((admission.inside(), admission.waiting_tokens()), (0, 0));
}
