//! A caller that leaves and a scheduler that finishes: exactly one of them ends the
//! sequence.

use motet::shared::cancel::CancelWord;

use crate::world::{model, thread};

#[test]
fn exactly_one_side_ends_a_sequence() {
    model("cancel against finish", || {
        let word = CancelWord::new();
        let caller = {
            let word = word.clone();
            thread::spawn(move || word.cancel())
        };
        let finished = word.finish();
        let cancelled = caller.join().unwrap();
        assert!(finished != cancelled, "one side wins");
        assert_eq!(word.is_cancelled(), cancelled, "and both see who it was");
    });
}

/// The stream is dropped while the sequence's own actor gives up as well.
#[test]
fn two_cancels_are_one() {
    model("cancel against cancel against finish", || {
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
