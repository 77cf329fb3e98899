//! The order in which nodes are evicted, and that in which they are offloaded.

use std::collections::BTreeSet;

use super::{Class, Node, NodeKey, OffloadState};

/// The order of eviction: retention, the policy's class, last use, node.
type EvictionRank = (u8, Class, u64, NodeKey);

/// The order in which nodes are evicted, and that in which they are offloaded.
#[derive(Debug, Default)]
pub(super) struct EvictionOrder {
    /// Leaves that are not held.
    evictable: BTreeSet<EvictionRank>,
    /// Nodes without a copy, if they are tracked.
    not_offloaded: Option<NotOffloadedNodes>,
}

/// Nodes that are not held and are not [copied](OffloadState::Offloaded).
#[derive(Debug, Default)]
struct NotOffloadedNodes {
    /// Nodes among them that were neither offered nor rejected.
    order: BTreeSet<EvictionRank>,
    /// Bytes of all nodes that are neither held nor copied.
    bytes: usize,
}

/// The sequences that used a node, as far as its eviction is concerned. The orders sort by it,
/// so a node in the trie changes it in [`Trie::change`](super::Trie::change).
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeUse {
    hits: u32,
    last_use: u64,
    /// The class that the eviction policy gave to the last sequence that used it.
    class: Class,
    retention: u8,
}

/// The orders that a node is in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listing {
    /// Whether it is in the eviction order.
    is_evictable: bool,
    /// Whether it is counted in `NotOffloadedNodes`.
    is_counted: bool,
}

impl NodeUse {
    /// The use of a node that was inserted at this tick.
    pub(super) fn new(last_use: u64, class: Class, retention: u8) -> Self {
        Self {
            hits: 0,
            last_use,
            class,
            retention,
        }
    }

    pub(super) fn hits(&self) -> u32 {
        self.hits
    }

    pub(super) fn last_use(&self) -> u64 {
        self.last_use
    }

    pub(super) fn class(&self) -> Class {
        self.class
    }

    pub(super) fn retention(&self) -> u8 {
        self.retention
    }

    /// Marks the node as used at this tick.
    pub(super) fn touch(&mut self, tick: u64) {
        self.last_use = tick;
    }

    /// Counts a hit of a sequence of this class.
    pub(super) fn hit(&mut self, class: Class) {
        self.class = class;
        self.hits = self.hits.saturating_add(1);
    }

    /// Sets the node's class.
    pub(super) fn reclass(&mut self, class: Class) {
        self.class = class;
    }

    /// Forgets all uses of the node: it is evicted first.
    pub(super) fn forget(&mut self) {
        self.last_use = 0;
        self.hits = 0;
    }

    /// Sets the retention.
    pub(super) fn set_retention(&mut self, retention: u8) {
        self.retention = retention;
    }

    /// Adds the uses of a node that is merged into this one.
    pub(super) fn merge(&mut self, other: &Self) {
        self.hits = self.hits.max(other.hits);
        self.last_use = self.last_use.max(other.last_use);
    }

    fn rank(&self, key: NodeKey) -> EvictionRank {
        (self.retention, self.class, self.last_use, key)
    }
}

impl Listing {
    /// Whether the node is in the eviction order.
    pub(super) fn is_evictable(self) -> bool {
        self.is_evictable
    }
}

impl EvictionOrder {
    /// Starts to track nodes without a copy. The trie must be empty.
    pub(super) fn track_not_offloaded(&mut self) {
        self.not_offloaded = Some(NotOffloadedNodes::default());
    }

    /// Bytes of nodes that are not held and have no copy; 0 unless tracked.
    pub(super) fn not_offloaded_bytes(&self) -> usize {
        let tracked = self.not_offloaded.as_ref();
        tracked.map_or(0, |tracked| tracked.bytes)
    }

    /// Adds an evictable node to the eviction order, and a node that is not held to the nodes
    /// without a copy, if it belongs there.
    pub(super) fn list_if_free(&mut self, key: NodeKey, node: &mut Node) {
        if node.is_root() || node.hold.is_held() {
            return;
        }
        let rank = node.usage.rank(key);
        let listing = &mut node.listing;
        if let Some(tracked) = &mut self.not_offloaded
            && !listing.is_counted
            && !node.offload_state.has_copy()
        {
            listing.is_counted = true;
            tracked.bytes += node.bytes;
            if node.offload_state == OffloadState::NotOffloaded {
                tracked.order.insert(rank);
            }
        }
        if node.children.is_empty() {
            listing.is_evictable = true;
            self.evictable.insert(rank);
        }
    }

