//! Seals tails of slots that continue: for waiting requests, for forks, and at restore points.

use super::trie::NodeKey;
use super::{CacheCore, CacheError, Effect};
use motet_protocol::{Edit, SegmentSize};
use motet_protocol::{SequenceId, TokenId};

impl CacheCore {
    /// Shares the computed tokens of a live sequence up to `at`.
    pub(super) fn share(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        generated: &[TokenId],
        at: usize,
        effects: &mut Vec<Effect>,
    ) -> Result<(), CacheError> {
        let slot = self.slots.get(sequence);
        let slot = slot.ok_or(CacheError::UnknownSequence(sequence))?;
        if at > computed {
            return Err(CacheError::PastComputed {
                sequence,
                at,
                computed,
            });
        }
        let tail = slot.exact_tail(generated, at);
        self.slots.set_computed(sequence, computed);
        let usable = at == computed || self.spec.resumes_anywhere();
        if usable && !tail.is_empty() {
            self.seal_tail(sequence, &tail, computed, effects);
        }
        Ok(())
    }

    /// Seals the slot's tail up to `at` tokens of its prompt, if that is possible now and
    /// useful. The slot's path then ends there.
    pub(super) fn seal_for_others(
        &mut self,
        sequence: SequenceId,
        at: usize,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let slot = self.slots.get(sequence);
        let Some(tail) = slot.and_then(|slot| slot.known_tail(at)) else {
            return false;
        };
        if at != computed && !self.spec.resumes_anywhere() {
            return false;
        }
        let tail = tail.to_vec();
        self.seal_tail(sequence, &tail, computed, effects)
    }

    /// Seals `tail`, the first tokens of the slot's tail, as far as the trie does not hold
    /// their state already. Returns whether a sequence can start there now.
    fn seal_tail(
        &mut self,
        sequence: SequenceId,
        tail: &[TokenId],
        computed: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let slot = &self.slots[sequence];
        let state_lag = computed - slot.path_tokens() - tail.len();
        let Some((shared_end, known)) = self.hold_known(sequence, tail, effects) else {
            return false;
        };
        let (rest, resumes) = (&tail[known..], self.resumes_at(shared_end));
        let done = match (known, rest) {
            (0, _) => self.seal(sequence, 0, shared_end, rest, state_lag, effects),
            (_, []) if resumes => {
                self.share_existing(sequence, known, shared_end, state_lag, effects)
            }
            (_, []) => self.reseal(sequence, known, shared_end, state_lag, effects),
            _ if resumes => {
                self.share_existing(sequence, known, shared_end, state_lag + rest.len(), effects)
                    && self.seal(sequence, 0, shared_end, rest, state_lag, effects)
            }
            // The known nodes lack the state that the sequence needs to continue.
            _ => self.seal(sequence, known, shared_end, rest, state_lag, effects),
        };
        self.trie.release(shared_end);
        done && self.resumes_at(self.slots[sequence].end())
    }

