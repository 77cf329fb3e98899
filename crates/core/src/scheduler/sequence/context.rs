//! The bounds of a sequence's slot, and what happens when its context is full.

use std::ops::Range;

use super::{Sequence, Slot};
use crate::cache::shift;
use motet_protocol::ContextLimit;

impl Sequence {
    /// Returns the tokens of a new slot's grant, where this is the headroom for an output of the
    /// longest length. A slot that will be shifted gets its whole context, which it fills
    /// anyway.
    pub(in crate::scheduler) fn first_grant(&self, headroom: impl Fn(usize) -> usize) -> usize {
        let (known, most) = (self.history.tokens().len(), self.tokens_max());
        if self.keep().is_some() {
            return most;
        }
        let headroom = headroom(most.saturating_sub(known));
        known
            .saturating_add(self.start.headroom(headroom))
            .min(most)
    }

    /// Returns the largest number of tokens that its slot will hold.
    pub(in crate::scheduler) fn tokens_max(&self) -> usize {
        self.all_tokens_max().min(self.context_tokens_max)
    }

    /// Returns the number of initial tokens that stay if its slot will be shifted.
    pub(super) fn keep(&self) -> Option<usize> {
        match self.submission.at_context_limit {
            ContextLimit::Shift { keep } if self.all_tokens_max() > self.context_tokens_max => {
                Some(keep)
            }
            ContextLimit::Shift { .. } | ContextLimit::Stop => None,
        }
    }

    fn all_tokens_max(&self) -> usize {
        let output_left = self.history.output_left(self.submission.output_tokens_max);
        self.history.tokens().len().saturating_add(output_left)
    }

    /// Whether its slot holds its history from the first token on.
    pub(in crate::scheduler) fn is_whole(&self) -> bool {
        let history = &self.history;
        let all = history.prompt().len() + history.generated().len();
        self.shifted_out() == 0 && history.known() == all
    }

    /// Returns the range to drop from its slot if the slot is full and more tokens follow. Call
    /// it only while the sequence is in no step.
    pub(in crate::scheduler) fn due_shift(&self) -> Option<Range<usize>> {
        let ContextLimit::Shift { keep } = self.submission.at_context_limit else {
            return None;
        };
        let full = self.slot()?.computed() == self.context_tokens_max;
        if !full || self.pending() == 0 {
            return None;
        }
        let discard = shift::discard(self.context_tokens_max, keep, self.context_tokens_max);
        let discard = discard.expect("a submission retains less than the context");
        Some(keep..keep + discard)
    }

    /// Accounts for a shift of its slot.
    pub(in crate::scheduler) fn shift(&mut self, removed: &Range<usize>) {
        if let Some(slot) = self.slot_mut() {
            slot.shift(removed);
        }
    }

    /// Returns the number of its tokens that were dropped because its context was full.
    pub(in crate::scheduler) fn forgotten_tokens(&self) -> usize {
        self.history.dropped_tokens() + self.shifted_out()
    }

    pub(super) fn shifted_out(&self) -> usize {
        self.slot().map_or(0, Slot::shifted_out)
    }
}
