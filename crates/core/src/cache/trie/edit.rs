//! Insert, split, merge, replace, remove.

use super::children::Children;
use super::{Class, Node, NodeKey, OffloadState, Sealed, Trie};
use crate::lease::LeaseCount;
use crate::protocol::Salt;
use crate::protocol::SegmentSize;
use crate::{SegmentId, TokenId};

impl Trie {
    /// Returns the root of this salt; creates it if needed.
    pub fn root_or_new(&mut self, salt: &Salt) -> NodeKey {
        if let Some(root) = self.roots.get(salt) {
            return *root;
        }
        let root = self.nodes.insert_with_key(|key| Node {
            parent: key,
            children: Children::new(),
            edge: Box::default(),
            // A root caches no tokens and owns no segment on the device.
            lease_count: LeaseCount::new(SegmentId(0)),
            lease: None,
            ref_count: 0,
            hits: 0,
            tokens_before: 0,
            state_lag: 0,
            bytes: 0,
            last_use: 0,
            class: Class::default(),
            priority: 0,
            listed: false,
            restore_point: false,
            offload_state: OffloadState::NotOffloaded,
            counted: false,
        });
        self.roots.insert(salt.clone(), root);
        self.salts.insert(root, salt.clone());
        root
    }

    /// Adds a node with this `edge` below `parent` and marks its path as used now.
    ///
    /// # Panics
    ///
    /// If `edge` is empty or a child of `parent` starts with the same token.
    pub fn insert(
        &mut self,
        parent: NodeKey,
        edge: &[TokenId],
        sealed: Sealed,
        priority: u8,
        class: Class,
    ) -> NodeKey {
        let above = &self.nodes[parent];
        let node = Node {
            parent,
            children: Children::new(),
            edge: edge.into(),
            lease_count: LeaseCount::new(sealed.segment),
            lease: None,
            ref_count: 0,
            hits: 0,
            tokens_before: above.end() as u32,
            state_lag: sealed.state_lag as u32,
            bytes: sealed.bytes,
            last_use: self.tick,
            class,
            priority,
            listed: false,
            restore_point: false,
            offload_state: OffloadState::NotOffloaded,
            counted: false,
        };
        let key = self.nodes.insert(node);
        let before = self.nodes[parent].children.insert(edge[0], key);
        assert!(
            before.is_none(),
            "the edges below a node start with different tokens"
        );
        self.unlist(parent);
        self.tokens += edge.len();
        self.bytes += sealed.bytes;
        self.touch(key);
        self.list_if_free(key);
        self.note_stored(key);
        key
    }

    /// Splits a node's edge after `at` tokens. The returned new node holds the upper part.
    /// `key` keeps its end, its children and its place in the eviction order. Slots and pins
    /// that hold the node then hold both parts. Returns `None` and changes nothing if a lease
    /// of the segment exists outside the trie.
    ///
    /// # Panics
    ///
    /// Unless `0 < at < edge length`.
    pub fn split(
        &mut self,
        key: NodeKey,
        at: usize,
        upper: Sealed,
        lower: Sealed,
    ) -> Option<NodeKey> {
        self.take_lease_count(key)?;
        self.unlist(key);
        let node = &mut self.nodes[key];
        let (parent, ref_count) = (node.parent, node.ref_count);
        let edge = std::mem::take(&mut node.edge);
        assert!(0 < at && at < edge.len(), "an edge is split inside");
        let whole_bytes = node.bytes;
        let mut above = Node {
            parent,
            children: Children::of(edge[at], key),
            edge: edge[..at].into(),
            lease_count: LeaseCount::new(upper.segment),
            lease: None,
            ref_count,
            hits: node.hits,
            tokens_before: node.tokens_before,
            state_lag: upper.state_lag as u32,
            bytes: upper.bytes,
            last_use: node.last_use,
            class: node.class,
            priority: node.priority,
            listed: false,
            restore_point: false,
            offload_state: OffloadState::NotOffloaded,
            counted: false,
        };
        node.edge = edge[at..].into();
        node.tokens_before += at as u32;
        node.state_lag = lower.state_lag as u32;
        node.bytes = lower.bytes;
        node.lease_count = LeaseCount::new(lower.segment);
        if ref_count > 0 {
            above.lease = above.lease_count.lease();
            node.lease = node.lease_count.lease();
            self.protected_bytes += upper.bytes + lower.bytes;
            self.protected_bytes -= whole_bytes;
        }
        self.bytes += upper.bytes + lower.bytes;
        self.bytes -= whole_bytes;
        let above = self.nodes.insert(above);
        self.nodes[parent].children.insert(edge[0], above);
        self.nodes[key].parent = above;
        self.list_if_free(key);
        self.list_if_free(above);
        self.note_split(key, above);
        Some(above)
    }

    /// The only child of `upper`, if the two may be merged: neither is held or leased, both
    /// have the same priority, and `upper` is no restore point.
    #[must_use]
    pub fn merges(&self, upper: NodeKey) -> Option<NodeKey> {
        let above = &self.nodes[upper];
        let child = above.children.only()?;
        let below = &self.nodes[child];
        let free = |node: &Node| node.ref_count == 0 && node.lease_count.leases() == 0;
        let alike = above.priority == below.priority && !above.restore_point;
        (!above.is_root() && free(above) && free(below) && alike).then_some(child)
    }

