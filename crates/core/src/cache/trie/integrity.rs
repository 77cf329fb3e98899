//! What must always be true of the trie.

use super::{OffloadState, Trie};

impl Trie {
    /// Panics unless every edge, link, sum, hold and order is consistent.
    pub fn check_integrity(&self) {
        let (mut tokens, mut bytes, mut protected_bytes, mut listed) = (0, 0, 0, 0);
        let (mut not_offloaded, mut not_offloaded_bytes) = (0, 0);
        for (key, node) in &self.nodes {
            let mut held_below = 0;
            for (first, child) in node.children.iter() {
                let below = &self.nodes[child];
                assert_eq!(below.edge[0], first, "a child stands under its first token");
                assert_eq!(below.parent, key, "a child knows its parent");
                assert_eq!(below.tokens_before as usize, node.end(), "ends add up");
                assert!(
                    below.last_use <= node.last_use || node.is_root(),
                    "a path was used no earlier than its end"
                );
                held_below += below.ref_count;
            }
            assert!(
                held_below <= node.ref_count,
                "who holds a child holds its parent"
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
                "what is held is leased"
            );
            if node.ref_count > 0 {
                protected_bytes += node.bytes;
            }
            assert_eq!(
                node.listed,
                node.children.is_empty() && node.ref_count == 0,
                "exactly the leaves that nobody holds may go"
            );
            let noted = self.not_offloaded.is_some();
            let counted = noted && node.ref_count == 0 && !node.offload_state.has_copy();
            assert_eq!(node.counted, counted, "what is not kept is counted");
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
                    "and stands in order"
                );
            }
            if node.listed {
                listed += 1;
                assert!(
                    self.order.contains(&node.eviction_rank(key)),
                    "who may go stands in the order"
                );
            }
        }
        assert_eq!(listed, self.order.len(), "nobody else stands in the order");
        if let Some(noted) = &self.not_offloaded {
            assert_eq!(
                not_offloaded,
                noted.order.len(),
                "nobody else is to be kept"
            );
            assert_eq!(not_offloaded_bytes, noted.bytes, "unkept bytes add up");
        }
        assert_eq!(tokens, self.tokens, "tokens add up");
        assert_eq!(bytes, self.bytes, "bytes add up");
        assert_eq!(protected_bytes, self.protected_bytes, "held bytes add up");
        self.check_blocks();
    }
}
