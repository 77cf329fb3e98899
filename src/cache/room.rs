//! The byte budget: what is sealed and what is reserved never exceed it.

use std::collections::BTreeSet;

use super::trie::NodeKey;
use super::{CacheCore, Effect, PathNode};
use crate::device::Edit;
use crate::model::Extent;

impl CacheCore {
    /// Evicts until `bytes` more fit. False, as far as can be seen before anything is
    /// evicted, when even that is not enough.
    pub(super) fn make_room(&mut self, bytes: usize, effects: &mut Vec<Effect>) -> bool {
        let wanted = self.sealed_bytes + self.reserved_bytes + bytes;
        if wanted > self.config.device_bytes_max
            && self.leased_bytes() + self.reserved_bytes + bytes > self.config.device_bytes_max
        {
            return false;
        }
        while self.sealed_bytes + self.reserved_bytes + bytes > self.config.device_bytes_max {
            let Some((segment, tokens)) = self.trie.evict_oldest() else {
                return false;
            };
            self.sealed_bytes -= self.spec.segment_bytes(Extent::whole(tokens));
            self.evicted_segments += 1;
            effects.push(Effect::Edit(Edit::Drop { segment }));
        }
        true
    }

    /// Bytes of segments that live slots use.
    fn leased_bytes(&self) -> usize {
        let used: BTreeSet<NodeKey> = self
            .slots
            .values()
            .flat_map(|slot| slot.path.iter().map(|step| step.node))
            .collect();
        let tokens = used.iter().map(|node| self.trie.node(*node).edge().len());
        tokens
            .map(|tokens| self.spec.segment_bytes(Extent::whole(tokens)))
            .sum()
    }

    /// Cuts a node's segment after `at` tokens, for all who use it. Returns the new
    /// upper node; `None` when the state cannot be cut or copied now.
    pub(super) fn split(
        &mut self,
        node: NodeKey,
        at: usize,
        effects: &mut Vec<Effect>,
    ) -> Option<NodeKey> {
        if !self.spec.resumes_anywhere() {
            return None;
        }
        let word = self.trie.node(node).word().clone();
        let users = self
            .slots
            .values()
            .filter(|slot| slot.path.iter().any(|step| step.node == node))
            .count();
        if word.leases() != users {
            // Somebody outside the slots reads the segment just now.
            return None;
        }
        let held = word.lease()?;
        let bytes = self
            .spec
            .segment_bytes(Extent::whole(self.trie.node(node).edge().len()));
        // Both halves exist beside the whole for a moment.
        let fits = self.make_room(bytes, effects);
        drop(held);
        if !fits {
            return None;
        }
        let (upper, lower) = (self.next_segment(), self.next_segment());
        effects.push(Effect::Edit(Edit::Split {
            segment: word.segment(),
            at,
            upper,
            lower,
        }));
        let above = self.trie.split(node, at, upper, lower);
        self.follow_split(node, above);
        assert!(word.try_evict(), "nobody uses the whole after its split");
        Some(above)
    }

    /// A lease of `node`, unless it is the root, which needs none.
    pub(super) fn lease_or_root(&self, node: NodeKey) -> Option<PathNode> {
        (node != self.trie.root()).then(|| self.lease(node))
    }

    /// Replaces the lease of a node that was split by leases of both halves.
    fn follow_split(&mut self, node: NodeKey, above: NodeKey) {
        let halves = |core: &Self| [core.lease(above), core.lease(node)];
        let users: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(sequence, slot)| {
                let at = slot.path.iter().position(|step| step.node == node)?;
                Some((*sequence, at))
            })
            .collect();
        for (sequence, at) in users {
            let halves = halves(self);
            let slot = self.slots.get_mut(&sequence).expect("a user is alive");
            slot.path.splice(at..=at, halves);
        }
    }
}
