//! Removes tokens from a slot: truncation and shift.

use std::ops::Range;

use super::offload::WaitPolicy;
use super::{CacheCore, CacheError, Effect};
use crate::protocol::Edit;
use crate::{SequenceId, TokenId};

impl CacheCore {
    /// Removes tokens from a slot. Sealed segments before them stay shared; the state after
    /// them becomes the slot's own.
    pub(super) fn remove(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        generated: &[TokenId],
        removed: Range<usize>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), CacheError> {
        let slot = self
            .slots
            .get(&sequence)
            .ok_or(CacheError::UnknownSequence(sequence))?;
        if removed.start >= removed.end || removed.end > computed {
            return Err(CacheError::OutsideSequence {
                sequence,
                removed,
                computed,
            });
        }
        let shifts = removed.end < computed;
        let end = self.within(slot.end, removed.start);
        if !self.spec.resumes_anywhere() {
            // State exists only at the offsets where it was taken: the slot can go back to the
            // end of a segment, if any.
            let at_end = self.trie.node(end).end() == removed.start;
            let rewinds = at_end && !slot.has_own_segments && self.resumes_at(end);
            if shifts || !rewinds {
                return Err(CacheError::CannotMove);
            }
        } else if shifts && !self.spec.can_shift {
            return Err(CacheError::CannotMove);
        }
        // Computed tokens are within the grant. The shift of a full context therefore needs no
        // more than the slot's grant. That grant is then the whole context, however small it
        // was at first.
        let more = self
            .reservation(end, slot.tokens_max, slot.keep)
            .saturating_sub(slot.reserved_bytes);
        if !self.evict_to_fit(more, effects) {
            return Err(CacheError::OutOfMemory { bytes: more });
        }
        self.void_backups(sequence, removed.start);
        self.forget_tokens(sequence, generated, &removed, shifts);
        let start = removed.start;
        effects.push(Effect::Edit(Edit::Remove {
            slot: self.slots[&sequence].id,
            retained: self.trie.path(end).len(),
            removed,
        }));
        self.move_end(sequence, end, 0);
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        slot.computed = start;
        // Requests that wait for removed tokens would wait forever.
        for waiting in self.take_waiting(|w| w.leader == sequence && w.at > start) {
            self.open_slot(waiting.request, WaitPolicy::ALL, effects);
        }
        Ok(())
    }

    /// Ends the slot's known tokens before the removed ones. Later tokens are not needed,
    /// since shifted state is never published.
    fn forget_tokens(
        &mut self,
        sequence: SequenceId,
        generated: &[TokenId],
        removed: &Range<usize>,
        shifts: bool,
    ) {
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        let known = slot.extended(generated);
        let retained = known.len().min(removed.start);
        self.in_progress.remove(&slot.salt, sequence);
        slot.tokens = known[..retained].into();
        self.in_progress.insert(&slot.salt, &slot.tokens, sequence);
        slot.restore_points
            .retain(|point| point.at <= removed.start);
        if shifts {
            slot.exact_tokens = slot.exact_tokens.min(removed.start);
        }
    }
}
