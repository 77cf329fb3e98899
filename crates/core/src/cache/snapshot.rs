//! The most important nodes of the cache, in bounded time, for monitoring.
//!
//! From the roots down, the most important node is taken first: a held node, then one that
//! more sequences used. A sequence that uses a node uses all nodes above it. The chosen nodes
//! are therefore the most important ones overall, and each comes with its whole path.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use slotmap::Key;

use super::CacheCore;
use super::offloaded_copies::OffloadedCopies;
use super::trie::NodeKey;
use crate::snapshot::{CopyView, Tier, TrieNode, TrieView};

/// Maximum number of visited nodes, and of roots.
const VISITS_MAX: usize = 4096;
/// Maximum number of salts whose copies are attached below device nodes.
const SALTS_MAX: usize = 256;

/// The importance of a node.
type Score = (bool, u32, usize, Reverse<NodeKey>);

/// The nodes chosen so far.
#[derive(Default)]
struct Shown {
    view: TrieView,
    keys: Vec<NodeKey>,
    indices: FxHashMap<NodeKey, usize>,
}

impl CacheCore {
    /// Returns the most important nodes of the cache: at most [`NODES_MAX`](TrieView::NODES_MAX) nodes of the
    /// device and copies from `offloaded_copies` that are not on the device. It visits a
    /// bounded number of nodes.
    #[must_use]
    pub fn overview(&self, offloaded_copies: &[CopyView]) -> TrieView {
        let gone: Vec<&CopyView> = offloaded_copies
            .iter()
            .filter(|one| !self.is_here(one))
            .collect();
        // At least half of the entries are for device nodes.
        let copies_max = gone.len().min(TrieView::NODES_MAX / 2);
        let roots: Vec<NodeKey> = self
            .trie
            .roots()
            .map(|(_, root)| root)
            .take(VISITS_MAX)
            .collect();
        let mut shown = self.highest_scored(&roots, TrieView::NODES_MAX - copies_max);
        shown.view.salts = self.trie.roots().len();
        let seen = shown.view.nodes.iter();
        shown.view.nodes_left_out = self.trie.len() - seen.len();
        shown.view.bytes_left_out = self.trie.bytes() - seen.map(|node| node.bytes).sum::<usize>();
        self.add_copies(&roots, &gone[..copies_max], &mut shown);
        shown.view.copies_left_out = gone.len() - copies_max;
        shown.view
    }

    /// Whether the state in this copy is also on the device.
    fn is_here(&self, copy: &CopyView) -> bool {
        let paging = self.paging.as_ref();
        paging.is_some_and(|paging| paging.is_on_device(copy.copy, &self.trie))
    }

    fn highest_scored(&self, roots: &[NodeKey], nodes_max: usize) -> Shown {
        let mut shown = Shown::default();
        let mut visits_left = VISITS_MAX;
        let mut next: BinaryHeap<(Score, NodeKey, usize)> = BinaryHeap::new();
        for (salt, root) in roots.iter().enumerate() {
            self.visit_children(*root, salt, &mut visits_left, &mut next);
        }
        while shown.view.nodes.len() < nodes_max
            && let Some((_, key, salt)) = next.pop()
        {
            let node = self.node_view(key, salt, &shown.indices);
            shown.indices.insert(key, shown.view.nodes.len());
            shown.keys.push(key);
            shown.view.nodes.push(node);
            self.visit_children(key, salt, &mut visits_left, &mut next);
        }
        shown
    }

    fn visit_children(
        &self,
        above: NodeKey,
        salt: usize,
        visits_left: &mut usize,
        next: &mut BinaryHeap<(Score, NodeKey, usize)>,
    ) {
        for key in self.trie.node(above).children().take(*visits_left) {
            *visits_left -= 1;
            let node = self.trie.node(key);
            let score = (
                node.ref_count() > 0,
                node.hits(),
                node.bytes(),
                Reverse(key),
            );
            next.push((score, key, salt));
        }
    }

    fn node_view(
        &self,
        key: NodeKey,
        salt: usize,
        indices: &FxHashMap<NodeKey, usize>,
    ) -> TrieNode {
        let node = self.trie.node(key);
        TrieNode {
            id: key.data().as_ffi(),
            parent: indices.get(&node.parent()).copied(),
            salt,
            tier: if node.offload_state().has_copy() {
                Tier::DeviceAndCopy
            } else {
                Tier::Device
            },
            tokens_before: node.end() - node.edge().len(),
            tokens: node.edge().len(),
            bytes: node.bytes(),
            snapshot_bytes: self.trie.snapshots().bytes_of(node.segment_size()),
            restore_point: node.restore_point(),
            ref_count: node.ref_count(),
            hits: node.hits(),
            idle_uses: self.trie.tick() - node.last_use(),
            children: node.children().count(),
        }
    }

    /// Attaches copies at the place where their state would be in the trie.
    fn add_copies(&self, roots: &[NodeKey], copies: &[&CopyView], shown: &mut Shown) {
        if copies.is_empty() {
            return;
        }
        let salts = roots.iter().take(SALTS_MAX);
        let salts = salts.map(|root| self.trie.salt_above(*root).digest());
        let mut offloaded_copies = OffloadedCopies::new(copies, salts.collect(), roots.len());
        for (node, key) in shown.view.nodes.iter().zip(&shown.keys) {
            let prefix_key = self.trie.key_above(*key).digest();
            offloaded_copies.below_node(node, prefix_key, self.trie.node(*key).edge());
        }
        offloaded_copies.attach(&mut shown.view.nodes);
    }
}
