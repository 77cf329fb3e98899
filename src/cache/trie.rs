//! The compressed prefix trie: what is cached, and under which tokens.
//!
//! A node is an *end*: the state after the tokens on the way from the root to it.
//! Its edge is the token range since its parent, and it owns that range's sealed
//! segment. Children are found by the first token of their edge. When an edge is
//! split, the new node is put above and the old key keeps its end, so a key that
//! somebody remembers never changes its meaning.

use std::collections::{BTreeMap, BTreeSet};

use slotmap::{SlotMap, new_key_type};

use crate::shared::lease::LeaseWord;
use crate::{SegmentId, TokenId};

new_key_type! {
    /// A node's name; a removed node's key is never valid again.
    pub struct NodeKey;
}

/// One cached token range.
#[derive(Debug)]
pub struct Node {
    parent: NodeKey,
    edge: Box<[TokenId]>,
    children: BTreeMap<TokenId, NodeKey>,
    word: LeaseWord,
    last_use: u64,
}

/// How far a token list is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Nodes whose edges match in full, from the top.
    pub path: Vec<NodeKey>,
    /// Tokens on that path, counted from where the match started.
    pub tokens: usize,
    /// A child of the path's end that matches only its first tokens, and how many.
    pub partial: Option<(NodeKey, usize)>,
}

/// The trie. Owned by the cache core; holds ids and token ranges, never arrays.
#[derive(Debug)]
pub struct Trie {
    nodes: SlotMap<NodeKey, Node>,
    root: NodeKey,
    /// Leaves by last use: where eviction looks for a victim.
    leaves: BTreeSet<(u64, NodeKey)>,
    tokens: usize,
    clock: u64,
}

impl Node {
    /// The tokens since the parent.
    #[must_use]
    pub fn edge(&self) -> &[TokenId] {
        &self.edge
    }

    /// The word that counts the leases of this node's segment.
    #[must_use]
    pub fn word(&self) -> &LeaseWord {
        &self.word
    }
}

impl Match {
    /// Tokens matched, the partial edge included.
    #[must_use]
    pub fn tokens_with_partial(&self) -> usize {
        self.tokens + self.partial.map_or(0, |(_, tokens)| tokens)
    }
}

impl Trie {
    /// A trie that caches nothing.
    #[must_use]
    pub fn new() -> Self {
        let mut nodes = SlotMap::with_key();
        let root = nodes.insert_with_key(|key| Node {
            parent: key,
            edge: Box::default(),
            children: BTreeMap::new(),
            // The root caches no tokens and owns no segment on the device.
            word: LeaseWord::new(SegmentId(0)),
            last_use: 0,
        });
        Self {
            nodes,
            root,
            leaves: BTreeSet::new(),
            tokens: 0,
            clock: 0,
        }
    }

    /// The node before every first token.
    #[must_use]
    pub fn root(&self) -> NodeKey {
        self.root
    }

    /// A node that is in the trie.
    ///
    /// # Panics
    ///
    /// When it is not.
    #[must_use]
    pub fn node(&self, key: NodeKey) -> &Node {
        &self.nodes[key]
    }

    /// Nodes, the root not counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len() - 1
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens cached.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How far `tokens` are cached below `from`: full edges, then at most one
    /// partial edge.
    #[must_use]
    pub fn find(&self, from: NodeKey, tokens: &[TokenId]) -> Match {
        let mut found = Match::default();
        let mut at = from;
        while let Some(first) = tokens.get(found.tokens)
            && let Some(&child) = self.nodes[at].children.get(first)
        {
            let edge = &self.nodes[child].edge;
            let shared = common_prefix(edge, &tokens[found.tokens..]);
            if shared < edge.len() {
                found.partial = Some((child, shared));
                break;
            }
            found.path.push(child);
            found.tokens += shared;
            at = child;
        }
        found
    }

    /// Adds `edge` below `parent`, used now.
    ///
    /// # Panics
    ///
    /// When `edge` is empty or a child of `parent` begins with the same token.
    pub fn insert(&mut self, parent: NodeKey, edge: &[TokenId], segment: SegmentId) -> NodeKey {
        let key = self.nodes.insert(Node {
            parent,
            edge: edge.into(),
            children: BTreeMap::new(),
            word: LeaseWord::new(segment),
            last_use: 0,
        });
        let before = self.nodes[parent].children.insert(edge[0], key);
        assert!(before.is_none(), "no two edges below a node begin alike");
        self.leaves.remove(&(self.nodes[parent].last_use, parent));
        self.tokens += edge.len();
        self.touch(key);
        key
    }

    /// Cuts a node's edge after `at` tokens. The returned new node holds the upper
    /// part under `upper`; `key` keeps its end and its children, under `lower`.
    ///
    /// # Panics
    ///
    /// Unless `0 < at < edge length`.
    pub fn split(
        &mut self,
        key: NodeKey,
        at: usize,
        upper: SegmentId,
        lower: SegmentId,
    ) -> NodeKey {
        let (parent, last_use) = (self.nodes[key].parent, self.nodes[key].last_use);
        let edge = std::mem::take(&mut self.nodes[key].edge);
        assert!(0 < at && at < edge.len(), "an edge is cut inside");
        let above = self.nodes.insert(Node {
            parent,
            edge: edge[..at].into(),
            children: BTreeMap::from([(edge[at], key)]),
            word: LeaseWord::new(upper),
            last_use,
        });
        self.nodes[parent].children.insert(edge[0], above);
        let node = &mut self.nodes[key];
        node.parent = above;
        node.edge = edge[at..].into();
        node.word = LeaseWord::new(lower);
        above
    }

