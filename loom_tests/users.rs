//! No user exceeds its limits in the engine, and none loses a permit.

use motet::UserId;
use motet_sync::admission::users::{Counted, UserLimits, Users};
use motet_sync::admission::{Admission, AdmissionError};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, thread};

const USER_BUGS: [InjectedBug; 2] = [InjectedBug::UsersTwoLocks, InjectedBug::LockOrdersNothing];

const ADA: UserId = UserId(1);
const BOB: UserId = UserId(2);

/// Two requests of one user arrive while another user's request ends.
#[test]
fn user_limit_holds_for_concurrent_requests() {
    model(
        "two requests of a user at a limit of one",
        &USER_BUGS,
        || {
            let users = Users::new(UserLimits {
                requests_max: 1,
                tokens_max: 0,
            });
            let ada_state = Guarded::new(());
            let others = users.enter_all(BOB, 1).expect("Bob has no request yet");
            let enter = || {
                let (users, ada_state) = (users.clone(), ada_state.clone());
                move || {
                    let share = users.enter_all(ADA, 1);
                    if share.is_ok() {
                        // The user's only request.
                        ada_state.write(());
                    }
                    share.map(drop)
                }
            };
            let first = thread::spawn(enter());
            let second = enter()();
            drop(others);
            let first = first.join().unwrap();
            let rejected = AdmissionError::UserRequests {
                excess: 1,
                inside: 1,
            };
            for rejection in [first, second].into_iter().filter_map(Result::err) {
                assert_eq!(rejection, rejected);
            }
            assert!(
                first.is_ok() || second.is_ok(),
                "at least one request is admitted"
            );
            assert!(users.is_empty(), "a user without requests is removed");
        },
    );
}

/// Two prompts of one user claim their tokens; one starts, one is cancelled. The engine's own
/// bound rejects neither, or the second.
#[test]
fn requests_rejected_by_the_engine_do_not_count_for_the_user() {
    model(
        "two prompts of a user in an engine for one",
        &USER_BUGS,
        || {
            let admission = Admission::new(2, 2).with_user_limits(UserLimits {
                requests_max: 2,
                tokens_max: 3,
            });
            let claim = |starts: bool| {
                let admission = admission.clone();
                move || {
                    let mut permit = admission.enter(ADA).expect("there is a permit for both");
                    let claimed = permit.claim(2);
                    if starts && claimed.is_ok() {
                        permit.started();
                    }
                    claimed
                }
            };
            let leaves = thread::spawn(claim(false));
            let starts = claim(true)();
            let leaves = leaves.join().unwrap();
            for rejected in [starts, leaves].into_iter().filter_map(Result::err) {
                let users = AdmissionError::UserTokens {
                    excess: 1,
                    waiting: 2,
                };
                let engine_limit = AdmissionError::Tokens { excess: 2 };
                assert!(
                    rejected == users || rejected == engine_limit,
                    "{rejected:?}"
                );
            }
            assert!(
                starts.is_ok() || leaves.is_ok(),
                "at least one request is admitted"
            );
            assert_eq!(admission.inside(), 0);
            assert_eq!(admission.waiting_tokens(), 0);
            assert!(admission.users().expect("there are limits").is_empty());
        },
    );
}

#[test]
#[cfg_attr(motet_loom, ignore = "single-threaded")]
fn user_limits_leave_capacity_for_others() {
    let admission = Admission::new(3, 100).with_user_limits(UserLimits {
        requests_max: 2,
        tokens_max: 10,
    });
    let mut long = admission.enter(ADA).unwrap();
    assert_eq!(long.claim(50), Ok(()), "no other prompt of Ada waits");
    let mut second = admission.enter(ADA).unwrap();
    let too_many = AdmissionError::UserTokens {
        excess: 41,
        waiting: 50,
    };
    assert_eq!(second.claim(1), Err(too_many));
    let third = admission.enter(ADA).map(drop);
    let full = AdmissionError::UserRequests {
        excess: 1,
        inside: 2,
    };
    assert_eq!(third, Err(full));
    let mut other = admission.enter(BOB).expect("Bob's share is separate");
    assert_eq!(other.claim(50), Ok(()));
    long.started();
    // The engine's bound rejects it now, and Ada's share does not count it.
    assert_eq!(second.claim(60), Err(AdmissionError::Tokens { excess: 10 }));
    let users = admission.users().unwrap();
    let ada_state = Counted {
        requests: 2,
        tokens: 0,
    };
    assert_eq!(users.counted(ADA), ada_state);
    assert_eq!(
        admission.enter(BOB).map(drop),
        Err(AdmissionError::Requests)
    );
    drop((long, second, other));
    assert!(users.is_empty());
}
