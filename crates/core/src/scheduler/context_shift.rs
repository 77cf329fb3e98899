//! Contexts that are full.
//!
//! A full slot is shifted: the oldest tokens after the retained ones are dropped, and the
//! tokens after them move up. The positions of shifts depend on the sequence's own tokens only.
//! A sequence that runs again after a failure therefore makes the same shifts and yields the
//! same tokens. Where a model's state cannot be moved, the remaining tokens are computed again,
//! as if the dropped ones had never existed.

use super::sequence::SequenceKey;
use super::{Effect, SchedulerCore};

impl SchedulerCore {
    /// Drops tokens from a sequence's slot if it is full and more tokens follow.
    pub(super) fn shift_if_full(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let Some(removed) = self.sequences[key].due_shift() else {
            return;
        };
        let movable = self.spec.resumes_anywhere() && self.spec.can_shift;
        if !movable {
            self.leave_phase(key);
        }
        let sequence = &mut self.sequences[key];
        let forgotten = sequence.forgotten_tokens() + removed.len();
        effects.push(Effect::Shifted(sequence.id(), forgotten));
        if movable {
            let remove = sequence.remove_message(removed.clone());
            sequence.shift(&removed);
            self.ask(remove, effects);
        } else {
            let close = sequence.close_message();
            sequence.restart_without(&removed);
            self.ask(close, effects);
            self.enqueue(key);
        }
    }
}
