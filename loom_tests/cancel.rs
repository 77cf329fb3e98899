//! A caller that cancels and a scheduler that finishes: exactly one of them ends the sequence.

use motet_sync::cancel::CancelFlag;
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, thread};

#[test]
fn exactly_one_side_ends_a_sequence() {
    model(
        "cancel against finish",
        &[InjectedBug::CancelInTwoSteps],
        || {
            let cancel_flag = CancelFlag::new();
            let end = Guarded::new(());
            let caller = {
                let (cancel_flag, end) = (cancel_flag.clone(), end.clone());
                thread::spawn(move || {
                    let ended = cancel_flag.cancel();
                    if ended {
                        end.write(());
                    }
                    ended
                })
            };
            let finished = cancel_flag.finish();
            if finished {
                end.write(());
            }
            let cancelled = caller.join().unwrap();
            assert!(finished != cancelled, "one side wins");
            assert_eq!(
                cancel_flag.is_cancelled(),
                cancelled,
                "both sides see which one ended it"
            );
        },
    );
}

/// The stream is dropped while the sequence's own actor cancels as well.
#[test]
fn two_cancels_are_one() {
    let finds = [InjectedBug::CancelInTwoSteps];
    model("cancel against cancel against finish", &finds, || {
        let cancel_flag = CancelFlag::new();
        let sides: Vec<_> = (0..2)
            .map(|_| {
                let cancel_flag = cancel_flag.clone();
                thread::spawn(move || cancel_flag.cancel())
            })
            .collect();
        let finished = cancel_flag.finish();
        let cancels = sides
            .into_iter()
            .filter_map(|side| side.join().unwrap().then_some(()));
        assert_eq!(cancels.count() + usize::from(finished), 1, "one end in all");
    });
}

/// A handle cancels while the sequence's actor finds its end, which the scheduler learns later.
#[test]
fn a_cancel_loses_to_either_finish() {
    let finds = [InjectedBug::CancelInTwoSteps];
    model("cancel against two finishes", &finds, || {
        let cancel_flag = CancelFlag::new();
        let caller = {
            let cancel_flag = cancel_flag.clone();
            thread::spawn(move || cancel_flag.cancel())
        };
        let actor = {
            let cancel_flag = cancel_flag.clone();
            thread::spawn(move || cancel_flag.finish())
        };
        let finishes = usize::from(cancel_flag.finish()) + usize::from(actor.join().unwrap());
        let cancels = usize::from(caller.join().unwrap());
        assert_eq!(cancels + finishes, 1, "one end in all");
    });
}

/// A scheduler that sees a cancellation sees the caller's earlier writes.
#[test]
fn writes_before_a_cancel_are_seen() {
    let finds = [InjectedBug::CancelRelease, InjectedBug::CancelSeenAcquire];
    model(
        "a caller cancels against a read of the flag",
        &finds,
        || {
            let cancel_flag = CancelFlag::new();
            let done_before = Guarded::new(0);
            let caller = {
                let (cancel_flag, done_before) = (cancel_flag.clone(), done_before.clone());
                thread::spawn(move || {
                    done_before.write(7);
                    cancel_flag.cancel()
                })
            };
            if cancel_flag.is_cancelled() {
                assert_eq!(done_before.read(), 7, "earlier writes are visible");
            }
            assert!(caller.join().unwrap(), "no other side ends it");
        },
    );
}
