//! Seals the last segment of a slot that ends.
//!
//! The slot's memory becomes the memory of its last segment. A sequence's state can therefore
//! be kept even if live sequences fill the device. More memory is needed only if nodes of the
//! trie must be split for it.

use super::trie::{NodeKey, Sealed};
use super::{CacheCore, Effect};
use motet_protocol::{Edit, SegmentSize};
use motet_protocol::{SequenceId, TokenId};

/// The part of an ending slot's tail that becomes a segment.
#[derive(Clone, Copy, Debug)]
struct LastSegment {
    sealed: Sealed,
    /// Its token range, as offsets in the tail.
    from: usize,
    to: usize,
}

impl CacheCore {
    /// Publishes the state that a sequence has computed past its path, before the sequence is
    /// closed. Only exact state that the trie does not hold already is published.
    pub(super) fn seal_in_place(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        generated: &[TokenId],
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.get(sequence) else {
            return;
        };
        if slot.key().is_private() {
            return;
        }
        let tail = slot.exact_tail(generated, computed);
        if tail.is_empty() {
            return;
        }
        let state_lag = computed - slot.path_tokens() - tail.len();
        let Some((shared_end, known)) = self.hold_known(sequence, &tail, effects) else {
            return;
        };
        match &tail[known..] {
            [] if self.resumes_at(shared_end) => {
                let retention = self.slots[sequence].rank().retention;
                self.trie.raise_retention(shared_end, retention);
                self.slots.end_grant(sequence, &self.trie, &self.spec);
                self.move_end(sequence, shared_end, 0);
            }
            [] => self.reseal_last(sequence, known, shared_end, state_lag, effects),
            rest => {
                let attached =
                    self.attach_last(sequence, known, shared_end, rest, state_lag, effects);
                if let Some(node) = attached.filter(|_| !generated.is_empty()) {
                    self.trie.note_output(node);
                }
            }
        }
        self.trie.release(shared_end);
    }

    /// Seals the tokens after the first `known` tokens of the tail, below `parent`. `None` if memory
    /// is short.
    fn attach_last(
        &mut self,
        sequence: SequenceId,
        known: usize,
        parent: NodeKey,
        edge: &[TokenId],
        state_lag: usize,
        effects: &mut Vec<Effect>,
    ) -> Option<NodeKey> {
        let segment_size = SegmentSize {
            tokens: edge.len(),
            state_lag,
        };
        if !self.fits_last_segment(sequence, segment_size, effects) {
            return None;
        }
        let sealed = self.new_segment(segment_size);
        let last = LastSegment {
            sealed,
            from: known,
            to: known + edge.len(),
        };
        self.give_up_all_but(sequence, last, effects);
        let slot = &self.slots[sequence];
        let rank = slot.rank();
        let node = self
            .trie
            .insert(parent, slot.key(), edge, sealed, rank.retention, rank.class);
        self.move_end(sequence, node, 0);
        Some(node)
    }

    /// Gives the node at `end`, which cannot be resumed at, a segment that can: the last of
    /// the tail's first `known` tokens.
    fn reseal_last(
        &mut self,
        sequence: SequenceId,
        known: usize,
        end: NodeKey,
        state_lag: usize,
        effects: &mut Vec<Effect>,
    ) {
        let tokens = self.trie.node(end).edge().len();
        let segment_size = SegmentSize { tokens, state_lag };
        if !self.would_resume(end, segment_size)
            || !self.fits_last_segment(sequence, segment_size, effects)
        {
            return;
        }
        let sealed = self.new_segment(segment_size);
        self.cancel_export(end);
        let Some(gone) = self.trie.replace(end, sealed) else {
            return;
        };
        let last = LastSegment {
            sealed,
            from: known - tokens,
            to: known,
        };
        self.give_up_all_but(sequence, last, effects);
        effects.push(Effect::Edit(Edit::Replace {
            segment: gone,
            by: sealed.segment,
        }));
        let retention = self.slots[sequence].rank().retention;
        self.trie.raise_retention(end, retention);
        self.move_end(sequence, end, 0);
    }

    /// Closes the device's slot, except for one segment.
    fn give_up_all_but(
        &mut self,
        sequence: SequenceId,
        last: LastSegment,
        effects: &mut Vec<Effect>,
    ) {
        self.slots.end_grant(sequence, &self.trie, &self.spec);
        let slot = self.slots.get_mut(sequence).expect("the slot is live");
        slot.seal_in_place();
        effects.push(Effect::Edit(Edit::SealInPlace {
            slot: slot.id(),
            tokens: last.from..last.to,
            segment: last.sealed.segment,
        }));
    }

    /// Whether a segment fits into the reservation of the tail, evicting if needed. It fits
    /// unless the sequence computed more than its grant.
    fn fits_last_segment(
        &mut self,
        sequence: SequenceId,
        segment_size: SegmentSize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let reserved = self.slots[sequence].reserved_bytes();
        let bytes = self.spec.segment_bytes(segment_size);
        self.evict_to_fit(bytes.saturating_sub(reserved), effects)
    }
}
