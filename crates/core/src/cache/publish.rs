//! Tails of slots that go on become segments: for one who waits, and at restore points.

use super::trie::NodeKey;
use super::{CacheCore, CacheError, Effect, Slot};
use crate::protocol::{Edit, Extent};
use crate::{SequenceId, TokenId};

impl CacheCore {
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
            .get_mut(&sequence)
            .ok_or(CacheError::UnknownSequence(sequence))?;
        if at > computed {
            return Err(CacheError::BeyondSource {
                sequence,
                at,
                computed,
            });
        }
        slot.computed = computed;
        let tail = slot.exact_tail(generated, at);
        let usable = at == computed || self.spec.resumes_anywhere();
        if usable && !tail.is_empty() {
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
        let Some((shared_end, known)) = self.hold_known(slot.end, tail, effects) else {
            return false;
        };
        let (rest, resumes) = (&tail[known..], self.resumes_at(shared_end));
        let done = match (known, rest) {
            (0, _) => self.seal(sequence, 0, shared_end, rest, beyond, effects),
            (_, []) if resumes => self.adopt(sequence, known, shared_end, beyond, effects),
            (_, []) => self.restate(sequence, known, shared_end, beyond, effects),
            _ if resumes => {
                self.adopt(sequence, known, shared_end, beyond + rest.len(), effects)
                    && self.seal(sequence, 0, shared_end, rest, beyond, effects)
            }
            // What is known lacks the state that the sequence needs to go on.
            _ => self.seal(sequence, known, shared_end, rest, beyond, effects),
        };
        self.trie.release(shared_end);
        done && self.resumes_at(self.slots[&sequence].end)
    }

    /// Finds how much of `tail` the trie holds below `end`, and cuts the node within which
    /// that ends. Returns the last node, held so that making room does not evict what this
    /// is about, and how many tokens. None where there is no room for the cut.
    pub(super) fn hold_known(
        &mut self,
        end: NodeKey,
        tail: &[TokenId],
        effects: &mut Vec<Effect>,
    ) -> Option<(NodeKey, usize)> {
        let found = self.trie.find(end, tail);
        let known = found.tokens_with_partial();
        let mut shared_end = found.path.last().copied().unwrap_or(end);
        self.trie.hold(shared_end);
        if let Some((node, at)) = found.partial {
            let Some(upper) = self.split(node, at, effects) else {
                self.trie.release(shared_end);
                return None;
            };
            self.trie.move_hold(shared_end, upper);
            shared_end = upper;
        }
        Some((shared_end, known))
    }

    /// Seals the slot's tail and hangs it below `parent`, which holds the first
    /// `own_tokens` of it too: these the slot seals for itself only. False when there is
    /// no room.
    fn seal(
        &mut self,
        sequence: SequenceId,
        own_tokens: usize,
        parent: NodeKey,
        edge: &[TokenId],
        beyond: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let published = Extent {
            tokens: edge.len(),
            beyond,
        };
        let own = Extent {
            tokens: own_tokens,
            beyond: beyond + edge.len(),
        };
        let bytes = match own.tokens + beyond {
            0 => self.whole_bytes(sequence, published.tokens),
            _ => self.cut_bytes(own, published),
        };
        if !self.make_room(bytes, effects) {
            return false;
        }
        self.seal_own(sequence, own, effects);
        let sealed = self.new_segment(published);
        let slot = &self.slots[&sequence];
        effects.push(Effect::Edit(Edit::Seal {
            slot: slot.id,
            tokens: edge.len(),
            segment: sealed.segment,
        }));
        let node = self
            .trie
            .insert(parent, edge, sealed, slot.priority, slot.class);
        self.move_end(sequence, node, self.spec.segment_bytes(own));
        true
    }

