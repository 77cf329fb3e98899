//! Holding, using and evicting nodes.

use std::cmp::Reverse;

use smallvec::{SmallVec, smallvec};

use super::{Asked, Class, Facts, Node, NodeKey, OffloadState, SequenceMark, Trie};
use crate::cache::prefix_mark::{MARK_TOKENS, prefix_mark};
use motet_protocol::PrefixKey;
use motet_protocol::cache::Flush;
use motet_protocol::{SegmentId, TokenId};

/// The result of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The evicted segment.
    pub segment: SegmentId,
    /// Tokens that it cached.
    pub tokens: usize,
    /// Device bytes.
    pub bytes: usize,
    /// The node above it.
    pub(crate) above: NodeKey,
    /// The mark of the prefix up to its first token; `None` if its salt is private.
    pub(crate) mark: Option<u64>,
    /// The parent node, if it has one child left.
    pub merge_at: Option<NodeKey>,
}

impl Trie {
    /// Holds a path: none of its nodes is evicted until the path is released.
    pub fn hold(&mut self, end: NodeKey) {
        let mut at = end;
        loop {
            let node = &mut self.nodes[at];
            let is_first = node.hold.add();
            if node.is_root() {
                return;
            }
            let parent = node.parent;
            if is_first {
                self.protected_bytes += node.bytes;
                self.unlist(at);
            }
            at = parent;
        }
    }

    /// Holds another path in place of a held one. Nodes on both paths stay held throughout.
    pub fn move_hold(&mut self, from: NodeKey, to: NodeKey) {
        self.hold(to);
        self.release(from);
    }

    /// Releases a held path.
    pub fn release(&mut self, end: NodeKey) {
        let mut at = end;
        while !self.nodes[at].is_root() {
            at = self.release_one(at);
        }
        self.release_one(at);
    }

    /// Releases one node of a path. Returns its parent.
    fn release_one(&mut self, at: NodeKey) -> NodeKey {
        let node = &mut self.nodes[at];
        let (is_last, parent) = (node.hold.remove(), node.parent);
        if node.is_root() {
            self.drop_empty_root(at);
        } else if is_last {
            self.protected_bytes -= node.bytes;
            self.list_if_free(at);
        }
        parent
    }

    /// Asks the policy to class a sequence of this key that starts with the path to `end`
    /// cached. A node that the policy reports as superseded gets its new class.
    pub fn asked(
        &mut self,
        key: &PrefixKey,
        end: NodeKey,
        tokens: &[TokenId],
    ) -> (Class, SequenceMark) {
        let answer = self.policy.asked(&Asked {
            key: key.fingerprint(),
            tokens,
            cached_tokens: self.nodes[end].end(),
            nodes: self.nodes.len(),
            tick: self.tick,
        });
        if let Some((finished, class)) = answer.superseded
            && self
                .nodes
                .get(finished)
                .is_some_and(|node| node.listing.is_evictable())
        {
            self.change(finished, |node| node.usage.reclass(class));
        }
        (answer.class, answer.sequence_mark)
    }

    /// Releases the path of a finished sequence, and tells the policy where it ends. The path
    /// counts as used until now.
    pub fn leave(&mut self, sequence_mark: SequenceMark, end: NodeKey) {
        self.tick += 1;
        self.policy.finished(sequence_mark, end, self.tick);
        let mut at = end;
        while !self.nodes[at].is_root() {
            let tick = self.tick;
            self.change(at, |node| node.usage.touch(tick));
            at = self.release_one(at);
        }
        self.release_one(at);
    }

    /// Records that a sequence uses a path now.
    pub fn use_path(&mut self, end: NodeKey, class: Class) {
        self.tick += 1;
        self.renew(end, |node| node.usage.hit(class));
    }

    /// Marks a path as used now without counting a hit.
    pub fn touch(&mut self, end: NodeKey) {
        self.tick += 1;
        self.renew(end, |_| {});
    }

