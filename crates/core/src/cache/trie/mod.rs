//! The compressed prefix trie: the cached state and its tokens.
//!
//! A node is an *end*: the state after the tokens on the path from its root to it. Its edge is
//! the token range since its parent, and the node owns the sealed segment of that range.
//! Children are found by the first token of their edge. A split adds a new node above, and the
//! old key keeps its end. A merge keeps the key of the lower node. A remembered key therefore
//! never changes its meaning. Each [salt](Salt) has a root of its own, and the nodes below two
//! roots are never shared.
//!
//! | file | contents |
//! |---|---|
//! | `edit.rs` | insert, split, merge, replace, remove |
//! | `order.rs` | holding, using and evicting nodes |
//! | `blocks.rs` | the cached tokens as whole blocks, for followers |
//! | `children.rs` | children by first token |
//! | `integrity.rs` | the invariants of the trie |

mod blocks;
mod children;
mod edit;
mod integrity;
mod order;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use slotmap::{SecondaryMap, SlotMap};
use smallvec::SmallVec;

use crate::eviction::{Asked, Class, Eviction, Facts, SequenceMark};
use crate::lease::{Lease, LeaseCount};
use crate::protocol::Salt;
use crate::protocol::SegmentSize;
use crate::{CopyId, SegmentId, TokenId};
use blocks::Blocks;
use children::Children;

pub use crate::ids::NodeKey;
pub use crate::protocol::common_prefix;
pub use blocks::{BlockEvent, BlockHash};
pub use order::Evicted;

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
    /// The class that the eviction policy gave to the last sequence that used it.
    class: Class,
    priority: u8,
    /// Whether it is in the eviction order.
    listed: bool,
    restore_point: bool,
    offload_state: OffloadState,
    /// Whether it is counted in `NotOffloadedNodes`.
    counted: bool,
}

/// Whether a node's state is also in a copy outside the device, so that the node can be
/// evicted at no cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadState {
    /// There is no copy.
    #[default]
    NotOffloaded,
    /// A copy is being made, or is to be made.
    Offloading,
    /// The pager rejected it or dropped its copy, or its salt is private. It is not offered
    /// again before the node is used.
    Rejected,
    /// The state is in this copy.
    Offloaded(CopyId),
}

impl OffloadState {
    /// Whether there is a copy.
    #[must_use]
    pub fn has_copy(self) -> bool {
        matches!(self, Self::Offloaded(_))
    }
}

/// A sealed segment that is to belong to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Its id on the device.
    pub segment: SegmentId,
    /// See [`SegmentSize::state_lag`].
    pub state_lag: usize,
    /// Device bytes.
    pub bytes: usize,
}

/// The part of a token list that is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Nodes whose edges match in full, from the top.
    pub path: SmallVec<[NodeKey; 8]>,
    /// Tokens on that path, counted from where the match started.
    pub tokens: usize,
    /// A child of the path's end that matches only its first tokens, and how many.
    pub partial: Option<(NodeKey, usize)>,
}

/// The prefix trie. The cache core owns it. It holds ids and token ranges, never arrays.
#[derive(Debug)]
pub struct Trie {
    nodes: SlotMap<NodeKey, Node>,
    roots: BTreeMap<Salt, NodeKey>,
    /// The salt of each root.
    salts: SecondaryMap<NodeKey, Salt>,
    /// The eviction order: leaves that are not held.
    order: BTreeSet<EvictionRank>,
    /// Nodes without a copy, if they are tracked.
    not_offloaded: Option<NotOffloadedNodes>,
    policy: Box<dyn Eviction>,
    tokens: usize,
    bytes: usize,
    protected_bytes: usize,
    tick: u64,
    /// The cached blocks, if they are followed.
    blocks: Option<Blocks>,
}

/// Nodes that are not held and are not [copied](OffloadState::Offloaded).
#[derive(Debug, Default)]
struct NotOffloadedNodes {
    /// Nodes among them that were neither offered nor rejected.
    order: BTreeSet<EvictionRank>,
    /// Bytes of all nodes that are neither held nor copied.
    bytes: usize,
}

/// The order of eviction: retention priority, the policy's class, last use, node.
type EvictionRank = (u8, Class, u64, NodeKey);

impl Node {
    /// The parent node; a root is its own parent.
    #[must_use]
    pub fn parent(&self) -> NodeKey {
        self.parent
    }

    /// The tokens since the parent's end.
    #[must_use]
    pub fn edge(&self) -> &[TokenId] {
        &self.edge
    }

