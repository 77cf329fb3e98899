//! The compressed prefix trie: the cached state and its tokens.
//!
//! A node is an *end*: the state after the tokens on the path from its root to it. Its edge is
//! the token range since its parent, and the node owns the sealed segment of that range.
//! Children are found by the first token of their edge, and by the adapter that computes it. A split adds a new node above, and the
//! old key keeps its end. A merge keeps the key of the lower node. A remembered key therefore
//! never changes its meaning. Each [salt](Salt) has a root of its own, and the nodes below two
//! roots are never shared. An edge is computed by one adapter, or by the base model: where an adapter begins
//! on the path of a [key](PrefixKey), a node ends.
//!
//! | file | contents |
//! |---|---|
//! | `edit.rs` | insert, split, merge, replace, remove |
//! | `order.rs` | holding, using and evicting nodes |
//! | `hold.rs` | the references to one node |
//! | `eviction_order.rs` | the order in which nodes are evicted and offloaded |
//! | `blocks.rs` | the cached tokens as whole blocks, for followers |
//! | `children.rs` | children by first token and adapter |
//! | `adapters.rs` | the adapters, by number |
//! | `snapshots.rs` | the state that is held beside keys and values of full attention |
//! | `integrity.rs` | the invariants of the trie |

mod adapters;
mod blocks;
mod children;
mod edit;
mod eviction_order;
mod hold;
mod integrity;
mod order;
mod snapshots;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use slotmap::{SecondaryMap, SlotMap};
use smallvec::SmallVec;

use crate::eviction::{Asked, Class, Eviction, Facts, SequenceMark};
use adapters::{Adapter, Adapters};
use blocks::Blocks;
use children::{Children, First};
use eviction_order::{EvictionOrder, Listing, NodeUse};
use hold::Hold;
use motet_protocol::lease::LeaseCount;
use motet_protocol::{ActiveAdapter, AdapterKey, PrefixKey, Salt};
use motet_protocol::{CopyId, SegmentId, TokenId};
use motet_protocol::{ModelSpec, SegmentSize};

pub use crate::eviction::NodeKey;
pub(super) use blocks::LiveBlocks;
pub use blocks::{BlockEvent, BlockHash, BlockTier};
pub use motet_protocol::common_prefix;
pub use order::Evicted;
pub(crate) use snapshots::Snapshots;

/// Most paths among which a continuation chooses: where more part, none is likely.
const BRANCHES_MAX: usize = 32;

/// One cached token range.
#[derive(Debug)]
pub struct Node {
    parent: NodeKey,
    children: Children,
    edge: Box<[TokenId]>,
    /// The adapter that computed its state.
    adapter: Adapter,
    tokens_before: u32,
    state_lag: u32,
    bytes: usize,
    hold: Hold,
    usage: NodeUse,
    listing: Listing,
    offload_state: OffloadState,
    /// Whether the pager was asked to send its copy to other processes.
    is_shared: bool,
    end_state: EndState,
}

/// The part that the state at a node's end has played, for models that resume only where state
/// was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndState {
    /// Whether a caller asked to keep the end restorable.
    pub(crate) is_named: bool,
    /// Whether the conversation of a prompt ended there.
    pub(crate) is_turn_end: bool,
    /// Whether a sequence ended there.
    pub(crate) is_output: bool,
    /// Sequences that resumed there, up to [`RESUMES_MAX`].
    pub(crate) resumes: u8,
}

