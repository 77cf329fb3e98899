//! The trie as data, for pictures and for people.

use super::{CacheCore, Salt};
use crate::TokenId;

/// What is cached under one salt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeView {
    /// Parents before their children, siblings by their first token.
    pub nodes: Vec<NodeView>,
}

/// One cached token range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node above, by its place in [`TreeView::nodes`]; none at the top.
    pub parent: Option<usize>,
    /// The tokens of the range.
    pub tokens: Box<[TokenId]>,
    /// Tokens before the range.
    pub tokens_before: usize,
    /// Device bytes.
    pub bytes: usize,
    /// Live sequences and pins whose path leads through it.
    pub holders: usize,
    /// Of these, pins.
    pub pins: usize,
    /// Sequences that have used it.
    pub hits: u32,
    /// Uses of anything since it was used last.
    pub idle_uses: u64,
    /// Retention priority.
    pub priority: u8,
    /// Whether a sequence can start at its end.
    pub resumable: bool,
    /// Whether a caller asked to keep its end restorable.
    pub restore_point: bool,
}

impl CacheCore {
    /// What is cached under a salt. Costs a walk over all of it.
    #[must_use]
    pub fn tree(&self, salt: &Salt) -> TreeView {
        let mut view = TreeView::default();
        let Some(root) = self.trie.root(salt) else {
            return view;
        };
        let pinned: Vec<_> = self
            .pins
            .values()
            .filter_map(|pin| pin.end)
            .flat_map(|end| self.trie.path(end))
            .collect();
        // Depth first; what is pushed last is looked at next.
        let mut next = vec![(root, None)];
        while let Some((key, place)) = next.pop() {
            let node = self.trie.node(key);
            let mut children: Vec<_> = node.children().collect();
            children.sort_by_key(|child| std::cmp::Reverse(self.trie.node(*child).edge()[0]));
            let mut below = None;
            if key != root {
                below = Some(view.nodes.len());
                view.nodes.push(NodeView {
                    parent: place,
                    tokens: node.edge().into(),
                    tokens_before: node.end() - node.edge().len(),
                    bytes: node.bytes(),
                    holders: node.holders(),
                    pins: pinned.iter().filter(|pinned| **pinned == key).count(),
                    hits: node.hits(),
                    idle_uses: self.trie.tick() - node.last_use(),
                    priority: node.priority(),
                    resumable: self.resumes_at(key),
                    restore_point: node.restore_point(),
                });
            }
            next.extend(children.into_iter().map(|child| (child, below)));
        }
        view
    }
}
