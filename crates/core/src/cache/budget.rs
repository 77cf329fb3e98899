//! The byte budget: sealed bytes and reserved bytes together never exceed it.

use super::trie::{Evicted, NodeKey, OffloadState, Sealed};
use super::{CacheCore, Effect};
use crate::SequenceId;
use crate::protocol::{Edit, SegmentSize};
use motet_sync::injected::{self, Bug};

/// Maximum number of remembered nodes that may be merged. Older ones are forgotten, which
/// costs a longer path.
const MERGEABLE_MAX: usize = 1024;

impl CacheCore {
    /// Evicts until `bytes` more fit. Returns false if even that is not enough; then normally
    /// nothing is evicted.
    pub(super) fn evict_to_fit(&mut self, bytes: usize, effects: &mut Vec<Effect>) -> bool {
        let budget = self.config.device_bytes_max;
        let lasting = self.own_bytes + self.reserved_bytes + self.transit_bytes() + bytes;
        if self.trie.protected_bytes() + lasting > budget {
            return false;
        }
        let evicts = self.trie.bytes() + lasting > budget;
        if evicts && self.trie.protected_bytes() + self.leased_bytes() + lasting > budget {
            return false;
        }
        while self.trie.bytes() + lasting > budget {
            let Some(gone) = self.trie.evict() else {
                return false;
            };
            self.gone(gone, effects);
        }
        true
    }

    /// Device bytes that are free.
    pub(super) fn free_bytes(&self) -> usize {
        let live = self.own_bytes + self.reserved_bytes + self.transit_bytes();
        let used = self.trie.bytes() + live;
        self.config.device_bytes_max.saturating_sub(used)
    }

    /// The bytes that the tail of a slot whose path ends at `end` may grow to. A slot that
    /// will be shifted retains only nodes within its first `keep` tokens; later tokens move
    /// into its tail.
    pub(super) fn reservation(
        &self,
        end: NodeKey,
        tokens_max: usize,
        keep: Option<usize>,
    ) -> usize {
        let sealed = match keep {
            None => self.trie.node(end).end(),
            Some(keep) => self.trie.node(self.within(end, keep)).end(),
        };
        self.spec.tail_bytes(tokens_max.saturating_sub(sealed))
    }

    /// Sets the reservation to what the slot's present path and grant need. The caller that
    /// changed one of them has checked that it fits.
    pub(super) fn reserve(&mut self, sequence: SequenceId) {
        let slot = &self.slots[&sequence];
        let reserved_bytes = self.reservation(slot.end, slot.tokens_max, slot.keep);
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        self.reserved_bytes -= std::mem::replace(&mut slot.reserved_bytes, reserved_bytes);
        self.reserved_bytes += reserved_bytes;
    }

    /// The last node on the path to `end` that ends within the first `tokens` tokens.
    pub(super) fn within(&self, end: NodeKey, tokens: usize) -> NodeKey {
        let mut at = end;
        while self.trie.node(at).end() > tokens {
            at = self.trie.node(at).parent();
        }
        at
    }

    /// Bytes moved to make a compact segment of the front of a tail: the `state_lag` tokens
    /// behind it, into a buffer with room for one more token.
    pub(super) fn moving_bytes(&self, state_lag: usize) -> usize {
        match state_lag {
            0 => 0,
            _ => self.spec.tail_bytes(state_lag + 1),
        }
    }

    /// Whether a sequence can start at the end of this node.
    pub(super) fn resumes_at(&self, end: NodeKey) -> bool {
        self.spec.resumes_anywhere() || self.spec.can_resume(&self.segment_sizes(end))
    }

    /// Whether a sequence could start at the end of this node if its segment had this size.
    pub(super) fn would_resume(&self, end: NodeKey, segment_size: SegmentSize) -> bool {
        let mut segment_sizes = self.segment_sizes(self.trie.node(end).parent());
        segment_sizes.push(segment_size);
        self.spec.can_resume(&segment_sizes)
    }

    /// The sizes of the segments on the path to `end`.
    pub(super) fn segment_sizes(&self, end: NodeKey) -> Vec<SegmentSize> {
        let path = self.trie.path(end);
        path.iter()
            .map(|node| self.trie.node(*node).segment_size())
            .collect()
    }

    /// Names a new segment of this size.
    pub(super) fn new_segment(&mut self, segment_size: SegmentSize) -> Sealed {
        Sealed {
            segment: self.next_segment(),
            state_lag: segment_size.state_lag,
            bytes: self.spec.segment_bytes(segment_size),
        }
    }

    /// Records that a node was evicted.
    pub(super) fn gone(&mut self, evicted: Evicted, effects: &mut Vec<Effect>) {
        self.evicted_segments += 1;
        self.evicted_tokens += evicted.tokens as u64;
        if let Some(mark) = evicted.mark {
            self.evictions.note(mark);
        }
        self.note_gone(evicted.segment);
        if let Some(upper) = evicted.merge_at {
            if self.mergeable.len() == MERGEABLE_MAX {
                self.mergeable.pop_front();
            }
            self.mergeable.push_back(upper);
        }
        effects.push(Effect::Edit(Edit::Drop {
            segment: evicted.segment,
        }));
    }

    /// Splits a node's segment after `at` tokens, for all slots that use it. Returns the new
    /// upper node. `None` if memory is short, or if a lease outside the trie remains.
    pub(super) fn split(
        &mut self,
        node: NodeKey,
        at: usize,
        effects: &mut Vec<Effect>,
    ) -> Option<NodeKey> {
        let whole = self.trie.node(node);
        let (upper, lower) = whole.segment_size().cut(at);
        let segment = whole.lease_count().segment();
        let bytes = self.spec.segment_bytes(upper) + self.spec.segment_bytes(lower);
        // For a moment both parts exist beside the whole.
        let holds = !injected::is_injected(Bug::HeldEvicted);
        if holds {
            self.trie.hold(node);
        }
        let fits = self.evict_to_fit(bytes, effects);
        if holds {
            self.trie.release(node);
        }
        if !fits {
            return None;
        }
        let (upper, lower) = (self.new_segment(upper), self.new_segment(lower));
        self.cancel_export(node);
        let offload_state = self.trie.node(node).offload_state();
        let above = self.trie.split(node, at, upper, lower)?;
        // The copy of the whole serves both nodes, if a part of it is of use.
        if let OffloadState::Offloaded(copy) = offload_state
            && self.spec.resumes_anywhere()
        {
            self.note_copy(above, copy);
        }
        effects.push(Effect::Edit(Edit::Split {
            segment,
            at,
            upper: upper.segment,
            lower: lower.segment,
        }));
        Some(above)
    }
}
