//! The byte budget: what is sealed and what is reserved never exceed it.

use super::trie::{Evicted, Keeping, NodeKey, Sealed};
use super::{CacheCore, Effect};
use crate::SequenceId;
use crate::protocol::{Edit, Extent};
use motet_sync::planted::{self, Bug};

/// Nodes that may be merged and are remembered; older ones are forgotten, which costs
/// a longer path.
const MERGEABLE_MAX: usize = 1024;

impl CacheCore {
    /// Evicts until `bytes` more fit. False, and nothing is evicted, when even that is not
    /// enough.
    pub(super) fn make_room(&mut self, bytes: usize, effects: &mut Vec<Effect>) -> bool {
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

    /// What the tail of a slot whose path ends at `end` may grow to. One that will be
    /// shifted keeps only nodes within what it keeps; the rest moves into its tail.
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

    /// Reserves what the slot's path, as it is now, and its grant, as it is now, ask for.
    /// Whoever has changed one of them has made the room.
    pub(super) fn reserve(&mut self, sequence: SequenceId) {
        let slot = &self.slots[&sequence];
        let reserved_bytes = self.reservation(slot.end, slot.tokens_max, slot.keep);
        let slot = self.slots.get_mut(&sequence).expect("the slot is live");
        self.reserved_bytes -= std::mem::replace(&mut slot.reserved_bytes, reserved_bytes);
        self.reserved_bytes += reserved_bytes;
    }

    /// The last node on the way down to `end` that ends within the first `tokens`.
    pub(super) fn within(&self, end: NodeKey, tokens: usize) -> NodeKey {
        let mut at = end;
        while self.trie.node(at).end() > tokens {
            at = self.trie.node(at).parent();
        }
        at
    }

    /// What is moved to make a compact segment of the front of a tail: the `beyond`
    /// tokens behind it, into a buffer with room for one more.
    pub(super) fn moving_bytes(&self, beyond: usize) -> usize {
        match beyond {
            0 => 0,
            _ => self.spec.tail_bytes(beyond + 1),
        }
    }

    /// Whether a sequence can start at the end of this node.
    pub(super) fn resumes_at(&self, end: NodeKey) -> bool {
        self.spec.resumes_anywhere() || self.spec.can_resume(&self.extents(end))
    }

    /// Whether a sequence could start at the end of this node if its segment were of this
    /// extent.
    pub(super) fn would_resume(&self, end: NodeKey, extent: Extent) -> bool {
        let mut extents = self.extents(self.trie.node(end).parent());
        extents.push(extent);
        self.spec.can_resume(&extents)
    }

    /// The sizes of the segments on the way down to `end`.
    pub(super) fn extents(&self, end: NodeKey) -> Vec<Extent> {
        let path = self.trie.path(end);
        path.iter()
            .map(|node| self.trie.node(*node).extent())
            .collect()
    }

    /// A name for a segment of this size.
    pub(super) fn new_segment(&mut self, extent: Extent) -> Sealed {
        Sealed {
            segment: self.next_segment(),
            beyond: extent.beyond,
            bytes: self.spec.segment_bytes(extent),
        }
    }

    /// Notes that a node was evicted.
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

    /// Cuts a node's segment after `at` tokens, for all who use it. Returns the new
    /// upper node; `None` when there is no room, or somebody outside reads it now.
    pub(super) fn split(
        &mut self,
        node: NodeKey,
        at: usize,
        effects: &mut Vec<Effect>,
    ) -> Option<NodeKey> {
        let whole = self.trie.node(node);
        let (upper, lower) = whole.extent().cut(at);
        let segment = whole.word().segment();
        let bytes = self.spec.segment_bytes(upper) + self.spec.segment_bytes(lower);
        // Both parts exist beside the whole for a moment.
        let holds = !planted::errs(Bug::HeldEvicted);
        if holds {
            self.trie.hold(node);
        }
        let fits = self.make_room(bytes, effects);
        if holds {
            self.trie.release(node);
        }
        if !fits {
            return None;
        }
        let (upper, lower) = (self.new_segment(upper), self.new_segment(lower));
        self.withdraw(node);
        let keeping = self.trie.node(node).keeping();
        let above = self.trie.split(node, at, upper, lower)?;
        // The whole's copy serves both, as far as a part of it is of use.
        if let Keeping::Kept(copy) = keeping
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
