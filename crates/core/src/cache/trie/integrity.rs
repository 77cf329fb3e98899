//! The invariants of the trie.

use super::Trie;
use super::adapters::Adapter;

impl Trie {
    /// Panics unless all edges, links, sums, holds and orders are consistent.
    pub fn check_integrity(&self) {
        let (mut tokens, mut bytes, mut protected_bytes) = (0, 0, 0);
        for (key, node) in &self.nodes {
            let mut held_below = 0;
            for (first, child) in node.children.iter() {
                let below = &self.nodes[child];
                assert_eq!(
                    below.first(),
                    first,
                    "a child is stored under its first token and its adapter"
                );
                assert!(
                    node.adapter == Adapter::default() || node.adapter == below.adapter,
                    "an adapter computes all that follows"
                );
                assert_eq!(below.parent, key, "a child links to its parent");
                assert_eq!(below.tokens_before as usize, node.end(), "ends add up");
                assert!(
                    below.last_use() <= node.last_use() || node.is_root(),
                    "a node was used no earlier than its children"
                );
                held_below += below.ref_count();
            }
            assert!(
                held_below <= node.ref_count(),
                "a path that holds a child holds its parent"
            );
            if node.is_root() {
                assert_eq!(node.parent, key, "a root is its own parent");
                assert!(
                    self.roots.values().any(|root| *root == key),
                    "a root belongs to a salt"
                );
                continue;
            }
            tokens += node.edge.len();
            bytes += node.bytes;
            node.hold.check_integrity();
            if node.hold.is_held() {
                protected_bytes += node.bytes;
            }
        }
        let nodes = self.nodes.iter();
        self.order
            .check_integrity(nodes.filter(|(_, node)| !node.is_root()));
        let nodes = self.nodes.values().filter(|node| !node.is_root());
        self.snapshots
            .check_integrity(nodes.map(|node| node.segment_size()));
        assert_eq!(tokens, self.tokens, "tokens add up");
        assert_eq!(bytes, self.bytes, "bytes add up");
        assert_eq!(protected_bytes, self.protected_bytes, "held bytes add up");
    }
}