    /// Evicts the node with the lowest score in the lowest retention, among leaves
    /// that are not held.
    pub fn evict(&mut self) -> Option<Evicted> {
        let victim = self.victim()?;
        self.unlist(victim);
        Some(self.take_out(victim))
    }

    /// Evicts a leaf that is neither held nor leased.
    pub(crate) fn evict_leaf(&mut self, key: NodeKey) -> Option<Evicted> {
        let node = &self.nodes[key];
        if !node.listing.is_evictable() || !node.lease_count().try_evict() {
            return None;
        }
        self.unlist(key);
        Some(self.take_out(key))
    }

    /// Evicts all nodes below `root` that are not held.
    pub fn clear(&mut self, root: NodeKey) -> Vec<Evicted> {
        self.clear_all(&self.below(root)[1..])
    }

    /// Evicts a node and all nodes below it, except held ones.
    pub(crate) fn clear_with(&mut self, node: NodeKey) -> Vec<Evicted> {
        self.clear_all(&self.below(node))
    }

    /// A node and all nodes below it, parents before their children.
    pub(crate) fn below(&self, node: NodeKey) -> Vec<NodeKey> {
        let mut nodes = vec![node];
        let mut next = 0;
        while let Some(&node) = nodes.get(next) {
            nodes.extend(self.nodes[node].children());
            next += 1;
        }
        nodes
    }

