//! What of the cache counts, in bounded time: for those who watch.
//!
//! From the roots down, the node that counts most is taken first: one that is held, then one
//! that was used by more. Whoever uses a node uses those above it, so these are the ones that
//! count most in all; and each comes with its whole path.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rustc_hash::FxHashMap;
use slotmap::Key;

use super::CacheCore;
use super::salt::SaltDigest;
use super::trie::NodeKey;
use crate::TokenId;
use crate::pager::CopyView;
use crate::watch::{NODES_MAX, Tier, TrieNode, TrieView};

/// Nodes that are looked at to choose those that are shown, and roots.
const VISITS_MAX: usize = 4096;
/// Tokens of copies that are looked at to find out where they hang; the others hang nowhere.
const SOUGHT_TOKENS_MAX: usize = 1 << 18;
/// Salts whose copies are hung below what the device has.
const SALTS_MAX: usize = 256;
/// Set in the ids of copies, which nodes' do not have.
const COPY: u64 = 1 << 63;

/// How much a node counts.
type Worth = (bool, u32, usize, Reverse<NodeKey>);

/// What is shown so far.
#[derive(Default)]
struct Shown {
    view: TrieView,
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
        let salts = roots.iter().enumerate().take(SALTS_MAX);
        let salts: BTreeMap<SaltDigest, usize> = match copies.is_empty() {
            true => BTreeMap::new(),
            false => salts
                .map(|(salt, root)| (self.trie.salt_above(*root).digest(), salt))
                .collect(),
        };
        let newest = copies.iter().map(|one| one.last_use).max().unwrap_or(0);
        let mut by_start: Vec<&&CopyView> = copies.iter().collect();
        by_start.sort_by_key(|one| (one.label.start, one.copy));
        // Those that end where others begin, by their salt and all their tokens.
        let mut ends: FxHashMap<(SaltDigest, &[TokenId]), usize> = FxHashMap::default();
        let mut tokens_left = SOUGHT_TOKENS_MAX;
        for one in by_start {
            let label = &*one.label;
            let salt = salts.get(&label.salt).copied();
            let before = &label.tokens[..label.start];
            let is_sought = label.tokens.len() <= tokens_left;
            let mut parent = None;
            if is_sought {
                tokens_left -= label.tokens.len();
                let root = salt.map(|salt| roots[salt]);
                let above = ends.get(&(label.salt, before)).copied();
                parent = above.or_else(|| self.place_of(root?, before, &shown.places));
                ends.insert((label.salt, &label.tokens[..]), shown.view.nodes.len());
            }
            if let Some(parent) = parent {
                shown.view.nodes[parent].children += 1;
            }
            shown.view.nodes.push(TrieNode {
                id: COPY | one.copy.0,
                parent,
                // One that nothing on the device has.
                salt: salt.unwrap_or(roots.len()),
                tier: match one.in_host {
                    true => Tier::Host,
                    false => Tier::Disk,
                },
                tokens_before: label.start,
                tokens: label.tokens.len() - label.start,
                bytes: label.bytes,
                holders: 0,
                hits: 0,
                idle_uses: newest - one.last_use,
                children: 0,
            });
        }
    }

    /// The place of the lowest node that is shown, on the way of these tokens.
    fn place_of(
        &self,
        root: NodeKey,
        tokens: &[TokenId],
        places: &FxHashMap<NodeKey, usize>,
    ) -> Option<usize> {
        let found = self.trie.find(root, tokens);
        let mut way = found.path.iter().rev();
        way.find_map(|node| places.get(node).copied())
    }
}
