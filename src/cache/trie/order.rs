//! Holding, using, and who is evicted next.

use super::{NodeKey, Trie};
use crate::{SegmentId, TokenId};

/// Candidates whose rank has risen that one eviction puts back at most.
const PUT_BACK_MAX: usize = 16;

/// What an eviction has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The segment.
    pub segment: SegmentId,
    /// Tokens that it cached.
    pub tokens: usize,
    /// Device bytes.
    pub bytes: usize,
    /// The node above, if it has one child left.
    pub merge_at: Option<NodeKey>,
}

impl Trie {
    /// Holds a path: none of its nodes is evicted until it is released.
    pub fn hold(&mut self, end: NodeKey) {
        let mut at = end;
        loop {
            let node = &mut self.nodes[at];
            node.holders += 1;
            let (first, root, parent) = (node.holders == 1, node.is_root(), node.parent);
            if root {
                return;
            }
            if first {
                node.lease = node.word.lease();
                assert!(node.lease.is_some(), "what is in the trie is not evicted");
                self.protected_bytes += node.bytes;
                self.unlist(at);
            }
            at = parent;
        }
    }

    /// Releases a path that was held.
    pub fn release(&mut self, end: NodeKey) {
        let mut at = end;
        loop {
            let node = &mut self.nodes[at];
            assert!(node.holders > 0, "what is released was held");
            node.holders -= 1;
            let (last, root, parent) = (node.holders == 0, node.is_root(), node.parent);
            if root {
                self.drop_empty_root(at);
                return;
            }
            if last {
                node.lease = None;
                self.protected_bytes -= node.bytes;
                self.list_if_free(at);
            }
            at = parent;
        }
    }

    /// Notes that a sequence uses a path now.
    pub fn use_path(&mut self, end: NodeKey) {
        self.tick += 1;
        let mut at = end;
        while !self.nodes[at].is_root() {
            let node = &mut self.nodes[at];
            self.policy.used(&node.facts(), self.tick);
            node.hits = node.hits.saturating_add(1);
            node.last_use = self.tick;
            let parent = node.parent;
            if node.rank.is_some() {
                self.relist(at);
            }
            at = parent;
        }
    }

    /// Notes that a path is still of use, which is no new use of it.
    pub fn touch(&mut self, end: NodeKey) {
        self.tick += 1;
        let mut at = end;
        while !self.nodes[at].is_root() {
            let node = &mut self.nodes[at];
            node.last_use = self.tick;
            let parent = node.parent;
            if node.rank.is_some() {
                self.relist(at);
            }
            at = parent;
        }
    }

    /// Evicts the node that the policy wants most to go, of those that nobody holds.
    pub fn evict(&mut self) -> Option<Evicted> {
        for _ in 0..PUT_BACK_MAX {
            let &(_, rank, key) = self.order.first()?;
            if self.policy.rank(&self.nodes[key].facts(), self.tick) <= rank {
                break;
            }
            self.relist(key);
        }
        let free = |standing: &&super::Standing| self.nodes[standing.2].word.try_evict();
        let &(_, _, victim) = self.order.iter().find(free)?;
        self.unlist(victim);
        Some(self.take_out(victim))
    }

    /// Evicts everything below `root` that nobody holds.
    pub fn clear(&mut self, root: NodeKey) -> Vec<Evicted> {
        // Parents before children; so children go first from the end.
        let mut nodes = vec![root];
        let mut next = 0;
        while let Some(&node) = nodes.get(next) {
            nodes.extend(self.nodes[node].children());
            next += 1;
        }
        let mut evicted = Vec::new();
        for &node in nodes[1..].iter().rev() {
            if self.nodes[node].rank.is_some() && self.nodes[node].word.try_evict() {
                self.unlist(node);
                evicted.push(self.take_out(node));
            }
        }
        evicted
    }

    /// Makes the part below `end` that was used last, and that does not go on with
    /// `next`, the first to go.
    pub fn forsake(&mut self, end: NodeKey, next: Option<TokenId>) {
        let children = self.nodes[end].children.iter();
        let others = children.filter(|(first, _)| Some(*first) != next);
        let Some((_, last)) = others.max_by_key(|(_, child)| (self.nodes[*child].last_use, *child))
        else {
            return;
        };
        let mut below = vec![last];
        while let Some(key) = below.pop() {
            below.extend(self.nodes[key].children());
            let node = &mut self.nodes[key];
            node.last_use = 0;
            node.hits = 0;
            if node.rank.is_some() {
                self.relist(key);
            }
        }
    }

    fn take_out(&mut self, victim: NodeKey) -> Evicted {
        let node = self.remove_leaf(victim);
        self.policy.evicted(&node.facts(), self.tick);
        let above = self.nodes.get(node.parent);
        let lone = above.is_some_and(|above| above.children.len() == 1);
        Evicted {
            segment: node.word.segment(),
            tokens: node.edge.len(),
            bytes: node.bytes,
            merge_at: lone.then_some(node.parent),
        }
    }

    /// Puts a node that may go into the order.
    pub(super) fn list_if_free(&mut self, key: NodeKey) {
        let node = &self.nodes[key];
        if node.is_root() || node.holders > 0 || !node.children.is_empty() {
            return;
        }
        let rank = self.policy.rank(&node.facts(), self.tick);
        let standing = (node.priority, rank, key);
        self.nodes[key].rank = Some(rank);
        self.order.insert(standing);
    }

    pub(super) fn unlist(&mut self, key: NodeKey) {
        let node = &mut self.nodes[key];
        if let Some(rank) = node.rank.take() {
            self.order.remove(&(node.priority, rank, key));
        }
    }

    pub(super) fn relist(&mut self, key: NodeKey) {
        self.unlist(key);
        self.list_if_free(key);
    }
}
