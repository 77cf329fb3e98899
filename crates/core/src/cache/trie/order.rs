//! Holding, using and evicting nodes.

use std::cmp::Reverse;

use smallvec::{SmallVec, smallvec};

use super::{Asked, Class, Node, NodeKey, OffloadState, SequenceMark, Trie};
use crate::cache::miss::{MARK_TOKENS, prefix_mark};
use crate::protocol::Salt;
use crate::protocol::cache::Flush;
use crate::{SegmentId, TokenId};

/// The result of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The evicted segment.
    pub segment: SegmentId,
    /// Tokens that it cached.
    pub tokens: usize,
    /// Device bytes.
    pub bytes: usize,
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
            node.ref_count += 1;
            let (first, root, parent) = (node.ref_count == 1, node.is_root(), node.parent);
            if root {
                return;
            }
            if first {
                node.lease = node.lease_count.lease();
                assert!(node.lease.is_some(), "a node in the trie is not evicted");
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
        assert!(node.ref_count > 0, "a released node was held");
        node.ref_count -= 1;
        let parent = node.parent;
        if node.is_root() {
            self.drop_empty_root(at);
        } else if node.ref_count == 0 {
            node.lease = None;
            self.protected_bytes -= node.bytes;
            self.list_if_free(at);
        }
        parent
    }

    /// Asks the policy to class a sequence of this salt that starts with the path to `end`
    /// cached. A node that the policy reports as superseded gets its new class.
    pub fn asked(
        &mut self,
        salt: &Salt,
        end: NodeKey,
        tokens: &[TokenId],
    ) -> (Class, SequenceMark) {
        let answer = self.policy.asked(&Asked {
            salt: salt.fingerprint(),
            tokens,
            cached_tokens: self.nodes[end].end(),
            nodes: self.nodes.len(),
            tick: self.tick,
        });
        if let Some((finished, class)) = answer.superseded
            && self.nodes.get(finished).is_some_and(|node| node.listed)
        {
            self.unlist(finished);
            self.nodes[finished].class = class;
            self.list_if_free(finished);
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
            self.nodes[at].last_use = self.tick;
            at = self.release_one(at);
        }
        self.release_one(at);
    }

    /// Records that a sequence uses a path now.
    pub fn use_path(&mut self, end: NodeKey, class: Class) {
        self.tick += 1;
        self.renew(end, |node| {
            node.class = class;
            node.hits = node.hits.saturating_add(1);
        });
    }

    /// Marks a path as used now without counting a hit.
    pub fn touch(&mut self, end: NodeKey) {
        self.tick += 1;
        self.renew(end, |_| {});
    }

    /// Evicts the node with the lowest score in the lowest retention priority, among leaves
    /// that are not held.
    pub fn evict(&mut self) -> Option<Evicted> {
        let victim = self.victim()?;
        self.unlist(victim);
        Some(self.take_out(victim))
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
            if self.nodes[node].listed && self.nodes[node].lease_count.try_evict() {
                self.unlist(node);
                evicted.push(self.take_out(node));
            }
        }
        evicted
    }

    /// Demotes the most recently used child of `end` that does not start with `next`, and all
    /// nodes below it: they are evicted first.
    pub fn demote(&mut self, end: NodeKey, next: Option<TokenId>) {
        let children = self.nodes[end].children.iter();
        let others = children.filter(|(first, _)| Some(*first) != next);
        let Some((_, last)) = others.max_by_key(|(_, child)| (self.nodes[*child].last_use, *child))
        else {
            return;
        };
        let mut below = vec![last];
        while let Some(key) = below.pop() {
            below.extend(self.nodes[key].children());
            self.unlist(key);
            let node = &mut self.nodes[key];
            node.last_use = 0;
            node.hits = 0;
            self.list_if_free(key);
        }
    }

    /// The coldest nodes without a copy, coldest first, up to `count`. Held, offered and
    /// rejected nodes are left out. Empty unless such nodes are tracked.
    #[must_use]
    pub fn coldest_not_offloaded(&self, count: usize) -> Vec<NodeKey> {
        let Some(not_offloaded) = &self.not_offloaded else {
            return Vec::new();
        };
        let mut coldest: Vec<(u8, u64, u64, NodeKey)> = Vec::new();
        let mut oldest = not_offloaded.order.first();
        while let Some(&(priority, class, ..)) = oldest {
            let begin = (priority, class, 0, NodeKey::default());
            // A tick never gets this large.
            let end = (priority, class, u64::MAX, NodeKey::default());
            let of_class = not_offloaded.order.range(begin..end);
            coldest.extend(of_class.take(count).map(|&(_, _, last_use, key)| {
                let score = self.policy.score(&self.nodes[key].facts(), self.tick);
                (priority, score, last_use, key)
            }));
            oldest = not_offloaded.order.range(end..).next();
        }
        coldest.sort_unstable();
        coldest.truncate(count);
        coldest.into_iter().map(|(.., key)| key).collect()
    }

    /// Nodes without a copy, held or not, of about `bytes_max` bytes in all; at least one if
    /// any exists. The highest retention priority goes first, then the most recently used. A
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
            let rank = (node.priority, node.last_use, Reverse(node.tokens_before));
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
            segment: node.lease_count.segment(),
            tokens: node.edge.len(),
            bytes: node.bytes,
            mark,
            merge_at: lone.then_some(node.parent),
        }
    }

    /// The mark of the prefix up to a node's first token.
    fn mark(&self, key: NodeKey) -> Option<u64> {
        let salt = self.salt_above(key);
        if salt.is_private() {
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
        Some(prefix_mark(salt.fingerprint(), prefix_tokens, &last))
    }

    /// The next node to evict, with its lease count won. It has the lowest score within the
    /// lowest retention priority. In each class only the oldest and the newest node are
    /// compared. A node in between has a lower score than both only if the chances of reuse
    /// rise and fall more than once.
    fn victim(&self) -> Option<NodeKey> {
        let mut oldest = self.order.first();
        let priority = oldest?.0;
        let mut least: Option<(u64, u64, NodeKey)> = None;
        while let Some(&(_, class, ..)) = oldest.filter(|eviction_rank| eviction_rank.0 == priority)
        {
            // A tick never gets this large.
            let end = (priority, class, u64::MAX, NodeKey::default());
            let newest = self.order.range(..end).next_back();
            for &(_, _, last_use, key) in [oldest, newest].into_iter().flatten() {
                let score = self.policy.score(&self.nodes[key].facts(), self.tick);
                if least.is_none_or(|(low, used, _)| (score, last_use) < (low, used)) {
                    least = Some((score, last_use, key));
                }
            }
            oldest = self.order.range(end..).next();
        }
        let free = |key: &NodeKey| self.nodes[*key].lease_count.try_evict();
        let least = least.map(|(_, _, key)| key).filter(free);
        // The first choice is leased outside the trie: take any node that is not.
        least.or_else(|| {
            self.order
                .iter()
                .map(|eviction_rank| eviction_rank.3)
                .find(free)
        })
    }

    /// Marks a whole path as used now.
    fn renew(&mut self, end: NodeKey, note: impl Fn(&mut Node)) {
        let mut at = end;
        while !self.nodes[at].is_root() {
            self.unlist(at);
            let node = &mut self.nodes[at];
            node.last_use = self.tick;
            if node.offload_state == OffloadState::Rejected {
                node.offload_state = OffloadState::NotOffloaded;
            }
            note(node);
            let parent = node.parent;
            self.list_if_free(at);
            at = parent;
        }
    }

    /// Adds an evictable node to the eviction order, and a node that is not held to the nodes
    /// without a copy, if it belongs there.
    pub(super) fn list_if_free(&mut self, key: NodeKey) {
        let node = &mut self.nodes[key];
        if node.is_root() || node.ref_count > 0 {
            return;
        }
        let eviction_rank = node.eviction_rank(key);
        if let Some(not_offloaded) = &mut self.not_offloaded
            && !node.counted
            && !node.offload_state.has_copy()
        {
            node.counted = true;
            not_offloaded.bytes += node.bytes;
            if node.offload_state == OffloadState::NotOffloaded {
                not_offloaded.order.insert(eviction_rank);
            }
        }
        if node.children.is_empty() {
            node.listed = true;
            self.order.insert(eviction_rank);
        }
    }

    /// Removes a node from both orders, before its rank or its bytes change.
    pub(super) fn unlist(&mut self, key: NodeKey) {
        let node = &mut self.nodes[key];
        let eviction_rank = node.eviction_rank(key);
        if std::mem::take(&mut node.listed) {
            self.order.remove(&eviction_rank);
        }
        if let Some(not_offloaded) = &mut self.not_offloaded
            && std::mem::take(&mut node.counted)
        {
            not_offloaded.bytes -= node.bytes;
            not_offloaded.order.remove(&eviction_rank);
        }
    }
}