    /// Removes a node from both orders, before its rank or its bytes change.
    pub(super) fn unlist(&mut self, key: NodeKey, node: &mut Node) {
        let rank = node.usage.rank(key);
        let listing = std::mem::take(&mut node.listing);
        if listing.is_evictable {
            self.evictable.remove(&rank);
        }
        if let Some(tracked) = &mut self.not_offloaded
            && listing.is_counted
        {
            tracked.bytes -= node.bytes;
            tracked.order.remove(&rank);
        }
    }

    /// The evictable node with the lowest score within the lowest retention, among
    /// the oldest and the newest node of each class. A node in between has a lower score than
    /// both only if the chances of reuse rise and fall more than once.
    pub(super) fn lowest(&self, score: impl Fn(NodeKey) -> u64) -> Option<NodeKey> {
        let mut oldest = self.evictable.first();
        let retention = oldest?.0;
        let mut least: Option<(u64, u64, NodeKey)> = None;
        while let Some(&(_, class, ..)) = oldest.filter(|rank| rank.0 == retention) {
            // A tick never gets this large.
            let end = (retention, class, u64::MAX, NodeKey::default());
            let newest = self.evictable.range(..end).next_back();
            for &(_, _, last_use, key) in [oldest, newest].into_iter().flatten() {
                let score = score(key);
                if least.is_none_or(|(low, used, _)| (score, last_use) < (low, used)) {
                    least = Some((score, last_use, key));
                }
            }
            oldest = self.evictable.range(end..).next();
        }
        least.map(|(_, _, key)| key)
    }

    /// The evictable nodes in their order.
    pub(super) fn evictable(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.evictable.iter().map(|rank| rank.3)
    }

    /// The coldest nodes without a copy, coldest first, up to `count`. Empty unless such nodes
    /// are tracked.
    pub(super) fn coldest_not_offloaded(
        &self,
        count: usize,
        score: impl Fn(NodeKey) -> u64,
    ) -> Vec<NodeKey> {
        let Some(tracked) = &self.not_offloaded else {
            return Vec::new();
        };
        let mut coldest: Vec<(u8, u64, u64, NodeKey)> = Vec::new();
        let mut oldest = tracked.order.first();
        while let Some(&(retention, class, ..)) = oldest {
            let begin = (retention, class, 0, NodeKey::default());
            // A tick never gets this large.
            let end = (retention, class, u64::MAX, NodeKey::default());
            let of_class = tracked.order.range(begin..end);
            coldest.extend(
                of_class
                    .take(count)
                    .map(|&(_, _, last_use, key)| (retention, score(key), last_use, key)),
            );
            oldest = tracked.order.range(end..).next();
        }
        coldest.sort_unstable();
        coldest.truncate(count);
        coldest.into_iter().map(|(.., key)| key).collect()
    }

    /// Panics unless both orders hold exactly the nodes that belong there. Roots must be left
    /// out.
    pub(super) fn check_integrity<'a>(&self, nodes: impl Iterator<Item = (NodeKey, &'a Node)>) {
        let (mut evictable, mut not_offloaded, mut bytes) = (0, 0, 0);
        for (key, node) in nodes {
            let (rank, listing) = (node.usage.rank(key), node.listing);
            let is_held = node.hold.is_held();
            assert_eq!(
                listing.is_evictable,
                node.children.is_empty() && !is_held,
                "exactly the leaves that are not held are evictable"
            );
            if listing.is_evictable {
                evictable += 1;
                assert!(
                    self.evictable.contains(&rank),
                    "an evictable node is in the eviction order"
                );
            }
            let tracked = self.not_offloaded.as_ref();
            assert_eq!(
                listing.is_counted,
                tracked.is_some() && !is_held && !node.offload_state.has_copy(),
                "exactly the nodes without a copy that are not held are counted"
            );
            if let Some(tracked) = tracked.filter(|_| listing.is_counted) {
                bytes += node.bytes;
                if node.offload_state == OffloadState::NotOffloaded {
                    not_offloaded += 1;
                    assert!(
                        tracked.order.contains(&rank),
                        "a node without a copy is in their order"
                    );
                }
            }
        }
        assert_eq!(
            evictable,
            self.evictable.len(),
            "the eviction order holds only evictable nodes"
        );
        if let Some(tracked) = &self.not_offloaded {
            assert_eq!(
                not_offloaded,
                tracked.order.len(),
                "the order of nodes without a copy holds no others"
            );
            assert_eq!(bytes, tracked.bytes, "bytes without a copy add up");
        }
    }
}