    /// Merges `upper` and its only child, whose key and end stay. Returns the two segments
    /// that are gone.
    ///
    /// # Panics
    ///
    /// Unless [`merges`](Self::merges) allows it.
    pub fn merge(&mut self, upper: NodeKey, merged: Sealed) -> (SegmentId, SegmentId) {
        let lower = self.merges(upper).expect("the two can be merged");
        for key in [upper, lower] {
            self.take_lease_count(key)
                .expect("neither node is held or leased");
        }
        self.unlist(upper);
        self.unlist(lower);
        let above = self
            .nodes
            .remove(upper)
            .expect("the upper node is in the trie");
        let node = &mut self.nodes[lower];
        let gone = (above.lease_count.segment(), node.lease_count.segment());
        self.bytes -= above.bytes + node.bytes;
        self.bytes += merged.bytes;
        node.edge = above.edge.iter().chain(&node.edge).copied().collect();
        node.parent = above.parent;
        node.tokens_before = above.tokens_before;
        node.hits = node.hits.max(above.hits);
        node.last_use = node.last_use.max(above.last_use);
        if !node.offload_state.has_copy() || node.offload_state != above.offload_state {
            node.offload_state = OffloadState::NotOffloaded;
        }
        node.state_lag = merged.state_lag as u32;
        node.bytes = merged.bytes;
        node.lease_count = LeaseCount::new(merged.segment);
        self.nodes[above.parent]
            .children
            .insert(above.edge[0], lower);
        self.list_if_free(lower);
        self.note_merged(upper, lower);
        gone
    }

    /// Gives a node another segment of the same tokens. Slots and pins then hold the new
    /// segment. Returns the old segment. Returns `None` and changes nothing while a lease of
    /// it exists outside the trie.
    pub fn replace(&mut self, key: NodeKey, sealed: Sealed) -> Option<SegmentId> {
        let gone = self.take_lease_count(key)?;
        self.unlist(key);
        let node = &mut self.nodes[key];
        let before = std::mem::replace(&mut node.bytes, sealed.bytes);
        node.offload_state = OffloadState::NotOffloaded;
        node.state_lag = sealed.state_lag as u32;
        node.lease_count = LeaseCount::new(sealed.segment);
        if node.ref_count > 0 {
            node.lease = node.lease_count.lease();
            self.protected_bytes -= before;
            self.protected_bytes += sealed.bytes;
        }
        self.bytes -= before;
        self.bytes += sealed.bytes;
        self.list_if_free(key);
        Some(gone)
    }

    /// Sets whether the node's state is also in a copy outside the device.
    pub fn set_offload_state(&mut self, key: NodeKey, offload_state: OffloadState) {
        self.unlist(key);
        self.nodes[key].offload_state = offload_state;
        self.list_if_free(key);
    }

    /// Gives the node's segment a new lease count, so that leases outside the trie no longer
    /// protect the node.
    pub fn renew_lease_count(&mut self, key: NodeKey) {
        let node = &mut self.nodes[key];
        node.lease_count = LeaseCount::new(node.lease_count.segment());
        node.lease = node.lease_count.lease().filter(|_| node.ref_count > 0);
    }

    /// Keeps the node's end restorable.
    pub fn keep_restorable(&mut self, key: NodeKey) {
        self.nodes[key].restore_point = true;
    }

    /// Raises the retention priority of a path to at least `priority`.
    pub fn raise_priority(&mut self, end: NodeKey, priority: u8) {
        let mut at = end;
        while !self.nodes[at].is_root() {
            if self.nodes[at].priority < priority {
                self.unlist(at);
                self.nodes[at].priority = priority;
                self.list_if_free(at);
            }
            at = self.nodes[at].parent;
        }
    }

    /// Removes a leaf that is not in the eviction order.
    pub(super) fn remove_leaf(&mut self, key: NodeKey) -> Node {
        self.note_removed(key);
        let node = self.nodes.remove(key).expect("a leaf is in the trie");
        assert!(node.children.is_empty(), "only leaves are removed");
        self.tokens -= node.edge.len();
        self.bytes -= node.bytes;
        self.nodes[node.parent].children.remove(node.edge[0]);
        self.list_if_free(node.parent);
        self.drop_empty_root(node.parent);
        node
    }

    /// Removes a root without children that is not held.
    pub(super) fn drop_empty_root(&mut self, key: NodeKey) {
        let node = &self.nodes[key];
        if node.is_root() && node.children.is_empty() && node.ref_count == 0 {
            self.nodes.remove(key);
            let salt = self.salts.remove(key).expect("a root belongs to a salt");
            self.roots.remove(&salt);
        }
    }

    /// Takes the node's lease count, so that it can be replaced. Nodes that are held must be
    /// leased again. `None` if a lease exists outside the trie.
    fn take_lease_count(&mut self, key: NodeKey) -> Option<SegmentId> {
        let node = &mut self.nodes[key];
        let held = node.lease.take();
        let ours = usize::from(held.is_some());
        if node.lease_count.leases() != ours {
            node.lease = held;
            return None;
        }
        drop(held);
        // Only the trie leases its segments, and it is borrowed mutably here.
        assert!(node.lease_count.try_evict(), "no lease is taken meanwhile");
        Some(node.lease_count.segment())
    }
}

impl Sealed {
    /// Its size, given its tokens.
    #[must_use]
    pub fn segment_size(&self, tokens: usize) -> SegmentSize {
        SegmentSize {
            tokens,
            state_lag: self.state_lag,
        }
    }
}
