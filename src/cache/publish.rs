//! Tails become segments: for one who waits, at restore points, when a sequence ends.

use super::trie::{NodeKey, Sealed};
use super::{CacheCore, CacheError, Effect};
use crate::device::Edit;
use crate::model::Extent;
use crate::{SequenceId, TokenId};

impl CacheCore {
    /// Publishes what a sequence computed beyond its path, as far as it is exact, the
    /// trie does not hold it already, and there is room.
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
        let known = slot.tokens.len().min(slot.exact_tokens) + generated.len();
        let at = computed.min(slot.exact_tokens).min(known);
        if at <= slot.path_tokens {
            return;
        }
        let tokens = slot.tokens.iter().chain(generated);
        let tail: Vec<TokenId> = tokens.take(at).skip(slot.path_tokens).copied().collect();
        self.seal_tail(sequence, &tail, computed, effects);
    }

    /// Shares what a live sequence has computed, up to `at`.
    pub(super) fn share(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        generated: &[TokenId],
        at: usize,
        effects: &mut Vec<Effect>,
    ) -> Result<(), CacheError> {
        let slot = self
            .slots
            .get(&sequence)
            .ok_or(CacheError::UnknownSequence(sequence))?;
        if at > computed {
            return Err(CacheError::BeyondSource {
                sequence,
                at,
                computed,
            });
        }
        let at = at.min(slot.exact_tokens);
        if at <= slot.path_tokens {
            return Ok(());
        }
        let tokens = slot.tokens.iter().chain(generated);
        let tail: Vec<TokenId> = tokens.take(at).skip(slot.path_tokens).copied().collect();
        if at == computed || self.spec.resumes_anywhere() {
            self.seal_tail(sequence, &tail, computed, effects);
        }
        Ok(())
    }

    /// Seals the slot's tail up to `at` tokens of its prompt, if that can be done now
    /// and is of use. Then the slot's path ends there.
    pub(super) fn seal_for_others(
        &mut self,
        sequence: SequenceId,
        at: usize,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(slot) = self.slots.get(&sequence) else {
            return false;
        };
        let usable = at == computed || self.spec.resumes_anywhere();
        if !usable || at <= slot.path_tokens || at > slot.tokens.len().min(slot.exact_tokens) {
            return false;
        }
        let tail = slot.tokens[slot.path_tokens..at].to_vec();
        self.seal_tail(sequence, &tail, computed, effects)
    }

    /// Seals the first tokens of a slot's tail, which are `tail`, as far as the trie
    /// does not hold their state already. True if a sequence can start there now.
    fn seal_tail(
        &mut self,
        sequence: SequenceId,
        tail: &[TokenId],
        computed: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let slot = &self.slots[&sequence];
        let beyond = computed - slot.path_tokens - tail.len();
        let mut shared_end = slot.end;
        let found = self.trie.find(slot.end, tail);
        let known = found.tokens_with_partial();
        if let Some(last) = found.path.last() {
            shared_end = *last;
        }
        // Held so that making room does not evict what this is about.
        self.trie.hold(shared_end);
        if let Some((node, at)) = found.partial {
            let upper = self.split(node, at, effects);
            self.trie.release(shared_end);
            match upper {
                Some(upper) => shared_end = upper,
                None => return false,
            }
            self.trie.hold(shared_end);
        }
        let (rest, resumes) = (&tail[known..], self.resumes_at(shared_end));
        let done = match (known, rest) {
            (0, _) => self.seal(sequence, rest, beyond, effects),
            (_, []) if resumes => self.adopt(sequence, known, shared_end, effects),
            (_, []) => {
                let room = self.room_to_restate(sequence, shared_end, beyond, effects);
                self.trie.release(shared_end);
                return room && self.restate(sequence, known, shared_end, beyond, effects);
            }
            _ if resumes => {
                self.adopt(sequence, known, shared_end, effects)
                    && self.seal(sequence, rest, beyond, effects)
            }
            _ => self.seal_apart(sequence, known, shared_end, rest, beyond, effects),
        };
        self.trie.release(shared_end);
        done && self.resumes_at(self.slots[&sequence].end)
    }

    /// Seals the first `edge.len()` tokens of the slot's tail and hangs them below its
    /// path. False when there is no room.
    fn seal(
        &mut self,
        sequence: SequenceId,
        edge: &[TokenId],
        beyond: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let extent = Extent {
            tokens: edge.len(),
            beyond,
        };
        if !self.make_room(self.spec.segment_bytes(extent), effects) {
            return false;
        }
        let sealed = self.new_segment(extent);
        let slot = &self.slots[&sequence];
        effects.push(Effect::Edit(Edit::Seal {
            slot: slot.id,
            tokens: edge.len(),
            segment: sealed.segment,
        }));
        let node = self
            .trie
            .insert(slot.end, edge, sealed, slot.priority, slot.class);
        self.move_end(sequence, node, 0);
        true
    }

    /// Gives up the first `tokens` tokens of the slot's tail for nodes below its path
    /// that hold the same.
    fn adopt(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
        end: NodeKey,
        effects: &mut Vec<Effect>,
    ) -> bool {
        // What is given up is cut off first: for a moment it exists twice.
        let twice = self.spec.segment_bytes(Extent::whole(tokens));
        if !self.make_room(twice, effects) {
            return false;
        }
        let slot = &self.slots[&sequence];
        let above = self.trie.path(slot.end).len();
        let path = self.trie.path(end)[above..]
            .iter()
            .map(|node| self.trie.node(*node).word().segment())
            .collect();
        effects.push(Effect::Edit(Edit::Adopt {
            slot: slot.id,
            tokens,
            path,
        }));
        self.trie.raise_priority(end, slot.priority);
        self.move_end(sequence, end, 0);
        true
    }

    /// Seals the slot's tail below nodes that hold its first `known` tokens, but not
    /// the state that the sequence needs to go on: it keeps its own.
    fn seal_apart(
        &mut self,
        sequence: SequenceId,
        known: usize,
        parent: NodeKey,
        edge: &[TokenId],
        beyond: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let own = Extent {
            tokens: known,
            beyond: beyond + edge.len(),
        };
        let published = Extent {
            tokens: edge.len(),
            beyond,
        };
        let bytes = self.spec.segment_bytes(own) + self.spec.segment_bytes(published);
        if !self.make_room(bytes, effects) {
            return false;
        }
        let slot = self.slots[&sequence].id;
        self.seal_own(sequence, own, effects);
        let sealed = self.new_segment(published);
        effects.push(Effect::Edit(Edit::Seal {
            slot,
            tokens: edge.len(),
            segment: sealed.segment,
        }));
        let (priority, class) = (self.slots[&sequence].priority, self.slots[&sequence].class);
        let node = self.trie.insert(parent, edge, sealed, priority, class);
        self.move_end(sequence, node, self.spec.segment_bytes(own));
        true
    }

    /// Whether a node can be given the state that the slot has at its end.
    fn room_to_restate(
        &mut self,
        sequence: SequenceId,
        end: NodeKey,
        beyond: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let node = self.trie.node(end);
        let own = self.trie.node(node.parent()).end() - self.slots[&sequence].path_tokens;
        let lower = node.edge().len();
        // Held by nobody but by who asks.
        let bytes = self.spec.segment_bytes(Extent {
            tokens: own + lower,
            beyond,
        });
        node.holders() == 1 && self.make_room(2 * bytes, effects)
    }

    /// Gives the node at `end`, which cannot be resumed at, a segment that can: the
    /// last of the slot's first `known` tail tokens.
    fn restate(
        &mut self,
        sequence: SequenceId,
        known: usize,
        end: NodeKey,
        beyond: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let edge = self.trie.node(end).edge().len();
        let extent = Extent {
            tokens: edge,
            beyond,
        };
        let sealed = self.new_segment(extent);
        let Some(gone) = self.trie.replace(end, sealed) else {
            return false;
        };
        let own = Extent {
            tokens: known - edge,
            beyond: beyond + edge,
        };
        let mut own_bytes = 0;
        if own.tokens > 0 {
            own_bytes = self.spec.segment_bytes(own);
            self.seal_own(sequence, own, effects);
        }
        let slot = self.slots[&sequence].id;
        effects.push(Effect::Edit(Edit::Seal {
            slot,
            tokens: edge,
            segment: sealed.segment,
        }));
        effects.push(Effect::Edit(Edit::Drop { segment: gone }));
        self.move_end(sequence, end, own_bytes);
        self.resumes_at(end)
    }

    /// Seals tokens that stay the slot's own: no id remains for them.
    fn seal_own(&mut self, sequence: SequenceId, own: Extent, effects: &mut Vec<Effect>) {
        let segment = self.next_segment();
        let slot = self.slots[&sequence].id;
        effects.push(Effect::Edit(Edit::Seal {
            slot,
            tokens: own.tokens,
            segment,
        }));
        effects.push(Effect::Edit(Edit::Drop { segment }));
    }

    /// The slot's path ends at `end` now, below where it ended.
    fn move_end(&mut self, sequence: SequenceId, end: NodeKey, more_own_bytes: usize) {
        self.trie.hold(end);
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        self.trie.release(slot.end);
        slot.end = end;
        slot.path_tokens = self.trie.node(end).end();
        slot.own_bytes += more_own_bytes;
        self.own_bytes += more_own_bytes;
        let (tokens_max, keep) = (slot.tokens_max, slot.keep);
        self.reserve(sequence, end, tokens_max, keep);
    }

    pub(super) fn reserve(
        &mut self,
        sequence: SequenceId,
        end: NodeKey,
        tokens_max: usize,
        keep: Option<usize>,
    ) {
        let bytes = self.reservation(end, tokens_max, keep);
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        self.reserved_bytes -= std::mem::replace(&mut slot.reserved_bytes, bytes);
        self.reserved_bytes += bytes;
    }

    fn new_segment(&mut self, extent: Extent) -> Sealed {
        Sealed {
            segment: self.next_segment(),
            beyond: extent.beyond,
            bytes: self.spec.segment_bytes(extent),
        }
    }
}