    /// Evicts the given nodes that are not held, the last first.
    fn clear_all(&mut self, nodes: &[NodeKey]) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        for &node in nodes.iter().rev() {
            evicted.extend(self.evict_leaf(node));
        }
        evicted
    }

    /// Demotes the most recently used child of `end` that does not go on with `next` under this key, and
    /// all nodes below it: they are evicted first.
    pub fn demote(&mut self, end: NodeKey, key: &PrefixKey, next: Option<TokenId>) {
        let adapter = self.adapter_after(end, key);
        let next = adapter.zip(next);
        let children = self.nodes[end].children.iter();
        let others = children.filter(|(first, _)| Some((first.adapter, first.token)) != next);
        let Some((_, last)) =
            others.max_by_key(|(_, child)| (self.nodes[*child].last_use(), *child))
        else {
            return;
        };
        let mut below = vec![last];
        while let Some(key) = below.pop() {
            below.extend(self.nodes[key].children());
            self.change(key, |node| node.usage.forget());
        }
    }

    /// The coldest nodes without a copy, coldest first, up to `count`. Held, offered and
    /// rejected nodes are left out. Empty unless such nodes are tracked.
    #[must_use]
    pub fn coldest_not_offloaded(&self, count: usize) -> Vec<NodeKey> {
        self.order
            .coldest_not_offloaded(count, |key| self.score(key))
    }

    /// Nodes without a copy, held or not, of about `bytes_max` bytes in all; at least one if
    /// any exists. The highest retention goes first, then the most recently used. A
    /// child thus comes after its parent.
    #[must_use]
    pub fn hottest_not_offloaded(&mut self, flush: Flush) -> Vec<NodeKey> {
        let keys: Vec<NodeKey> = self.keys().collect();
        let mut hottest = Vec::new();
        for key in keys {
            let offload_state = self.nodes[key].offload_state;
            if offload_state == OffloadState::Rejected && flush.retries {
                self.set_offload_state(key, OffloadState::NotOffloaded);
            } else if offload_state != OffloadState::NotOffloaded {
                continue;
            }
            let node = &self.nodes[key];
            let rank = (
                node.retention(),
                node.last_use(),
                Reverse(node.tokens_before),
            );
            hottest.push((Reverse(rank), key));
        }
        hottest.sort_unstable();
        let mut bytes = 0;
        let is_within = |key: &NodeKey| {
            let fits = bytes < flush.bytes_max || bytes == 0;
            bytes += self.nodes[*key].bytes;
            fits
        };
        let hottest = hottest.into_iter().map(|(_, key)| key);
        hottest.take_while(is_within).collect()
    }

    fn take_out(&mut self, victim: NodeKey) -> Evicted {
        let mark = self.mark(victim);
        let node = self.remove_leaf(victim);
        let above = self.nodes.get(node.parent);
        let lone = above.is_some_and(|above| above.children.len() == 1);
        Evicted {
            segment: node.hold.segment(),
            tokens: node.edge.len(),
            bytes: node.bytes,
            above: node.parent,
            mark,
            merge_at: lone.then_some(node.parent),
        }
    }

    /// The mark of the prefix up to a node's first token.
    fn mark(&self, key: NodeKey) -> Option<u64> {
        let prefix_key = self.key_above(key);
        if prefix_key.is_private() {
            return None;
        }
        let node = &self.nodes[key];
        let mut last: SmallVec<[TokenId; MARK_TOKENS + 1]> = smallvec![node.edge[0]];
        let mut at = node.parent;
        while last.len() <= MARK_TOKENS && !self.nodes[at].is_root() {
            let missing = MARK_TOKENS + 1 - last.len();
            last.extend(self.nodes[at].edge.iter().rev().take(missing).copied());
            at = self.nodes[at].parent;
        }
        last.reverse();
        let prefix_tokens = node.tokens_before as usize + 1;
        Some(prefix_mark(prefix_key.fingerprint(), prefix_tokens, &last))
    }

    /// The next node to evict, with its lease count won.
    fn victim(&self) -> Option<NodeKey> {
        let free = |key: &NodeKey| self.nodes[*key].lease_count().try_evict();
        let least = self.order.lowest(|key| self.score(key)).filter(free);
        // The first choice is leased outside the trie: take any node that is not.
        least.or_else(|| self.order.evictable().find(free))
    }

    /// The score that the policy gives to a node now. A low one is evicted first.
    fn score(&self, key: NodeKey) -> u64 {
        self.policy.score(&self.facts(key), self.tick)
    }

    /// The facts about a node. A leaf counts together with the nodes above it that are of no use
    /// without it, as they go with it.
    fn facts(&self, key: NodeKey) -> Facts {
        let node = &self.nodes[key];
        let mut facts = node.facts();
        if !self.snapshots.is_counting() || !node.children.is_empty() {
            return facts;
        }
        let mut above = &self.nodes[node.parent];
        while !above.is_root()
            && above.children.len() == 1
            && !above.segment_size().has_recurrent_state()
        {
            facts.tokens += above.edge.len();
            facts.tokens_before -= above.edge.len();
            facts.bytes += above.bytes;
            above = &self.nodes[above.parent];
        }
        facts
    }

    /// Marks a whole path as used now.
    fn renew(&mut self, end: NodeKey, note: impl Fn(&mut Node)) {
        let (mut at, tick) = (end, self.tick);
        while !self.nodes[at].is_root() {
            at = self.change(at, |node| {
                node.usage.touch(tick);
                if node.offload_state == OffloadState::Rejected {
                    node.offload_state = OffloadState::NotOffloaded;
                }
                note(node);
                node.parent
            });
        }
    }

    /// Changes a node, and keeps both orders in step with its rank and its bytes.
    pub(super) fn change<T>(&mut self, key: NodeKey, change: impl FnOnce(&mut Node) -> T) -> T {
        self.unlist(key);
        let changed = change(&mut self.nodes[key]);
        self.list_if_free(key);
        changed
    }

    /// Adds an evictable node to the eviction order, and a node that is not held to the nodes
    /// without a copy, if it belongs there.
    pub(super) fn list_if_free(&mut self, key: NodeKey) {
        self.order.list_if_free(key, &mut self.nodes[key]);
    }

    /// Removes a node from both orders, before its rank or its bytes change.
    pub(super) fn unlist(&mut self, key: NodeKey) {
        self.order.unlist(key, &mut self.nodes[key]);
    }
}
