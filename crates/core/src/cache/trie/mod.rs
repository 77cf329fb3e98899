//! The compressed prefix trie: what is cached, and under which tokens.
//!
//! A node is an *end*: the state after the tokens on the way from its root to it.
//! Its edge is the token range since its parent, and it owns that range's sealed
//! segment. Children are found by the first token of their edge. When an edge is
//! split, the new node is put above and the old key keeps its end; when two are
//! merged, the lower key stays: a key that somebody remembers never changes its
//! meaning. Each [salt](Salt) has a root of its own, and nothing below two roots is
//! ever shared.
//!
//! | file | what happens there |
//! |---|---|
//! | `edit.rs` | insert, split, merge, replace, remove |
//! | `order.rs` | holding, using, and who is evicted next |
//! | `blocks.rs` | the same as whole blocks, for those who follow it |
//! | `children.rs` | children by first token |
//! | `integrity.rs` | what must always be true |

mod blocks;
mod children;
mod edit;
mod integrity;
mod order;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use slotmap::{SecondaryMap, SlotMap, new_key_type};
use smallvec::SmallVec;

use super::eviction::{Asked, Class, Eviction, Facts, SequenceMark};
use super::salt::Salt;
use crate::lease::{Lease, LeaseCount};
use crate::protocol::SegmentSize;
use crate::{CopyId, SegmentId, TokenId};
use blocks::Blocks;
use children::Children;

pub use blocks::{BlockEvent, BlockHash};
pub use order::Evicted;

new_key_type! {
    /// A node's name; a removed node's key is never valid again.
    pub struct NodeKey;
}

/// One cached token range.
#[derive(Debug)]
pub struct Node {
    parent: NodeKey,
    children: Children,
    edge: Box<[TokenId]>,
    lease_count: LeaseCount,
    /// Held while `ref_count` is not 0.
    lease: Option<Lease>,
    /// Slots and pins whose path leads through this node.
    ref_count: u32,
    hits: u32,
    tokens_before: u32,
    state_lag: u32,
    bytes: usize,
    last_use: u64,
    /// What the policy of eviction made of the last sequence that used it.
    class: Class,
    priority: u8,
    /// Whether it stands in the order of eviction.
    listed: bool,
    restore_point: bool,
    offload_state: OffloadState,
    /// Whether it is counted among what is not kept, if that is noted and it is not.
    counted: bool,
}

/// Whether a node's state is held outside the device as well, so that it can go at no
/// cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadState {
    /// It is not.
    #[default]
    NotOffloaded,
    /// It is being copied, or is to be.
    Offloading,
    /// There is no room for it: it is not tried again before it is used.
    Rejected,
    /// It is, in this copy.
    Offloaded(CopyId),
}

impl OffloadState {
    /// Whether there is a copy.
    #[must_use]
    pub fn has_copy(self) -> bool {
        matches!(self, Self::Offloaded(_))
    }
}

/// A sealed segment that is to be a node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Its name on the device.
    pub segment: SegmentId,
    /// See [`SegmentSize::state_lag`].
    pub state_lag: usize,
    /// Device bytes.
    pub bytes: usize,
}

/// How far a token list is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Nodes whose edges match in full, from the top.
    pub path: SmallVec<[NodeKey; 8]>,
    /// Tokens on that path, counted from where the match started.
    pub tokens: usize,
    /// A child of the path's end that matches only its first tokens, and how many.
    pub partial: Option<(NodeKey, usize)>,
}

/// The trie. Owned by the cache core; holds ids and token ranges, never arrays.
#[derive(Debug)]
pub struct Trie {
    nodes: SlotMap<NodeKey, Node>,
    roots: BTreeMap<Salt, NodeKey>,
    /// The salt of each root.
    salts: SecondaryMap<NodeKey, Salt>,
    /// Leaves that nobody holds.
    order: BTreeSet<EvictionRank>,
    /// What is not kept, where anybody keeps anything.
    not_offloaded: Option<NotOffloadedNodes>,
    policy: Box<dyn Eviction>,
    tokens: usize,
    bytes: usize,
    protected_bytes: usize,
    tick: u64,
    /// What is cached as whole blocks, if somebody follows it.
    blocks: Option<Blocks>,
}

