//! The last segment of a slot that ends.
//!
//! A slot's memory becomes its last segment's, so that what a sequence has computed can be
//! kept even where live sequences fill the device: only where the trie's own nodes must be
//! cut for it does that take room.

use super::trie::{NodeKey, Sealed};
use super::{CacheCore, Effect};
use crate::protocol::{Edit, Extent};
use crate::{SequenceId, TokenId};

/// What becomes of the tail of a slot that ends.
#[derive(Clone, Copy, Debug)]
struct LastSegment {
    sealed: Sealed,
    /// Its tokens, as offsets in the tail.
    from: usize,
    to: usize,
}

impl CacheCore {
    /// Publishes what a sequence that is about to be closed computed beyond its path, as
    /// far as it is exact and the trie does not hold it already.
    pub(super) fn retire(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        generated: &[TokenId],
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.get(&sequence) else {
            return;
        };
        if slot.salt.is_private() {
            return;
        }
        let tail = slot.exact_tail(generated, computed);
        if tail.is_empty() {
            return;
        }
        let beyond = computed - slot.path_tokens - tail.len();
        let Some((shared_end, known)) = self.hold_known(slot.end, &tail, effects) else {
            return;
        };
        match &tail[known..] {
            [] if self.resumes_at(shared_end) => {
                let priority = self.slots[&sequence].priority;
                self.trie.raise_priority(shared_end, priority);
                self.give_up_room(sequence);
                self.move_end(sequence, shared_end, 0);
            }
            [] => self.restate_last(sequence, known, shared_end, beyond, effects),
            rest => self.hang_last(sequence, known, shared_end, rest, beyond, effects),
        }
        self.trie.release(shared_end);
    }

    /// Seals what comes after the first `known` tokens of the tail, below `parent`.
    fn hang_last(
        &mut self,
        sequence: SequenceId,
        known: usize,
        parent: NodeKey,
        edge: &[TokenId],
        beyond: usize,
        effects: &mut Vec<Effect>,
    ) {
        let extent = Extent {
            tokens: edge.len(),
            beyond,
        };
        if !self.has_room_for_last(sequence, extent, effects) {
            return;
        }
        let sealed = self.new_segment(extent);
        let last = LastSegment {
            sealed,
            from: known,
            to: known + edge.len(),
        };
        self.give_up_all_but(sequence, last, effects);
        let slot = &self.slots[&sequence];
        let (priority, class) = (slot.priority, slot.class);
        let node = self.trie.insert(parent, edge, sealed, priority, class);
        self.move_end(sequence, node, 0);
    }

    /// Gives the node at `end`, which cannot be resumed at, a segment that can: the last
    /// of the tail's first `known` tokens.
    fn restate_last(
        &mut self,
        sequence: SequenceId,
        known: usize,
        end: NodeKey,
        beyond: usize,
        effects: &mut Vec<Effect>,
    ) {
        let tokens = self.trie.node(end).edge().len();
        let extent = Extent { tokens, beyond };
        if !self.would_resume(end, extent) || !self.has_room_for_last(sequence, extent, effects) {
            return;
        }
        let sealed = self.new_segment(extent);
        self.withdraw(end);
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
        let priority = self.slots[&sequence].priority;
        self.trie.raise_priority(end, priority);
        self.move_end(sequence, end, 0);
    }

    /// The device's slot is gone from here on, but for one segment.
    fn give_up_all_but(
        &mut self,
        sequence: SequenceId,
        last: LastSegment,
        effects: &mut Vec<Effect>,
    ) {
        self.give_up_room(sequence);
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        slot.is_retired = true;
        effects.push(Effect::Edit(Edit::Retire {
            slot: slot.id,
            tokens: last.from..last.to,
            segment: last.sealed.segment,
        }));
    }

    /// Whether a segment fits into what is reserved for the tail, as it does unless the
    /// sequence computed more than it was granted.
    fn has_room_for_last(
        &mut self,
        sequence: SequenceId,
        extent: Extent,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let reserved = self.slots[&sequence].reserved_bytes;
        let bytes = self.spec.segment_bytes(extent);
        self.make_room(bytes.saturating_sub(reserved), effects)
    }

    /// The slot will not grow any more.
    fn give_up_room(&mut self, sequence: SequenceId) {
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        (slot.tokens_max, slot.keep) = (0, None);
        self.reserve(sequence);
    }
}
