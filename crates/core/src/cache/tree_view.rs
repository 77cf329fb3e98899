//! The trie as data, for diagrams and for reading.

use std::fmt;

use super::{CacheCore, Salt};
use motet_protocol::{AdapterKey, TokenId};

/// The cached nodes of one salt, those of adapters too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeView {
    /// The nodes: parents before their children, siblings by adapter and first token.
    pub nodes: Vec<NodeView>,
}

/// One cached token range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The parent node as an index into [`TreeView::nodes`]; `None` at the top.
    pub parent: Option<usize>,
    /// The tokens of the range.
    pub tokens: Box<[TokenId]>,
    /// The adapter that computed its state; `None` is the base model.
    pub adapter: Option<AdapterKey>,
    /// Tokens before the range.
    pub tokens_before: usize,
    /// Device bytes.
    pub bytes: usize,
    /// Live sequences and pins whose path contains this node.
    pub ref_count: usize,
    /// Number of pins among `ref_count`.
    pub pins: usize,
    /// Sequences that have used the node.
    pub hits: u32,
    /// Uses of any node since this one was last used.
    pub idle_uses: u64,
    /// Retention.
    pub retention: u8,
    /// Whether a sequence can start at its end.
    pub resumable: bool,
    /// Whether a caller asked to keep its end restorable.
    pub restore_point: bool,
}

impl CacheCore {
    /// Returns the nodes cached under a salt. Walks over all of them.
    #[must_use]
    pub fn tree(&self, salt: &Salt) -> TreeView {
        let mut view = TreeView::default();
        let Some(root) = self.trie.root(salt) else {
            return view;
        };
        let pinned: Vec<_> = self
            .pins
            .ends()
            .flat_map(|end| self.trie.path(end))
            .collect();
        // Depth first: the node pushed last is visited next.
        let mut next = vec![(root, None)];
        while let Some((key, parent_index)) = next.pop() {
            let node = self.trie.node(key);
            let mut children: Vec<_> = node.children().collect();
            children.sort_by_key(|child| std::cmp::Reverse(self.trie.first_of(*child)));
            let mut below = None;
            if key != root {
                below = Some(view.nodes.len());
                view.nodes.push(NodeView {
                    parent: parent_index,
                    tokens: node.edge().into(),
                    adapter: self.trie.adapter_of(key),
                    tokens_before: node.end() - node.edge().len(),
                    bytes: node.bytes(),
                    ref_count: node.ref_count(),
                    pins: pinned.iter().filter(|pinned| **pinned == key).count(),
                    hits: node.hits(),
                    idle_uses: self.trie.tick() - node.last_use(),
                    retention: node.retention(),
                    resumable: self.resumes_at(key),
                    restore_point: node.restore_point(),
                });
            }
            next.extend(children.into_iter().map(|child| (child, below)));
        }
        view
    }
}

/// Prints one line per node, children indented below it. Shows only how many tokens there are.
impl fmt::Display for TreeView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut depths: Vec<usize> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let depth = node.parent.map_or(0, |parent| depths[parent] + 1);
            depths.push(depth);
            writeln!(f, "{:1$}{node}", "", 2 * depth)?;
        }
        Ok(())
    }
}

impl fmt::Display for NodeView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.tokens.len();
        let end = self.tokens_before + tokens;
        write!(f, "{tokens} tokens to {end}, {} bytes", self.bytes)?;
        write!(f, ", used {} times", self.hits)?;
        if self.ref_count > self.pins {
            write!(f, ", held by {}", self.ref_count - self.pins)?;
        }
        if self.pins > 0 {
            write!(f, ", pinned")?;
        }
        if let Some(adapter) = self.adapter {
            write!(f, ", {adapter:?}")?;
        }
        if self.retention > 0 {
            write!(f, ", retention {}", self.retention)?;
        }
        if !self.resumable {
            write!(f, ", cannot be resumed at")?;
        }
        if self.restore_point {
            write!(f, ", restore point")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_is_displayed_with_indented_children() {
        let node = |parent, tokens_before, tokens: &[TokenId]| NodeView {
            parent,
            tokens: tokens.into(),
            adapter: None,
            tokens_before,
            bytes: 8 * tokens.len(),
            ref_count: 1,
            pins: 0,
            hits: 2,
            idle_uses: 0,
            retention: 0,
            resumable: true,
            restore_point: false,
        };
        let pinned = NodeView {
            pins: 1,
            retention: 3,
            restore_point: true,
            ..node(Some(0), 3, &[4])
        };
        let nodes = vec![node(None, 0, &[1, 2, 3]), pinned, node(Some(0), 3, &[5, 6])];
        let expected = "\
3 tokens to 3, 24 bytes, used 2 times, held by 1
  1 tokens to 4, 8 bytes, used 2 times, pinned, retention 3, restore point
  2 tokens to 5, 16 bytes, used 2 times, held by 1
";
        assert_eq!(TreeView { nodes }.to_string(), expected);
    }
}
