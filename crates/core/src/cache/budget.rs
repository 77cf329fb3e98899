//! The byte budget: sealed bytes and reserved bytes together never exceed it.

use super::paging::Paging;
use super::trie::{Evicted, NodeKey, OffloadState, Sealed};
use super::{CacheCore, Effect, Salt};
use motet_protocol::SegmentId;
use motet_protocol::{Edit, SegmentSize};
use motet_sync::injected::{self, Bug};

impl CacheCore {
    /// Evicts until `bytes` more fit. Returns false if even that is not enough; then normally
    /// nothing is evicted.
    pub(super) fn evict_to_fit(&mut self, bytes: usize, effects: &mut Vec<Effect>) -> bool {
        let budget = self.config.device_bytes_max;
        let lasting = self.live_bytes() + bytes;
        if self.trie.protected_bytes() + lasting > budget {
            return false;
        }
        let evicts = self.trie.bytes() + lasting > budget;
        if evicts {
            let paging = self.paging.as_ref();
            let leased = paging.map_or(0, |paging| paging.leased_bytes(&self.trie));
            if self.trie.protected_bytes() + leased + lasting > budget {
                return false;
            }
        }
        while self.trie.bytes() + lasting > budget {
            let Some(gone) = self.trie.evict() else {
                return false;
            };
            self.gone(gone, effects);
            self.evict_dead_ends(gone.above, effects);
        }
        true
    }

    /// Device bytes that are free.
    pub(super) fn free_bytes(&self) -> usize {
        let used = self.trie.bytes() + self.live_bytes();
        self.config.device_bytes_max.saturating_sub(used)
    }

    /// Device bytes that eviction cannot free: those of slots, and those in transit.
    fn live_bytes(&self) -> usize {
        self.slots.own_bytes() + self.slots.reserved_bytes() + self.transit_bytes()
    }

    /// Device bytes in transit: neither sealed nor reserved by a slot.
    pub(super) fn transit_bytes(&self) -> usize {
        self.paging.as_ref().map_or(0, Paging::transit_bytes)
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
        self.spec.resumes_anywhere() || self.spec.can_resume(&self.trie.segment_sizes(end))
    }

    /// Whether a sequence could start at the end of this node if its segment had this size.
    pub(super) fn would_resume(&self, end: NodeKey, segment_size: SegmentSize) -> bool {
        let mut segment_sizes = self.trie.segment_sizes(self.trie.node(end).parent());
        segment_sizes.push(segment_size);
        self.spec.can_resume(&segment_sizes)
    }

    /// The id of a new segment.
    pub(super) fn next_segment(&mut self) -> SegmentId {
        self.segments_made += 1;
        SegmentId(self.segments_made)
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
        self.evictions.add(&evicted);
        if let Some(paging) = &mut self.paging {
            paging.note_gone(evicted.segment);
        }
        if let Some(upper) = evicted.merge_at {
            self.mergeable.add(upper);
        }
        effects.push(Effect::Edit(Edit::Drop {
            segment: evicted.segment,
        }));
    }

    /// Evicts all nodes that are not held, of one salt or of all.
    pub(super) fn clear(&mut self, salt: Option<&Salt>, effects: &mut Vec<Effect>) {
        if let Some(paging) = &mut self.paging {
            paging.clear(salt, &mut self.trie);
        }
        let roots = self.trie.roots();
        let chosen = roots.filter(|(of, _)| salt.is_none_or(|salt| salt == *of));
        let chosen: Vec<NodeKey> = chosen.map(|(_, root)| root).collect();
        for root in chosen {
            for gone in self.trie.clear(root) {
                self.gone(gone, effects);
            }
        }
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
