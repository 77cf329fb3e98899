//! A caller that leaves and a scheduler that finishes: exactly one of them ends the
//! sequence.

use motet_sync::cancel::CancelWord;
use motet_sync::primitives::plant::Plant;

use crate::world::{Guarded, model, thread};

#[test]
fn exactly_one_side_ends_a_sequence() {
    model("cancel against finish", &[Plant::CancelInTwoSteps], || {
        let word = CancelWord::new();
        let end = Guarded::new(());
        let caller = {
            let (word, end) = (word.clone(), end.clone());
            thread::spawn(move || {
                let ended = word.cancel();
                if ended {
                    end.write(());
                }
                ended
            })
        };
        let finished = word.finish();
        if finished {
            end.write(());
        }
        let cancelled = caller.join().unwrap();
        assert!(finished != cancelled, "one side wins");
        assert_eq!(word.is_cancelled(), cancelled, "and both see who it was");
    });
}

/// The stream is dropped while the sequence's own actor gives up as well.
#[test]
fn two_cancels_are_one() {
    let finds = [Plant::CancelInTwoSteps];
    model("cancel against cancel against finish", &finds, || {
        let word = CancelWord::new();
        let sides: Vec<_> = (0..2)
            .map(|_| {
                let word = word.clone();
                thread::spawn(move || word.cancel())
            })
            .collect();
        let finished = word.finish();
        let cancels = sides
            .into_iter()
            .filter_map(|side| side.join().unwrap().then_some(()));
        assert_eq!(cancels.count() + usize::from(finished), 1, "one end in all");
    });
}

/// A scheduler that sees that the caller has left sees what it did before it left.
#[test]
fn what_a_caller_did_before_it_left_is_seen() {
    let finds = [Plant::CancelRelease, Plant::CancelSeenAcquire];
    model("a caller leaves against a look at the word", &finds, || {
        let word = CancelWord::new();
        let done_before = Guarded::new(0);
        let caller = {
            let (word, done_before) = (word.clone(), done_before.clone());
            thread::spawn(move || {
                done_before.write(7);
                word.cancel()
            })
        };
        if word.is_cancelled() {
            assert_eq!(done_before.read(), 7, "what came before");
        }
        assert!(caller.join().unwrap(), "nobody else ends it");
    });
}
