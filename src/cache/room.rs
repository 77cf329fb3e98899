//! The byte budget: what is sealed and what is reserved never exceed it.

use super::trie::{NodeKey, Sealed};
use super::{CacheCore, Effect};
use crate::device::Edit;
use crate::model::Extent;

impl CacheCore {
    /// Evicts until `bytes` more fit. False, as far as can be seen before anything is
    /// evicted, when even that is not enough.
    pub(super) fn make_room(&mut self, bytes: usize, effects: &mut Vec<Effect>) -> bool {
        let budget = self.config.device_bytes_max;
        let lasting = self.own_bytes + self.reserved_bytes + bytes;
        if self.trie.protected_bytes() + lasting > budget {
            return false;
        }
        while self.trie.bytes() + lasting > budget {
            let Some(gone) = self.trie.evict() else {
                return false;
            };
            self.evicted_segments += 1;
            self.mergeable.extend(gone.merge_at);
            effects.push(Effect::Edit(Edit::Drop {
                segment: gone.segment,
            }));
        }
        true
    }

    /// Device bytes that are free.
    pub(super) fn free_bytes(&self) -> usize {
        let used = self.trie.bytes() + self.own_bytes + self.reserved_bytes;
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

    /// The last node on the way down to `end` that ends within the first `tokens`.
    pub(super) fn within(&self, end: NodeKey, tokens: usize) -> NodeKey {
        let mut at = end;
        while self.trie.node(at).end() > tokens {
            at = self.trie.node(at).parent();
        }
        at
    }

    /// Whether a sequence can start at the end of this node.
    pub(super) fn resumes_at(&self, end: NodeKey) -> bool {
        if self.spec.resumes_anywhere() {
            return true;
        }
        let path = self.trie.path(end);
        let extents: Vec<Extent> = path
            .iter()
            .map(|node| self.trie.node(*node).extent())
            .collect();
        self.spec.can_resume(&extents)
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
        self.trie.hold(node);
        let fits = self.make_room(bytes, effects);
        self.trie.release(node);
        if !fits {
            return None;
        }
        let mut part = |extent: Extent| Sealed {
            segment: self.next_segment(),
            beyond: extent.beyond,
            bytes: self.spec.segment_bytes(extent),
        };
        let (upper, lower) = (part(upper), part(lower));
        let above = self.trie.split(node, at, upper, lower)?;
        effects.push(Effect::Edit(Edit::Split {
            segment,
            at,
            upper: upper.segment,
            lower: lower.segment,
        }));
        Some(above)
    }
}
