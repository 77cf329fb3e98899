//! Holding, using, and who is evicted next.

use std::cmp::Reverse;

use smallvec::{SmallVec, smallvec};

use super::{Asked, Class, Node, NodeKey, OffloadState, SequenceMark, Trie};
use crate::cache::message::Flush;
use crate::cache::miss::{MARK_TOKENS, prefix_mark};
use crate::cache::salt::Salt;
use crate::{SegmentId, TokenId};

/// What an eviction has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The segment.
    pub segment: SegmentId,
    /// Tokens that it cached.
    pub tokens: usize,
    /// Device bytes.
    pub bytes: usize,
    /// A mark of the prefix up to its first token, unless its salt is private.
    pub(crate) mark: Option<u64>,
    /// The node above, if it has one child left.
    pub merge_at: Option<NodeKey>,
}

impl Trie {
    /// Holds a path: none of its nodes is evicted until it is released.
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
                assert!(node.lease.is_some(), "what is in the trie is not evicted");
                self.protected_bytes += node.bytes;
                self.unlist(at);
            }
            at = parent;
        }
    }

    /// Holds another path instead of one that was held. What both lead through is held
    /// throughout.
    pub fn move_hold(&mut self, from: NodeKey, to: NodeKey) {
        self.hold(to);
        self.release(from);
    }

    /// Releases a path that was held.
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
        assert!(node.ref_count > 0, "what is released was held");
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

    /// Asks the policy what to make of a sequence of this salt that begins with the path
    /// to `end` cached. What the policy says it leaves behind is classed anew.
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

    /// Releases the path of a sequence that is over, and tells the policy where it ends.
    /// It was of use until now.
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

    /// Notes that a sequence uses a path now.
    pub fn use_path(&mut self, end: NodeKey, class: Class) {
        self.tick += 1;
        self.renew(end, |node| {
            node.class = class;
            node.hits = node.hits.saturating_add(1);
        });
    }

    /// Notes that a path is still of use, which is no new use of it.
    pub fn touch(&mut self, end: NodeKey) {
        self.tick += 1;
        self.renew(end, |_| {});
    }

    /// Evicts the node that the policy wants most to go, of those that nobody holds.
    pub fn evict(&mut self) -> Option<Evicted> {
        let victim = self.victim()?;
        self.unlist(victim);
        Some(self.take_out(victim))
    }

    /// Evicts everything below `root` that nobody holds.
    pub fn clear(&mut self, root: NodeKey) -> Vec<Evicted> {
        self.clear_all(&self.below(root)[1..])
    }

    /// Evicts a node and everything below it, but for what somebody holds.
    pub(crate) fn clear_with(&mut self, node: NodeKey) -> Vec<Evicted> {
        self.clear_all(&self.below(node))
    }

    /// A node and all below it, parents before their children.
    pub(crate) fn below(&self, node: NodeKey) -> Vec<NodeKey> {
        let mut nodes = vec![node];
        let mut next = 0;
        while let Some(&node) = nodes.get(next) {
            nodes.extend(self.nodes[node].children());
            next += 1;
        }
        nodes
    }

    /// Evicts those of these nodes that nobody holds, the last first.
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

    /// Makes the part below `end` that was used last, and that does not go on with
    /// `next`, the first to go.
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

    /// Nodes that nobody holds and nobody has thought of keeping, if that is noted, coldest
    /// first; about `count`.
    #[must_use]
    pub fn coldest_not_offloaded(&self, count: usize) -> Vec<NodeKey> {
        let Some(not_offloaded) = &self.not_offloaded else {
            return Vec::new();
        };
        let mut coldest: Vec<(u8, u64, u64, NodeKey)> = Vec::new();
        let mut oldest = not_offloaded.order.first();
        while let Some(&(priority, class, ..)) = oldest {
            let begin = (priority, class, 0, NodeKey::default());
            // No tick is as late.
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

    /// Nodes that are in no copy, held or not, which together take about `bytes_max`; one at
    /// least. First what is kept most dearly, then what was used last: so a node follows its
    /// parent.
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

    /// The next to go, its word won. Of the lowest retention priority, the class in
    /// which something is worth least; and of each class, what was used longest ago
    /// or most recently: in between nothing is worth less than both, unless chances
    /// of reuse rise and fall more than once.
    fn victim(&self) -> Option<NodeKey> {
        let mut oldest = self.order.first();
        let priority = oldest?.0;
        let mut least: Option<(u64, u64, NodeKey)> = None;
        while let Some(&(_, class, ..)) = oldest.filter(|eviction_rank| eviction_rank.0 == priority)
        {
            // No tick is as late.
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
        // Somebody outside reads the first choice: then any that is free.
        least.or_else(|| {
            self.order
                .iter()
                .map(|eviction_rank| eviction_rank.3)
                .find(free)
        })
    }

    /// Notes on a whole path that it is of use now.
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

    /// Puts a node that may go into the order, and one that nobody holds among what is
    /// not kept, if that is noted and it is not.
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

    /// Takes a node out of both, if it is there: before its standing or its bytes change.
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
