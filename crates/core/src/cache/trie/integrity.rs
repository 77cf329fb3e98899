//! The invariants of the trie.

use super::{OffloadState, Trie};

impl Trie {
    /// Panics unless all edges, links, sums, holds and orders are consistent.
    pub fn check_integrity(&self) {
        let (mut tokens, mut bytes, mut protected_bytes, mut listed) = (0, 0, 0, 0);
        let (mut not_offloaded, mut not_offloaded_bytes) = (0, 0);
        for (key, node) in &self.nodes {
            let mut held_below = 0;
            for (first, child) in node.children.iter() {
                let below = &self.nodes[child];
                assert_eq!(
                    below.edge[0], first,
                    "a child is stored under its first token"
                );
                assert_eq!(below.parent, key, "a child links to its parent");
                assert_eq!(below.tokens_before as usize, node.end(), "ends add up");
                assert!(
                    below.last_use <= node.last_use || node.is_root(),
                    "a node was used no earlier than its children"
                );
                held_below += below.ref_count;
            }
            assert!(
                held_below <= node.ref_count,
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
            assert_eq!(
                node.lease.is_some(),
                node.ref_count > 0,
                "exactly the held nodes are leased"
            );
            if node.ref_count > 0 {
                protected_bytes += node.bytes;
            }
            assert_eq!(
                node.listed,
                node.children.is_empty() && node.ref_count == 0,
                "exactly the leaves that are not held are evictable"
            );
            let noted = self.not_offloaded.is_some();
            let counted = noted && node.ref_count == 0 && !node.offload_state.has_copy();
            assert_eq!(
                node.counted, counted,
                "exactly the nodes without a copy that are not held are counted"
            );
            if counted {
                not_offloaded_bytes += node.bytes;
            }
            if counted && node.offload_state == OffloadState::NotOffloaded {
                not_offloaded += 1;
                let order = self
                    .not_offloaded
                    .as_ref()
                    .map(|not_offloaded| &not_offloaded.order);
                assert!(
                    order.is_some_and(|order| order.contains(&node.eviction_rank(key))),
                    "a node without a copy is in their order"
                );
            }
            if node.listed {
                listed += 1;
                assert!(
                    self.order.contains(&node.eviction_rank(key)),
                    "an evictable node is in the eviction order"
                );
            }
        }
        assert_eq!(
            listed,
            self.order.len(),
            "the eviction order holds only evictable nodes"
        );
        if let Some(noted) = &self.not_offloaded {
            assert_eq!(
                not_offloaded,
                noted.order.len(),
                "the order of nodes without a copy holds no others"
            );
            assert_eq!(
                not_offloaded_bytes, noted.bytes,
                "bytes without a copy add up"
            );
        }
        assert_eq!(tokens, self.tokens, "tokens add up");
        assert_eq!(bytes, self.bytes, "bytes add up");
        assert_eq!(protected_bytes, self.protected_bytes, "held bytes add up");
        self.check_blocks();
    }
}