/// Nodes that nobody holds and that are not [retained](OffloadState::Offloaded).
#[derive(Debug, Default)]
struct NotOffloadedNodes {
    /// Those that nobody has thought of keeping.
    order: BTreeSet<EvictionRank>,
    /// Bytes of all of them.
    bytes: usize,
}

/// Retention priority, the policy's class, last use, node.
type EvictionRank = (u8, Class, u64, NodeKey);

impl Node {
    /// The node above; a root is its own.
    #[must_use]
    pub fn parent(&self) -> NodeKey {
        self.parent
    }

    /// The tokens since the parent.
    #[must_use]
    pub fn edge(&self) -> &[TokenId] {
        &self.edge
    }

    /// The word that counts the leases of this node's segment.
    #[must_use]
    pub fn lease_count(&self) -> &LeaseCount {
        &self.lease_count
    }

    /// The size of its segment.
    #[must_use]
    pub fn segment_size(&self) -> SegmentSize {
        SegmentSize {
            tokens: self.edge.len(),
            state_lag: self.state_lag as usize,
        }
    }

    /// Tokens from the root to the node's end.
    #[must_use]
    pub fn end(&self) -> usize {
        self.tokens_before as usize + self.edge.len()
    }

    /// Device bytes of its segment.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Slots and pins whose path leads through it.
    #[must_use]
    pub fn ref_count(&self) -> usize {
        self.ref_count as usize
    }

