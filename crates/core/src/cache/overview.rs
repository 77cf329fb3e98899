//! What of the cache counts, in bounded time: for those who watch.
//!
//! From the roots down, the node that counts most is taken first: one that is held, then one
//! that was used by more. Whoever uses a node uses those above it, so these are the ones that
//! count most in all; and each comes with its whole path.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use slotmap::Key;

use super::CacheCore;
use super::beside::Beside;
use super::trie::NodeKey;
use crate::pager::CopyView;
use crate::snapshot::{NODES_MAX, Tier, TrieNode, TrieView};

/// Nodes that are looked at to choose those that are shown, and roots.
const VISITS_MAX: usize = 4096;
/// Salts whose copies are hung below what the device has.
const SALTS_MAX: usize = 256;

/// How much a node counts.
type Worth = (bool, u32, usize, Reverse<NodeKey>);

/// What is shown so far.
#[derive(Default)]
struct Shown {
    view: TrieView,
    keys: Vec<NodeKey>,
    places: FxHashMap<NodeKey, usize>,
}

impl CacheCore {
    /// What of the cache counts: of what is on the device [`NODES_MAX`] nodes less the
    /// copies of what is not, which are among `beside`. It visits a bounded number of nodes.
    #[must_use]
    pub fn overview(&self, beside: &[CopyView]) -> TrieView {
        let gone: Vec<&CopyView> = beside.iter().filter(|one| !self.is_here(one)).collect();
        // At least half of the room is for the device.
        let copies_max = gone.len().min(NODES_MAX / 2);
        let roots: Vec<NodeKey> = self
            .trie
            .roots()
            .map(|(_, root)| root)
            .take(VISITS_MAX)
            .collect();
        let mut shown = self.worthiest(&roots, NODES_MAX - copies_max);
        shown.view.salts = self.trie.roots().len();
        let seen = shown.view.nodes.iter();
        shown.view.nodes_left_out = self.trie.len() - seen.len();
        shown.view.bytes_left_out = self.trie.bytes() - seen.map(|node| node.bytes).sum::<usize>();
        self.add_copies(&roots, &gone[..copies_max], &mut shown);
        shown.view.copies_left_out = gone.len() - copies_max;
        shown.view
    }

    /// Whether the device has what this is a copy of.
    fn is_here(&self, copy: &CopyView) -> bool {
        let paging = self.paging.as_ref();
        let nodes = paging.and_then(|paging| paging.nodes_of.get(&copy.copy));
        // Those that were evicted are listed still.
        nodes.is_some_and(|nodes| nodes.iter().any(|node| self.trie.contains(*node)))
    }

    fn worthiest(&self, roots: &[NodeKey], nodes_max: usize) -> Shown {
        let mut shown = Shown::default();
        let mut visits_left = VISITS_MAX;
        let mut next: BinaryHeap<(Worth, NodeKey, usize)> = BinaryHeap::new();
        for (salt, root) in roots.iter().enumerate() {
            self.visit_children(*root, salt, &mut visits_left, &mut next);
        }
        while shown.view.nodes.len() < nodes_max
            && let Some((_, key, salt)) = next.pop()
        {
            let node = self.node_view(key, salt, &shown.places);
            shown.places.insert(key, shown.view.nodes.len());
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
        next: &mut BinaryHeap<(Worth, NodeKey, usize)>,
    ) {
        for key in self.trie.node(above).children().take(*visits_left) {
            *visits_left -= 1;
            let node = self.trie.node(key);
            let worth = (node.holders() > 0, node.hits(), node.bytes(), Reverse(key));
            next.push((worth, key, salt));
        }
    }

    fn node_view(&self, key: NodeKey, salt: usize, places: &FxHashMap<NodeKey, usize>) -> TrieNode {
        let node = self.trie.node(key);
        TrieNode {
            id: key.data().as_ffi(),
            parent: places.get(&node.parent()).copied(),
            salt,
            tier: match node.keeping().is_kept() {
                true => Tier::DeviceAndCopy,
                false => Tier::Device,
            },
            tokens_before: node.end() - node.edge().len(),
            tokens: node.edge().len(),
            bytes: node.bytes(),
            holders: node.holders(),
            hits: node.hits(),
            idle_uses: self.trie.tick() - node.last_use(),
            children: node.children().count(),
        }
    }

    /// Hangs copies where what they are the state of would hang.
    fn add_copies(&self, roots: &[NodeKey], copies: &[&CopyView], shown: &mut Shown) {
        if copies.is_empty() {
            return;
        }
        let salts = roots.iter().take(SALTS_MAX);
        let salts = salts.map(|root| self.trie.salt_above(*root).digest());
        let mut beside = Beside::new(copies, salts.collect(), roots.len());
        for (node, key) in shown.view.nodes.iter().zip(&shown.keys) {
            beside.below_node(node, self.trie.node(*key).edge());
        }
        beside.hang(&mut shown.view.nodes);
    }
}
