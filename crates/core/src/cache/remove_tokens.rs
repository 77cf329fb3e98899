//! Removes tokens from a slot: truncation and shift.

use std::ops::Range;

use super::open_slot::WaitPolicy;
use super::{CacheCore, CacheError, Effect};
use motet_protocol::Edit;
use motet_protocol::{SequenceId, TokenId};

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
        let slot = self.slots.get(sequence);
        let slot = slot.ok_or(CacheError::UnknownSequence(sequence))?;
        if removed.start >= removed.end || removed.end > computed {
            return Err(CacheError::OutsideSequence {
                sequence,
                removed,
                computed,
            });
        }
        let shifts = removed.end < computed;
        let end = self.trie.within(slot.end(), removed.start);
        if !self.spec.resumes_anywhere() {
            // State exists only at the offsets where it was taken: the slot can go back to the
            // end of a segment, if any.
            let at_end = self.trie.node(end).end() == removed.start;
            let rewinds = at_end && slot.can_go_back() && self.resumes_at(end);
            if shifts || !rewinds {
                return Err(CacheError::CannotMove);
            }
        } else if shifts && !self.spec.can_shift {
            return Err(CacheError::CannotMove);
        }
        // Computed tokens are within the grant. The shift of a full context therefore needs no
        // more than the slot's grant. That grant is then the whole context, however small it
        // was at first.
        let more = slot.bytes_to_end_at(end, &self.trie, &self.spec);
        if !self.evict_to_fit(more, effects) {
            return Err(CacheError::OutOfMemory { bytes: more });
        }
        self.void_backups(sequence, removed.start);
        let start = removed.start;
        self.slots
            .forget_tokens(sequence, generated, start, shifts, &mut self.trie);
        effects.push(Effect::Edit(Edit::Remove {
            slot: self.slots[sequence].id(),
            retained: self.trie.path(end).len(),
            removed,
        }));
        self.move_end(sequence, end, 0);
        self.slots.set_computed(sequence, start);
        for request in self.waiting.take_past(sequence, start) {
            self.open_slot(request, WaitPolicy::ALL, effects);
        }
        Ok(())
    }
}
