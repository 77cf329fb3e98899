//! The house never holds more requests than it may, and loses no place.

use motet::shared::admission::{Admission, Refusal};

use crate::world::{Arc, AtomicUsize, Ordering, model, thread};

#[test]
fn the_bound_holds_for_callers_at_the_same_moment() {
    model("two submits at a bound of one", || {
        let admission = Admission::new(1);
        let inside = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (admission, inside) = (admission.clone(), inside.clone());
                thread::spawn(move || {
                    let permit = admission.enter();
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

/// A drain shuts the gate and waits for nobody to be inside; a submit comes late.
#[test]
fn nobody_enters_after_the_gate_is_shut() {
    model("shutdown drain against a late submit", || {
        let admission = Admission::new(2);
        let caller = {
            let admission = admission.clone();
            thread::spawn(move || admission.enter().map(drop))
        };
        admission.shut();
        let seen_inside = admission.inside();
        let entered = caller.join().unwrap();
        assert!(seen_inside <= 1 && (seen_inside == 0 || entered.is_ok()));
        assert_eq!(admission.enter().map(drop), Err(Refusal::Shut));
        assert_eq!(admission.inside(), 0, "the house is empty in the end");
        assert!(admission.is_shut());
    });
}