    /// The counter of the leases of this node's segment.
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

    /// Slots and pins whose path contains the node.
    #[must_use]
    pub fn ref_count(&self) -> usize {
        self.ref_count as usize
    }

    /// Sequences that have used it since it was inserted.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.hits
    }

    /// Its last use, in [ticks](Trie::tick).
    #[must_use]
    pub fn last_use(&self) -> u64 {
        self.last_use
    }

    /// Retention priority, the highest of its publishers. The lowest priority is evicted
    /// first.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.priority
    }

    /// Whether a caller asked to keep its end restorable. Such a node is never merged into its
    /// child.
    #[must_use]
    pub fn restore_point(&self) -> bool {
        self.restore_point
    }

    /// Whether its state is also in a copy outside the device.
    #[must_use]
    pub fn offload_state(&self) -> OffloadState {
        self.offload_state
    }

    /// Its children, in no particular order.
    pub fn children(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.children.iter().map(|(_, child)| child)
    }

    /// The indices of the blocks of `block_tokens` tokens, counted from the root, that end
    /// within it.
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
    /// Tokens matched, including the partial edge.
    #[must_use]
    pub fn tokens_with_partial(&self) -> usize {
        self.tokens + self.partial.map_or(0, |(_, tokens)| tokens)
    }
}

impl Trie {
    /// An empty trie that evicts in the order of `policy`.
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

    /// The root of this salt, if one exists.
    #[must_use]
    pub fn root(&self, salt: &Salt) -> Option<NodeKey> {
        self.roots.get(salt).copied()
    }

    /// The salts that have a root, and their roots.
    pub fn roots(&self) -> impl ExactSizeIterator<Item = (&Salt, NodeKey)> + '_ {
        self.roots.iter().map(|(salt, root)| (salt, *root))
    }

    /// The node of a key that is in the trie.
    ///
    /// # Panics
    ///
    /// If the key is not in the trie.
    #[must_use]
    pub fn node(&self, key: NodeKey) -> &Node {
        &self.nodes[key]
    }

    /// Whether the node is still in the trie.
    #[must_use]
    pub fn contains(&self, key: NodeKey) -> bool {
        self.nodes.contains_key(key)
    }

    /// Number of nodes, without the roots.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len() - self.roots.len()
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of tokens cached.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Device bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of segments that slots and pins hold.
    #[must_use]
    pub fn protected_bytes(&self) -> usize {
        self.protected_bytes
    }

    /// Starts to track nodes without a copy, for [`Self::not_offloaded_bytes`] and
    /// [`Self::coldest_not_offloaded`]. It needs a second order, which is of no use without a
    /// pager.
    pub(crate) fn track_not_offloaded(&mut self) {
        assert!(self.is_empty(), "tracking starts while the trie is empty");
        self.not_offloaded = Some(NotOffloadedNodes::default());
    }

    /// Bytes of nodes that are not held and have no copy; 0 unless tracked.
    #[must_use]
    pub fn not_offloaded_bytes(&self) -> usize {
        self.not_offloaded
            .as_ref()
            .map_or(0, |not_offloaded| not_offloaded.bytes)
    }

    /// Number of uses so far: the clock of the trie.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// The name of the eviction policy.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Finds how far `tokens` are cached below `from`: full edges, then at most one partial
    /// edge. Reads each token once.
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

    /// All nodes except the roots.
    pub(crate) fn keys(&self) -> impl Iterator<Item = NodeKey> + '_ {
        let nodes = self.nodes.iter().filter(|(_, node)| !node.is_root());
        nodes.map(|(key, _)| key)
    }

    /// The root above a node.
    pub(crate) fn root_above(&self, node: NodeKey) -> Option<NodeKey> {
        let mut at = node;
        while !self.nodes.get(at)?.is_root() {
            at = self.nodes[at].parent;
        }
        Some(at)
    }

    /// The salt of the root above a node.
    ///
    /// # Panics
    ///
    /// If the node is not in the trie.
    #[must_use]
    pub fn salt_above(&self, node: NodeKey) -> &Salt {
        let root = self.root_above(node).expect("the node is in the trie");
        &self.salts[root]
    }

    /// The nodes from the top down to `end`, without the root.
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

    /// The segments on the path to `end`, from the top.
    #[must_use]
    pub fn segments(&self, end: NodeKey) -> Vec<SegmentId> {
        let path = self.path(end);
        let segments = path
            .iter()
            .map(|node| self.nodes[*node].lease_count.segment());
        segments.collect()
    }
}