    /// Sequences that have used it since it was inserted.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.hits
    }

    /// When it was used last, in [ticks](Trie::tick).
    #[must_use]
    pub fn last_use(&self) -> u64 {
        self.last_use
    }

    /// How dearly its publishers want it kept; the lowest goes first.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.priority
    }

    /// Whether a caller asked to keep its end restorable: it is never merged away.
    #[must_use]
    pub fn restore_point(&self) -> bool {
        self.restore_point
    }

    /// Whether its state is held outside the device as well.
    #[must_use]
    pub fn offload_state(&self) -> OffloadState {
        self.offload_state
    }

    /// Its children, in no order that means anything.
    pub fn children(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.children.iter().map(|(_, child)| child)
    }

    /// Which blocks of so many tokens, counted from the root, end within it.
    fn blocks(&self, block_tokens: usize) -> Range<usize> {
        self.tokens_before as usize / block_tokens..self.end() / block_tokens
    }

    fn is_root(&self) -> bool {
        self.edge.is_empty()
    }

    fn facts(&self) -> Facts {
        Facts {
            tokens_before: self.tokens_before as usize,
            tokens: self.edge.len(),
            bytes: self.bytes,
            last_use: self.last_use,
            class: self.class,
        }
    }

    fn eviction_rank(&self, key: NodeKey) -> EvictionRank {
        (self.priority, self.class, self.last_use, key)
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
    /// A trie that caches nothing and evicts as `policy` says.
    #[must_use]
    pub fn new(policy: Box<dyn Eviction>) -> Self {
        Self {
            nodes: SlotMap::with_key(),
            roots: BTreeMap::new(),
            salts: SecondaryMap::new(),
            order: BTreeSet::new(),
            not_offloaded: None,
            policy,
            tokens: 0,
            bytes: 0,
            protected_bytes: 0,
            tick: 0,
            blocks: None,
        }
    }

    /// The node before every first token of this salt, if anything was ever cached
    /// or begun under it.
    #[must_use]
    pub fn root(&self, salt: &Salt) -> Option<NodeKey> {
        self.roots.get(salt).copied()
    }

    /// The salts that have a root, and their roots.
    pub fn roots(&self) -> impl ExactSizeIterator<Item = (&Salt, NodeKey)> + '_ {
        self.roots.iter().map(|(salt, root)| (salt, *root))
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

    /// Whether the node is still in the trie.
    #[must_use]
    pub fn contains(&self, key: NodeKey) -> bool {
        self.nodes.contains_key(key)
    }

    /// Nodes, the roots not counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len() - self.roots.len()
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

    /// Device bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of these, bytes that slots and pins hold.
    #[must_use]
    pub fn protected_bytes(&self) -> usize {
        self.protected_bytes
    }

    /// Notes from now on what is not kept outside the device, for [`Self::not_offloaded_bytes`] and
    /// [`Self::coldest_not_offloaded`]: a second order, which is no use to who keeps nothing.
    pub(crate) fn track_not_offloaded(&mut self) {
        assert!(self.is_empty(), "it is noted of all there is");
        self.not_offloaded = Some(NotOffloadedNodes::default());
    }

    /// Bytes of nodes that nobody holds and whose state is nowhere else, if that is noted.
    #[must_use]
    pub fn not_offloaded_bytes(&self) -> usize {
        self.not_offloaded
            .as_ref()
            .map_or(0, |not_offloaded| not_offloaded.bytes)
    }

    /// Uses so far: the trie's clock.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// The name of the policy of eviction.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// How far `tokens` are cached below `from`: full edges, then at most one
    /// partial edge. Reads each token once.
    #[must_use]
    pub fn find(&self, from: NodeKey, tokens: &[TokenId]) -> Match {
        let mut found = Match::default();
        let mut at = from;
        while let Some(first) = tokens.get(found.tokens)
            && let Some(child) = self.nodes[at].children.get(*first)
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

    /// All nodes, the roots left out.
    pub(crate) fn keys(&self) -> impl Iterator<Item = NodeKey> + '_ {
        let nodes = self.nodes.iter().filter(|(_, node)| !node.is_root());
        nodes.map(|(key, _)| key)
    }

    /// The root that a node hangs on.
    pub(crate) fn root_above(&self, node: NodeKey) -> Option<NodeKey> {
        let mut at = node;
        while !self.nodes.get(at)?.is_root() {
            at = self.nodes[at].parent;
        }
        Some(at)
    }

    /// The salt of the root that a node hangs on.
    ///
    /// # Panics
    ///
    /// When it is not in the trie.
    #[must_use]
    pub fn salt_above(&self, node: NodeKey) -> &Salt {
        let root = self.root_above(node).expect("the node is in the trie");
        &self.salts[root]
    }

    /// The nodes from the top down to `end`, the root left out.
    #[must_use]
    pub fn path(&self, end: NodeKey) -> SmallVec<[NodeKey; 8]> {
        let mut path = SmallVec::new();
        let mut at = end;
        while !self.nodes[at].is_root() {
            path.push(at);
            at = self.nodes[at].parent;
        }
        path.reverse();
        path
    }

    /// The segments on the way from the top down to `end`.
    #[must_use]
    pub fn segments(&self, end: NodeKey) -> Vec<SegmentId> {
        let path = self.path(end);
        let segments = path
            .iter()
            .map(|node| self.nodes[*node].lease_count.segment());
        segments.collect()
    }
}

/// Length of the longest common prefix.
#[must_use]
pub fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    let most = a.len().min(b.len());
    let (a, b) = (&a[..most], &b[..most]);
    // Compared in wholes, large and then small, as memory; only the last is looked at
    // token by token.
    let same = equal_wholes::<512>(a, b);
    let same = same + equal_wholes::<32>(&a[same..], &b[same..]);
    let rest = a[same..].iter().zip(&b[same..]);
    same + rest.take_while(|(x, y)| x == y).count()
}

/// Tokens in the equal parts of `N` tokens that two lists begin with.
fn equal_wholes<const N: usize>(a: &[TokenId], b: &[TokenId]) -> usize {
    let parts = a.chunks_exact(N).zip(b.chunks_exact(N));
    N * parts.take_while(|(x, y)| x == y).count()
}
