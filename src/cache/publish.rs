//! Tails become segments: for one who waits, and when a sequence ends.

use super::trie::{Match, NodeKey};
use super::{CacheCore, Effect};
use crate::device::Edit;
use crate::model::Extent;
use crate::{SequenceId, TokenId};

impl CacheCore {
    /// Seals the leader's tail up to `at` tokens of its prompt, if that can be done
    /// now. False changes nothing: then waiting for this leader again would not help.
    pub(super) fn seal_for(
        &mut self,
        leader: SequenceId,
        at: usize,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(slot) = self.slots.get(&leader) else {
            return false;
        };
        if slot.path_tokens >= at {
            return false;
        }
        if at != computed && !self.spec.resumes_anywhere() {
            return false;
        }
        let edge = slot.tokens[slot.path_tokens..at].to_vec();
        let parent = self.path_end(leader);
        if self.trie.find(parent, &edge) != Match::default() {
            // Another has published the beginning of this meanwhile.
            return false;
        }
        self.seal(leader, &edge, effects)
    }

    /// Publishes what a sequence computed beyond its path, as far as the trie does
    /// not hold it already and there is room.
    pub(super) fn publish(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        generated: &[TokenId],
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.get(&sequence) else {
            return;
        };
        let mut tail: Vec<TokenId> = slot.tokens[slot.path_tokens..].to_vec();
        tail.extend_from_slice(generated);
        tail.truncate(computed.saturating_sub(slot.path_tokens));

        let end = self.path_end(sequence);
        let found = self.trie.find(end, &tail);
        let known = found.tokens_with_partial();
        if known == tail.len() {
            return;
        }
        if known == 0 {
            self.seal(sequence, &tail, effects);
        } else if self.spec.resumes_anywhere() {
            self.publish_beyond(sequence, &tail, &found, effects);
        }
        // State that cannot be cut is not published beside what overlaps it.
    }

    /// Publishes a tail whose beginning the trie knows from another sequence.
    fn publish_beyond(
        &mut self,
        sequence: SequenceId,
        tail: &[TokenId],
        found: &Match,
        effects: &mut Vec<Effect>,
    ) {
        let known = found.tokens_with_partial();
        let mut parent = found
            .path
            .last()
            .copied()
            .unwrap_or(self.path_end(sequence));
        // Held so that making room does not evict what the new node hangs on.
        let _held = self.lease_or_root(parent);
        if let Some((node, at)) = found.partial {
            match self.split(node, at, effects) {
                Some(upper) => parent = upper,
                None => return,
            }
        }
        let _held_too = self.lease_or_root(parent);
        if !self.make_room(self.spec.segment_bytes(Extent::whole(tail.len())), effects) {
            return;
        }
        let slot = self.slots[&sequence].id;
        let (twice, segment) = (self.next_segment(), self.next_segment());
        effects.push(Effect::Edit(Edit::Seal {
            slot,
            tokens: known,
            segment: twice,
        }));
        effects.push(Effect::Edit(Edit::Drop { segment: twice }));
        effects.push(Effect::Edit(Edit::Seal {
            slot,
            tokens: tail.len() - known,
            segment,
        }));
        self.trie.insert(parent, &tail[known..], segment);
        self.sealed_bytes += self.spec.segment_bytes(Extent::whole(tail.len() - known));
    }

    /// Seals the first `edge.len()` tokens of the slot's tail and hangs them below
    /// its path. False when there is no room.
    fn seal(&mut self, sequence: SequenceId, edge: &[TokenId], effects: &mut Vec<Effect>) -> bool {
        let bytes = self.spec.segment_bytes(Extent::whole(edge.len()));
        if !self.make_room(bytes, effects) {
            return false;
        }
        let segment = self.next_segment();
        let parent = self.path_end(sequence);
        let node = self.trie.insert(parent, edge, segment);
        let step = self.lease(node);
        self.sealed_bytes += bytes;
        let slot = self
            .slots
            .get_mut(&sequence)
            .expect("a slot is sealed while it lives");
        effects.push(Effect::Edit(Edit::Seal {
            slot: slot.id,
            tokens: edge.len(),
            segment,
        }));
        slot.path.push(step);
        slot.path_tokens += edge.len();
        let tokens_max = slot.tokens.len() + slot.output_tokens_max;
        let reserved = self.spec.tail_bytes(tokens_max - slot.path_tokens);
        self.reserved_bytes -= slot.reserved_bytes - reserved;
        slot.reserved_bytes = reserved;
        true
    }

    fn path_end(&self, sequence: SequenceId) -> NodeKey {
        let slot = self.slots.get(&sequence);
        slot.and_then(|slot| slot.path.last())
            .map_or(self.trie.root(), |step| step.node)
    }
}