    /// Notes that a path was used now, from its last node up to the root.
    pub fn touch(&mut self, last: NodeKey) {
        self.clock += 1;
        let mut at = last;
        while at != self.root {
            let node = &mut self.nodes[at];
            let before = std::mem::replace(&mut node.last_use, self.clock);
            if node.children.is_empty() {
                self.leaves.remove(&(before, at));
                self.leaves.insert((self.clock, at));
            }
            at = node.parent;
        }
    }

    /// Evicts the leaf that was used least recently and has no lease. Returns its
    /// segment and how many tokens it cached.
    pub fn evict_oldest(&mut self) -> Option<(SegmentId, usize)> {
        let &(_, victim) = self
            .leaves
            .iter()
            .find(|(_, key)| self.nodes[*key].word.try_evict())?;
        Some(self.remove_leaf(victim))
    }

    /// Panics unless every edge, link, sum and order is consistent.
    pub fn check_integrity(&self) {
        let mut tokens = 0;
        for (key, node) in &self.nodes {
            for (first, &child) in &node.children {
                assert_eq!(
                    self.nodes[child].edge[0], *first,
                    "a child stands under its first token"
                );
                assert_eq!(self.nodes[child].parent, key, "a child knows its parent");
                assert!(
                    self.nodes[child].last_use <= node.last_use || key == self.root,
                    "a path was used no later than its beginning"
                );
            }
            if key != self.root {
                assert!(!node.edge.is_empty(), "an edge has at least one token");
                tokens += node.edge.len();
                assert_eq!(
                    self.leaves.contains(&(node.last_use, key)),
                    node.children.is_empty(),
                    "exactly the leaves stand in the order of eviction"
                );
            }
        }
        assert_eq!(tokens, self.tokens, "the trie's tokens add up");
    }

    fn remove_leaf(&mut self, key: NodeKey) -> (SegmentId, usize) {
        let node = self.nodes.remove(key).expect("a victim is in the trie");
        debug_assert!(node.children.is_empty(), "only leaves are removed");
        self.leaves.remove(&(node.last_use, key));
        let parent = &mut self.nodes[node.parent];
        parent.children.remove(&node.edge[0]);
        if parent.children.is_empty() && node.parent != self.root {
            self.leaves.insert((parent.last_use, node.parent));
        }
        self.tokens -= node.edge.len();
        (node.word.segment(), node.edge.len())
    }
}

impl Default for Trie {
    fn default() -> Self {
        Self::new()
    }
}

/// Length of the longest common prefix.
#[must_use]
pub fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trie of the given edges, each a path from the root.
    fn trie(texts: &[&[TokenId]]) -> Trie {
        let mut trie = Trie::new();
        for (i, text) in texts.iter().enumerate() {
            let found = trie.find(trie.root(), text);
            let mut parent = found.path.last().copied().unwrap_or(trie.root());
            let mut from = found.tokens;
            if let Some((node, at)) = found.partial {
                let id = 1000 + 2 * i as u64;
                parent = trie.split(node, at, SegmentId(id), SegmentId(id + 1));
                from += at;
            }
            if from < text.len() {
                trie.insert(parent, &text[from..], SegmentId(i as u64 + 1));
            }
            trie.check_integrity();
        }
        trie
    }

    fn check(texts: &[&[TokenId]], query: &[TokenId], full: usize, with_partial: usize) {
        let trie = trie(texts);
        let found = trie.find(trie.root(), query);
        assert_eq!(
            (found.tokens, found.tokens_with_partial()),
            (full, with_partial)
        );
    }

    #[test]
    fn finds_full_edges_then_one_partial_edge() {
        check(&[], &[1, 2], 0, 0);
        check(&[&[1, 2, 3]], &[1, 2, 3, 4], 3, 3);
        check(&[&[1, 2, 3]], &[1, 2, 9], 0, 2);
        check(&[&[1, 2, 3], &[1, 2, 4]], &[1, 2, 4, 5], 3, 3);
        check(&[&[1, 2, 3], &[1, 2, 4, 5]], &[1, 2, 4, 6], 2, 3);
        check(&[&[1], &[1, 2], &[1, 2, 3]], &[1, 2, 3], 3, 3);
    }

    #[test]
    fn a_split_keeps_the_old_end() {
        let mut trie = trie(&[&[1, 2, 3, 4]]);
        let end = trie.find(trie.root(), &[1, 2, 3, 4]).path[0];
        let above = trie.split(end, 1, SegmentId(7), SegmentId(8));
        assert_eq!(trie.find(trie.root(), &[1, 2, 3, 4]).path, [above, end]);
        trie.check_integrity();
    }

    #[test]
    fn evicts_leaves_oldest_first_and_never_the_leased() {
        let mut trie = trie(&[&[1, 2], &[1, 2, 3], &[1, 2, 4], &[5]]);
        let leaf = |trie: &Trie, q: &[TokenId]| *trie.find(trie.root(), q).path.last().unwrap();
        let used = leaf(&trie, &[1, 2, 3]);
        trie.touch(used);
        let lease = trie.node(leaf(&trie, &[5])).word().lease();
        let mut evicted = Vec::new();
        while let Some((segment, _)) = trie.evict_oldest() {
            evicted.push(segment.0);
            trie.check_integrity();
        }
        assert_eq!(evicted, [3, 2, 1]);
        drop(lease);
        assert_eq!(trie.evict_oldest(), Some((SegmentId(4), 1)));
        assert!(trie.is_empty());
        assert_eq!(trie.tokens(), 0);
    }
}