/// The policy asks whether more than one sequence resumed at a node.
const RESUMES_MAX: u8 = 2;

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
    adapters: Adapters,
    order: EvictionOrder,
    policy: Box<dyn Eviction>,
    tokens: usize,
    bytes: usize,
    protected_bytes: usize,
    tick: u64,
    /// The cached blocks, if they are followed.
    blocks: Option<Blocks>,
    snapshots: Snapshots,
}

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
        self.hold.lease_count()
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
        self.hold.ref_count() as usize
    }

    /// Sequences that have used it since it was inserted.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.usage.hits()
    }

    /// Its last use, in [ticks](Trie::tick).
    #[must_use]
    pub fn last_use(&self) -> u64 {
        self.usage.last_use()
    }

    /// Retention, the highest of its publishers. The lowest retention is evicted
    /// first.
    #[must_use]
    pub fn retention(&self) -> u8 {
        self.usage.retention()
    }

    /// Whether a caller asked to keep its end restorable. Such a node is never merged into its
    /// child.
    #[must_use]
    pub fn restore_point(&self) -> bool {
        self.end_state.is_named
    }

    /// The part that the state at its end has played.
    pub(crate) fn end_state(&self) -> EndState {
        self.end_state
    }

    /// Whether its state is also in a copy outside the device.
    #[must_use]
    pub fn offload_state(&self) -> OffloadState {
        self.offload_state
    }

    /// Whether the pager was asked to send its copy to other processes.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Its children, in no particular order.
    pub fn children(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.children.iter().map(|(_, child)| child)
    }

    /// The number of nodes directly below it.
    #[must_use]
    pub fn child_count(&self) -> usize {
        self.children.len()
    }

    /// The indices of the blocks of `block_tokens` tokens, counted from the root, that end
    /// within it.
    fn blocks(&self, block_tokens: usize) -> Range<usize> {
        self.tokens_before as usize / block_tokens..self.end() / block_tokens
    }

    fn is_root(&self) -> bool {
        self.edge.is_empty()
    }

    /// The beginning of its edge.
    fn first(&self) -> First {
        First {
            adapter: self.adapter,
            token: self.edge[0],
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            tokens_before: self.tokens_before as usize,
            tokens: self.edge.len(),
            bytes: self.bytes,
            last_use: self.usage.last_use(),
            class: self.usage.class(),
        }
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
            adapters: Adapters::default(),
            order: EvictionOrder::default(),
            policy,
            tokens: 0,
            bytes: 0,
            protected_bytes: 0,
            tick: 0,
            blocks: None,
            snapshots: Snapshots::default(),
        }
    }

    /// Starts to count the state that a model cannot cut at any token. The trie must be empty.
    pub(crate) fn count_snapshots(&mut self, spec: &ModelSpec) {
        assert!(self.is_empty(), "counting starts while the trie is empty");
        self.snapshots = Snapshots::of(spec);
    }

    /// The state that the nodes hold beside keys and values of full attention.
    pub(crate) fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// Whether the path of a slot or a pin ends at this node.
    pub(crate) fn is_path_end(&self, key: NodeKey) -> bool {
        let node = &self.nodes[key];
        let below = node.children().map(|child| self.nodes[child].ref_count());
        node.ref_count() > below.sum()
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

    /// Whether a node that is in the trie is the root of a salt.
    pub(crate) fn is_root(&self, key: NodeKey) -> bool {
        self.nodes[key].is_root()
    }

    /// Whether the node is still in the trie, without a copy that exists or is being made.
    pub(crate) fn is_not_offloaded(&self, key: NodeKey) -> bool {
        let node = self.nodes.get(key);
        node.is_some_and(|node| node.offload_state == OffloadState::NotOffloaded)
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
        self.order.track_not_offloaded();
    }

    /// Bytes of nodes that are not held and have no copy; 0 unless tracked.
    #[must_use]
    pub fn not_offloaded_bytes(&self) -> usize {
        self.order.not_offloaded_bytes()
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

    /// Finds how far `tokens` of a sequence with this key are cached below `from`: full edges, then at
    /// most one partial edge. Reads each token once.
    #[must_use]
    pub fn find(&self, from: NodeKey, key: &PrefixKey, tokens: &[TokenId]) -> Match {
        let mut found = Match::default();
        let mut at = from;
        while let Some(token) = tokens.get(found.tokens)
            && let Some(adapter) = self.adapter_after(at, key)
            && let Some(child) = self.nodes[at].children.get(First {
                adapter,
                token: *token,
            })
        {
            let edge = &self.nodes[child].edge;
            let rest = &tokens[found.tokens..];
            let alike = key.tokens_alike(self.nodes[at].end()).min(rest.len());
            let shared = common_prefix(edge, &rest[..alike]);
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

    /// Returns what comes after `tokens` below `from` with this key, at most `tokens_max` tokens: where
    /// paths part, along the one that was used last. It ends where more than 32 part. Empty
    /// unless all of `tokens` are cached.
    #[must_use]
    pub fn continuation(
        &self,
        from: NodeKey,
        key: &PrefixKey,
        tokens: &[TokenId],
        tokens_max: usize,
    ) -> Arc<[TokenId]> {
        let found = self.find(from, key, tokens);
        if found.tokens_with_partial() < tokens.len() {
            return Arc::default();
        }
        let mut continuation = Vec::new();
        let mut at = found.path.last().copied().unwrap_or(from);
        if let Some((node, tokens)) = found.partial {
            continuation.extend(self.nodes[node].edge[tokens..].iter().take(tokens_max));
            at = node;
        }
        while continuation.len() < tokens_max
            && self.nodes[at].child_count() <= BRANCHES_MAX
            && let Some(adapter) = self.adapter_after(at, key)
            && let Some(next) = self.nodes[at]
                .children()
                .filter(|child| self.nodes[*child].adapter == adapter)
                .max_by_key(|child| self.nodes[*child].last_use())
        {
            let left = tokens_max - continuation.len();
            continuation.extend(self.nodes[next].edge.iter().take(left));
            at = next;
        }
        continuation.into()
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

    /// The key of the prefix that ends at a node.
    ///
    /// # Panics
    ///
    /// If the node is not in the trie.
    #[must_use]
    pub fn key_above(&self, node: NodeKey) -> PrefixKey {
        let salt = self.salt_above(node).clone();
        let mut at = &self.nodes[node];
        let number = at.adapter;
        while self.nodes[at.parent].adapter == number && !at.is_root() {
            at = &self.nodes[at.parent];
        }
        let adapter = self.adapter_of(node).map(|key| ActiveAdapter {
            key,
            from: at.tokens_before as usize,
        });
        PrefixKey { salt, adapter }
    }

    /// The adapter that computed a node's state.
    pub(crate) fn adapter_of(&self, node: NodeKey) -> Option<AdapterKey> {
        self.adapters.key(self.nodes[node].adapter)
    }

    /// The adapter and the token that a node's edge begins with, to order nodes by.
    pub(crate) fn first_of(&self, node: NodeKey) -> (Option<AdapterKey>, TokenId) {
        (self.adapter_of(node), self.nodes[node].edge[0])
    }

    /// The adapter that computes what comes after a node on a path with this key. `None` if it has not
    /// computed anything.
    fn adapter_after(&self, node: NodeKey, key: &PrefixKey) -> Option<Adapter> {
        match key.adapter_at(self.nodes[node].end()) {
            Some(adapter) => self.adapters.get(adapter),
            None => Some(Adapter::default()),
        }
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

    /// Whether the path to `end` leads through one of these nodes.
    pub(crate) fn leads_through(&self, end: NodeKey, nodes: &[NodeKey]) -> bool {
        self.path(end).iter().any(|node| nodes.contains(node))
    }

    /// The last node on the path to `end` that ends within the first `tokens` tokens.
    pub(crate) fn within(&self, end: NodeKey, tokens: usize) -> NodeKey {
        let mut at = end;
        while self.nodes[at].end() > tokens {
            at = self.nodes[at].parent;
        }
        at
    }

    /// The sizes of the segments on the path to `end`.
    pub(crate) fn segment_sizes(&self, end: NodeKey) -> Vec<SegmentSize> {
        let path = self.path(end);
        path.iter()
            .map(|node| self.nodes[*node].segment_size())
            .collect()
    }

    /// The segments on the path to `end`, from the top.
    #[must_use]
    pub fn segments(&self, end: NodeKey) -> Vec<SegmentId> {
        let path = self.path(end);
        let segments = path.iter().map(|node| self.nodes[*node].hold.segment());
        segments.collect()
    }
}
