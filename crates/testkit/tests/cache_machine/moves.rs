//! Removes tokens from slots: truncation, removal, shift.

use std::ops::Range;

use motet_core::cache::CacheError;
use motet_core::cache::{Message, shift};
use motet_protocol::{SequenceId, TokenId};

use crate::setup::CONTEXT_TOKENS;
use crate::system::{Sequence, System};

impl System {
    pub(crate) fn truncate(&mut self, sequence: usize, to: usize) {
        let Some(id) = self.any_running(sequence) else {
            return;
        };
        let computed = self.sequences[&id].computed;
        if computed > 0 {
            self.remove(id, to % computed..computed);
            self.note("truncate");
        }
    }

    pub(crate) fn remove_middle(&mut self, sequence: usize, start: usize, tokens: usize) {
        let Some(id) = self.any_running(sequence) else {
            return;
        };
        let computed = self.sequences[&id].computed;
        if computed > 1 {
            let start = start % (computed - 1);
            self.remove(id, start..(start + tokens).min(computed - 1));
            self.note("remove");
        }
    }

    /// Removes tokens from a slot. Returns false if the model or the memory does not allow it.
    fn remove(&mut self, id: SequenceId, removed: Range<usize>) -> bool {
        let sequence = &self.sequences[&id];
        let shifts = removed.end < sequence.computed;
        let message = Message::Remove {
            sequence: id,
            computed: sequence.computed,
            generated: sequence.generated(),
            removed: removed.clone(),
        };
        let slot = sequence.slot().expect("it runs");
        let rewinds = !shifts && self.device.rewinds(slot, removed.start);
        let moves = self.spec.resumes_anywhere() && (!shifts || self.spec.can_shift);
        let allowed = moves || rewinds;
        if !allowed {
            let error = self.expect_error(message);
            assert_eq!(
                error,
                CacheError::CannotMove,
                "a state that cannot be moved"
            );
            return false;
        }
        let before = self.snapshot();
        if let Err(error) = self.send(message) {
            let out_of_memory = matches!(error, CacheError::OutOfMemory { .. });
            assert!(out_of_memory && !self.setup.has_ample_memory(), "{error}");
            assert!(
                before == self.snapshot(),
                "an error ({error}) leaves the core unchanged"
            );
            self.note_consequence("no memory to remove");
            return false;
        }
        let sequence = self.sequences.get_mut(&id).expect("it is alive");
        sequence.tokens.drain(removed.clone());
        sequence.computed -= removed.len();
        sequence.known = removed.start;
        sequence.reported = removed.start;
        sequence.asked.retain(|at| *at <= removed.start);
        if shifts {
            sequence.exact = sequence.exact.min(removed.start);
        }
        sequence.reference_run.remove(removed);
        true
    }

    /// Runs a sequence until its slot is full, and shifts it as a scheduler does.
    pub(crate) fn shift(&mut self, sequence: usize, fill: TokenId) {
        let Some(id) = self.any_running(sequence) else {
            return;
        };
        if self.sequences[&id].tokens_max == 0 {
            return;
        }
        while let Some(place) = self.running().iter().position(|other| *other == id)
            && self.sequences[&id].computed < self.sequences[&id].tokens_max
        {
            let spans = self.plan(1 << place, CONTEXT_TOKENS, fill);
            self.work(spans);
            self.report();
        }
        let Some(of) = self.sequences.get(&id).filter(|of| of.slot().is_some()) else {
            return; // The device has failed.
        };
        let keep = of.keep.unwrap_or(0).min(of.tokens_max - 1);
        let discard = shift::discard(of.tokens_max, keep, of.computed);
        let discard = discard.expect("less is kept than the slot holds");
        let removed = keep..keep + discard;
        self.note("shift");
        if self.remove(id, removed.clone()) || self.spec.resumes_anywhere() && self.spec.can_shift {
            return;
        }
        // It restarts with the remaining tokens.
        let of = &self.sequences[&id];
        let mut tokens = of.tokens.clone();
        tokens.drain(removed);
        let (of_key, keep) = (of.key, of.keep);
        self.close(id);
        if !tokens.is_empty() {
            let sequence = Sequence {
                keep,
                ..self.new_sequence(of_key, tokens, 4)
            };
            self.sequences.insert(id, sequence);
            self.open_slot(id);
        }
    }
}
