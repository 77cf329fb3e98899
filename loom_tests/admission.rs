//! The house never holds more than it may, and loses no place.

use motet::UserId;
use motet::shared::admission::{Admission, Refusal};

use crate::world::{Arc, AtomicBool, AtomicUsize, Ordering, model, thread};

/// There are no limits for single users here.
const USER: UserId = UserId(1);

#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn the_bound_holds_for_callers_at_the_same_moment() {
    model("two submits at a bound of one", || {
        let admission = Admission::new(1, 1);
        let inside = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (admission, inside) = (admission.clone(), inside.clone());
                thread::spawn(move || {
                    let permit = admission.enter(USER);
                    if permit.is_ok() {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone inside");
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                    permit.is_ok()
                })
            })
            .collect();
        let entered = callers
            .into_iter()
            .filter_map(|c| c.join().unwrap().then_some(()));
        assert!(entered.count() >= 1, "a free place is given to somebody");
        assert_eq!(admission.inside(), 0, "every place was given back");
    });
}

/// One caller wants two places, another one, and there are two.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn a_group_gets_all_its_places_or_none() {
    model("a submit of two against a submit of one", || {
        let admission = Admission::new(2, 0);
        let inside = Arc::new(AtomicUsize::new(0));
        let enter = |places: usize| {
            let (admission, inside) = (admission.clone(), inside.clone());
            move || {
                let permits = admission.enter_all(USER, places);
                if let Ok(permits) = &permits {
                    assert_eq!(permits.len(), places);
                    let before = inside.fetch_add(places, Ordering::SeqCst);
                    assert!(before + places <= 2, "no more than the bound");
                    inside.fetch_sub(places, Ordering::SeqCst);
                }
                permits.is_ok()
            }
        };
        let group = thread::spawn(enter(2));
        let single = enter(1)();
        let group = group.join().unwrap();
        assert!(group || single, "somebody is let in");
        assert_eq!(admission.inside(), 0, "every place was given back");
    });
}

/// Two prompts claim their tokens; one gets its slot, the other leaves.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn the_bound_of_tokens_holds_and_none_is_lost() {
    model("two claims at a bound of one prompt", || {
        let admission = Admission::new(2, 3);
        let waiting = Arc::new(AtomicUsize::new(0));
        let claim = |starts: bool| {
            let (admission, waiting) = (admission.clone(), waiting.clone());
            move || {
                let mut permit = admission.enter(USER).expect("there is a place for both");
                let claimed = permit.claim(2);
                if claimed.is_ok() {
                    assert_eq!(waiting.fetch_add(2, Ordering::SeqCst), 0, "alone");
                    waiting.fetch_sub(2, Ordering::SeqCst);
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
        for refused in [starts, leaves].into_iter().filter_map(Result::err) {
            assert_eq!(refused, Refusal::Tokens { excess: 1 });
        }
        assert!(starts.is_ok() || leaves.is_ok(), "somebody is let in");
        assert_eq!(admission.waiting_tokens(), 0, "every token was given back");
        assert_eq!(admission.inside(), 0, "and every place");
    });
}

/// A drain shuts the gate and waits for nobody to be inside; a submit comes late.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn nobody_enters_after_the_gate_is_shut() {
    model("shutdown drain against a late submit", || {
        let admission = Admission::new(2, 0);
        let closed = Arc::new(AtomicBool::new(false));
        let caller = {
            let (admission, closed) = (admission.clone(), closed.clone());
            thread::spawn(move || {
                if let Ok(_permit) = admission.enter(USER) {
                    assert!(!closed.load(Ordering::SeqCst), "inside a closed house");
                }
            })
        };
        admission.shut();
        if admission.inside() == 0 {
            closed.store(true, Ordering::SeqCst);
        }
        caller.join().unwrap();
        assert_eq!(admission.enter(USER).map(drop), Err(Refusal::Shut));
        assert_eq!(admission.inside(), 0, "the house is empty in the end");
        assert!(admission.is_shut());
    });
}

#[test]
#[cfg_attr(motet_loom, ignore = "nobody else is there")]
fn a_prompt_that_is_too_long_waits_alone() {
    let admission = Admission::new(3, 10);
    let mut long = admission.enter(USER).unwrap();
    assert_eq!(long.claim(1_000), Ok(()), "no other waits");
    let mut short = admission.enter(USER).unwrap();
    assert_eq!(short.claim(1), Err(Refusal::Tokens { excess: 991 }));
    long.started();
    assert_eq!(short.claim(1), Ok(()));
    assert_eq!((admission.inside(), admission.waiting_tokens()), (2, 1));
    drop((long, short));
    assert_eq!((admission.inside(), admission.waiting_tokens()), (0, 0));
}