    /// Finds how much of the slot's `tail` the trie holds below its path, and splits the node within which
    /// that part ends. Returns the last node and the number of tokens. The node is held, so
    /// that the evictions that follow spare it. `None` if there is no memory for the split.
    pub(super) fn hold_known(
        &mut self,
        sequence: SequenceId,
        tail: &[TokenId],
        effects: &mut Vec<Effect>,
    ) -> Option<(NodeKey, usize)> {
        let slot = &self.slots[sequence];
        let end = slot.end();
        let found = self.trie.find(end, slot.key(), tail);
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

    /// Seals the slot's tail and attaches it below `parent`. `parent` also holds the first
    /// `own_tokens` of the tail; the slot seals those for itself only. False if memory is
    /// short.
    fn seal(
        &mut self,
        sequence: SequenceId,
        own_tokens: usize,
        parent: NodeKey,
        edge: &[TokenId],
        state_lag: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let published = SegmentSize {
            tokens: edge.len(),
            state_lag,
        };
        let own = SegmentSize {
            tokens: own_tokens,
            state_lag: state_lag + edge.len(),
        };
        let bytes = match own.tokens + state_lag {
            0 => self.slots[sequence].bytes_to_seal_whole(published.tokens, &self.spec),
            _ => self.cut_bytes(own, published),
        };
        if !self.evict_to_fit(bytes, effects) {
            return false;
        }
        self.seal_own(sequence, own, effects);
        let sealed = self.new_segment(published);
        let slot = &self.slots[sequence];
        effects.push(Effect::Edit(Edit::Seal {
            slot: slot.id(),
            tokens: edge.len(),
            segment: sealed.segment,
        }));
        let rank = slot.rank();
        let node = self
            .trie
            .insert(parent, slot.key(), edge, sealed, rank.retention, rank.class);
        self.move_end(sequence, node, self.spec.segment_bytes(own));
        true
    }

    /// Replaces the first `tokens` tokens of the slot's tail by nodes below its path that hold
    /// the same tokens.
    fn share_existing(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
        end: NodeKey,
        state_lag: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        // The replaced part is cut off first and exists twice for a moment.
        let twice = self.spec.segment_bytes(SegmentSize { tokens, state_lag });
        if !self.evict_to_fit(twice + self.moving_bytes(state_lag), effects) {
            return false;
        }
        let slot = &self.slots[sequence];
        let above = self.trie.path(slot.end()).len();
        let path = self.trie.segments(end).split_off(above);
        effects.push(Effect::Edit(Edit::ShareExisting {
            slot: slot.id(),
            tokens,
            path,
        }));
        self.trie.raise_retention(end, slot.rank().retention);
        self.move_end(sequence, end, 0);
        true
    }

    /// Gives the node at `end`, which cannot be resumed at, a segment that can: the last of
    /// the slot's first `known` tail tokens. Slots that hold the node continue with the new
    /// segment, which holds all the state of the old one.
    fn reseal(
        &mut self,
        sequence: SequenceId,
        known: usize,
        end: NodeKey,
        state_lag: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let edge = self.trie.node(end).edge().len();
        let segment_size = SegmentSize {
            tokens: edge,
            state_lag,
        };
        let own = SegmentSize {
            tokens: known - edge,
            state_lag: state_lag + edge,
        };
        // A window may reach further back than the state of this node would.
        let bytes = self.cut_bytes(own, segment_size);
        if !self.would_resume(end, segment_size) || !self.evict_to_fit(bytes, effects) {
            return false;
        }
        let sealed = self.new_segment(segment_size);
        self.cancel_export(end);
        let Some(gone) = self.trie.replace(end, sealed) else {
            return false;
        };
        self.seal_own(sequence, own, effects);
        let slot = &self.slots[sequence];
        let retention = slot.rank().retention;
        effects.push(Effect::Edit(Edit::Seal {
            slot: slot.id(),
            tokens: edge,
            segment: sealed.segment,
        }));
        effects.push(Effect::Edit(Edit::Replace {
            segment: gone,
            by: sealed.segment,
        }));
        self.trie.raise_retention(end, retention);
        self.move_end(sequence, end, self.spec.segment_bytes(own));
        true
    }

    /// Seals tokens that stay the slot's own, if any. Their segment id is dropped at once.
    fn seal_own(&mut self, sequence: SequenceId, own: SegmentSize, effects: &mut Vec<Effect>) {
        if own.tokens == 0 {
            return;
        }
        let segment = self.next_segment();
        let slot = self.slots.get_mut(sequence).expect("the slot is live");
        slot.add_own_segment();
        effects.push(Effect::Edit(Edit::Seal {
            slot: slot.id(),
            tokens: own.tokens,
            segment,
        }));
        effects.push(Effect::Edit(Edit::Drop { segment }));
    }

    /// The bytes needed to seal a tail in two parts, the first of which may be empty.
    fn cut_bytes(&self, own: SegmentSize, rest: SegmentSize) -> usize {
        let behind = match own.tokens {
            0 => rest.state_lag,
            _ => own.state_lag,
        };
        let sealed = self.spec.segment_bytes(own) + self.spec.segment_bytes(rest);
        sealed + self.moving_bytes(behind)
    }

    /// Sets the end of the slot's path.
    pub(super) fn move_end(&mut self, sequence: SequenceId, end: NodeKey, more_own_bytes: usize) {
        self.slots
            .move_end(sequence, end, more_own_bytes, &mut self.trie, &self.spec);
    }
}