    /// Gives up the first `tokens` tokens of the slot's tail for nodes below its path
    /// that hold the same.
    fn adopt(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
        end: NodeKey,
        beyond: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        // What is given up is cut off first: for a moment it exists twice.
        let twice = self.spec.segment_bytes(Extent { tokens, beyond });
        if !self.make_room(twice + self.moving_bytes(beyond), effects) {
            return false;
        }
        let slot = &self.slots[&sequence];
        let above = self.trie.path(slot.end).len();
        let path = self.trie.segments(end).split_off(above);
        effects.push(Effect::Edit(Edit::Adopt {
            slot: slot.id,
            tokens,
            path,
        }));
        self.trie.raise_priority(end, slot.priority);
        self.move_end(sequence, end, 0);
        true
    }

    /// Gives the node at `end`, which cannot be resumed at, a segment that can: the
    /// last of the slot's first `known` tail tokens. Whoever holds the node goes on
    /// with the new segment, which holds all that the old one does.
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
        let own = Extent {
            tokens: known - edge,
            beyond: beyond + edge,
        };
        // A window may reach further back than this node's state would.
        let bytes = self.cut_bytes(own, extent);
        if !self.would_resume(end, extent) || !self.make_room(bytes, effects) {
            return false;
        }
        let sealed = self.new_segment(extent);
        self.withdraw(end);
        let Some(gone) = self.trie.replace(end, sealed) else {
            return false;
        };
        self.seal_own(sequence, own, effects);
        let slot = &self.slots[&sequence];
        let priority = slot.priority;
        effects.push(Effect::Edit(Edit::Seal {
            slot: slot.id,
            tokens: edge,
            segment: sealed.segment,
        }));
        effects.push(Effect::Edit(Edit::Replace {
            segment: gone,
            by: sealed.segment,
        }));
        self.trie.raise_priority(end, priority);
        self.move_end(sequence, end, self.spec.segment_bytes(own));
        true
    }

    /// Seals tokens that stay the slot's own, if any: no id remains for them.
    fn seal_own(&mut self, sequence: SequenceId, own: Extent, effects: &mut Vec<Effect>) {
        if own.tokens == 0 {
            return;
        }
        let segment = self.next_segment();
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        slot.has_own_segments = true;
        effects.push(Effect::Edit(Edit::Seal {
            slot: slot.id,
            tokens: own.tokens,
            segment,
        }));
        effects.push(Effect::Edit(Edit::Drop { segment }));
    }

    /// What it takes to seal a tail of `tokens` tokens as a whole: its memory becomes the
    /// segment's, and the slot is to have room for another.
    fn whole_bytes(&self, sequence: SequenceId, tokens: usize) -> usize {
        let slot = &self.slots[&sequence];
        let sealed = self.spec.segment_bytes(Extent::whole(tokens));
        // A slot that will be shifted may not reserve less for what is sealed.
        let room = match slot.keep {
            None => slot.tokens_max - slot.path_tokens - tokens,
            Some(_) => slot.tokens_max,
        };
        (sealed + self.spec.tail_bytes(room)).saturating_sub(slot.reserved_bytes)
    }

    /// What it takes to seal a tail in two parts, the first of which may be none.
    fn cut_bytes(&self, own: Extent, rest: Extent) -> usize {
        let behind = match own.tokens {
            0 => rest.beyond,
            _ => own.beyond,
        };
        let sealed = self.spec.segment_bytes(own) + self.spec.segment_bytes(rest);
        sealed + self.moving_bytes(behind)
    }

    /// The slot's path ends at `end` from now on.
    pub(super) fn move_end(&mut self, sequence: SequenceId, end: NodeKey, more_own_bytes: usize) {
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        self.trie.move_hold(slot.end, end);
        slot.end = end;
        slot.path_tokens = self.trie.node(end).end();
        slot.own_bytes += more_own_bytes;
        self.own_bytes += more_own_bytes;
        self.reserve(sequence);
    }
}

impl Slot {
    /// The tokens between the path's end and `at`, as far as their state is exact.
    /// `generated` are those after the ones that the slot knows.
    pub(super) fn exact_tail(&self, generated: &[TokenId], at: usize) -> Vec<TokenId> {
        let known = self.tokens.iter().chain(generated).copied();
        let exact = known.take(at.min(self.exact_tokens));
        exact.skip(self.path_tokens).collect()
    }
}
