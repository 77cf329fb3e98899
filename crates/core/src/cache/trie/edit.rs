//! Insert, split, merge, replace, remove.

use super::adapters::Adapter;
use super::children::{Children, First};
use super::{
    Class, EndState, Hold, Listing, Node, NodeKey, NodeUse, OffloadState, RESUMES_MAX, Sealed, Trie,
};
use motet_protocol::SegmentSize;
use motet_protocol::{PrefixKey, Salt};
use motet_protocol::{SegmentId, TokenId};

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
            adapter: Adapter::default(),
            // A root caches no tokens and owns no segment on the device.
            hold: Hold::new(SegmentId(0)),
            tokens_before: 0,
            state_lag: 0,
            bytes: 0,
            usage: NodeUse::new(0, Class::default(), 0),
            listing: Listing::default(),
            offload_state: OffloadState::NotOffloaded,
            is_shared: false,
            end_state: EndState::default(),
        });
        self.roots.insert(salt.clone(), root);
        self.salts.insert(root, salt.clone());
        root
    }

    /// Adds a node with this `edge` below `parent`, on a path with this key, and marks the path as used
    /// now.
    ///
    /// # Panics
    ///
    /// If `edge` is empty, a child of `parent` starts with the same token, or an adapter begins within
    /// the edge.
    pub fn insert(
        &mut self,
        parent: NodeKey,
        key: &PrefixKey,
        edge: &[TokenId],
        sealed: Sealed,
        retention: u8,
        class: Class,
    ) -> NodeKey {
        let adapter = self.adapter_or_new(parent, key);
        let above = &self.nodes[parent];
        assert!(
            edge.len() <= key.tokens_alike(above.end()),
            "a node ends where an adapter begins"
        );
        let node = Node {
            parent,
            children: Children::new(),
            edge: edge.into(),
            adapter,
            tokens_before: above.end() as u32,
            state_lag: sealed.state_lag as u32,
            bytes: sealed.bytes,
            hold: Hold::new(sealed.segment),
            usage: NodeUse::new(self.tick, class, retention),
            listing: Listing::default(),
            offload_state: OffloadState::NotOffloaded,
            is_shared: false,
            end_state: EndState::default(),
        };
        let key = self.nodes.insert(node);
        let first = self.nodes[key].first();
        let before = self.nodes[parent].children.insert(first, key);
        assert!(
            before.is_none(),
            "the edges below a node start with different tokens"
        );
        self.unlist(parent);
        self.tokens += edge.len();
        self.bytes += sealed.bytes;
        self.snapshots.add(self.nodes[key].segment_size());
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
        self.nodes[key].hold.end_leases()?;
        self.unlist(key);
        let node = &mut self.nodes[key];
        self.snapshots.remove(node.segment_size());
        let parent = node.parent;
        let edge = std::mem::take(&mut node.edge);
        assert!(0 < at && at < edge.len(), "an edge is split inside");
        let whole_bytes = node.bytes;
        let above = Node {
            parent,
            children: Children::of(
                First {
                    adapter: node.adapter,
                    token: edge[at],
                },
                key,
            ),
            edge: edge[..at].into(),
            adapter: node.adapter,
            tokens_before: node.tokens_before,
            state_lag: upper.state_lag as u32,
            bytes: upper.bytes,
            hold: node.hold.with_segment(upper.segment),
            usage: node.usage,
            listing: Listing::default(),
            offload_state: OffloadState::NotOffloaded,
            is_shared: false,
            end_state: EndState::default(),
        };
        node.edge = edge[at..].into();
        node.tokens_before += at as u32;
        node.state_lag = lower.state_lag as u32;
        node.bytes = lower.bytes;
        node.hold = node.hold.with_segment(lower.segment);
        if node.hold.is_held() {
            self.protected_bytes += upper.bytes + lower.bytes;
            self.protected_bytes -= whole_bytes;
        }
        self.bytes += upper.bytes + lower.bytes;
        self.bytes -= whole_bytes;
        self.snapshots.add(node.segment_size());
        self.snapshots.add(above.segment_size());
        let first = above.first();
        let above = self.nodes.insert(above);
        self.nodes[parent].children.insert(first, above);
        self.nodes[key].parent = above;
        self.list_if_free(key);
        self.list_if_free(above);
        self.note_split(key, above);
        Some(above)
    }

    /// The only child of `upper`, if the two may be merged: neither is held or leased, both
    /// have the same adapter and retention, and `upper` is no restore point.
    #[must_use]
    pub fn merges(&self, upper: NodeKey) -> Option<NodeKey> {
        let above = &self.nodes[upper];
        let child = above.children.only()?;
        let below = &self.nodes[child];
        let free = above.hold.is_free() && below.hold.is_free();
        let alike = above.adapter == below.adapter
            && above.usage.retention() == below.usage.retention()
            && !above.end_state.is_named;
        (!above.is_root() && free && alike).then_some(child)
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
            let ended = self.nodes[key].hold.end_leases();
            ended.expect("neither node is held or leased");
        }
        self.unlist(upper);
        self.unlist(lower);
        let above = self
            .nodes
            .remove(upper)
            .expect("the upper node is in the trie");
        let node = &mut self.nodes[lower];
        let gone = (above.hold.segment(), node.hold.segment());
        self.bytes -= above.bytes + node.bytes;
        self.bytes += merged.bytes;
        self.snapshots.remove(above.segment_size());
        self.snapshots.remove(node.segment_size());
        node.edge = above.edge.iter().chain(&node.edge).copied().collect();
        node.parent = above.parent;
        node.tokens_before = above.tokens_before;
        node.usage.merge(&above.usage);
        if !node.offload_state.has_copy() || node.offload_state != above.offload_state {
            node.offload_state = OffloadState::NotOffloaded;
        }
        node.is_shared = false;
        node.state_lag = merged.state_lag as u32;
        node.bytes = merged.bytes;
        self.snapshots.add(node.segment_size());
        node.hold = node.hold.with_segment(merged.segment);
        self.nodes[above.parent]
            .children
            .insert(above.first(), lower);
        self.list_if_free(lower);
        self.note_merged(upper, lower);
        gone
    }

    /// Gives a node another segment of the same tokens. Slots and pins then hold the new
    /// segment. Returns the old segment. Returns `None` and changes nothing while a lease of
    /// it exists outside the trie.
    pub fn replace(&mut self, key: NodeKey, sealed: Sealed) -> Option<SegmentId> {
        self.put_segment(key, sealed, false)
    }

    /// Replaces a node's segment by one that holds less of the state at its end. A copy of the
    /// old one serves as a copy of the new one. Otherwise as [`replace`](Self::replace).
    pub(crate) fn strip(&mut self, key: NodeKey, sealed: Sealed) -> Option<SegmentId> {
        let gone = self.put_segment(key, sealed, true)?;
        let end_state = &mut self.nodes[key].end_state;
        *end_state = EndState {
            is_named: end_state.is_named,
            ..EndState::default()
        };
        Some(gone)
    }

    fn put_segment(&mut self, key: NodeKey, sealed: Sealed, keeps_copy: bool) -> Option<SegmentId> {
        let gone = self.nodes[key].hold.end_leases()?;
        self.snapshots.remove(self.nodes[key].segment_size());
        let before = self.change(key, |node| {
            if !(keeps_copy && node.offload_state.has_copy()) {
                node.offload_state = OffloadState::NotOffloaded;
                node.is_shared = false;
            }
            node.state_lag = sealed.state_lag as u32;
            node.hold = node.hold.with_segment(sealed.segment);
            std::mem::replace(&mut node.bytes, sealed.bytes)
        });
        self.snapshots.add(self.nodes[key].segment_size());
        if self.nodes[key].hold.is_held() {
            self.protected_bytes -= before;
            self.protected_bytes += sealed.bytes;
        }
        self.bytes -= before;
        self.bytes += sealed.bytes;
        Some(gone)
    }

    /// Records that the pager was asked to send the node's copy to other processes.
    pub(crate) fn set_shared(&mut self, key: NodeKey) {
        self.nodes[key].is_shared = true;
    }

    /// Sets whether the node's state is also in a copy outside the device.
    pub fn set_offload_state(&mut self, key: NodeKey, offload_state: OffloadState) {
        self.change(key, |node| node.offload_state = offload_state);
    }

    /// Gives the node's segment a new lease count, so that leases outside the trie no longer
    /// protect the node.
    pub fn renew_lease_count(&mut self, key: NodeKey) {
        self.nodes[key].hold.renew();
    }

    /// Keeps the node's end restorable.
    pub fn keep_restorable(&mut self, key: NodeKey) {
        self.nodes[key].end_state.is_named = true;
    }

    /// Records that the conversation of a prompt ends at the node's end.
    pub(crate) fn note_turn_end(&mut self, key: NodeKey) {
        self.nodes[key].end_state.is_turn_end = true;
    }

    /// Records that the output of a sequence ends at the node's end.
    pub(crate) fn note_output(&mut self, key: NodeKey) {
        self.nodes[key].end_state.is_output = true;
    }

    /// Records that a sequence resumes at the node's end.
    pub(crate) fn note_resume(&mut self, key: NodeKey) {
        let end_state = &mut self.nodes[key].end_state;
        end_state.resumes = (end_state.resumes + 1).min(RESUMES_MAX);
    }

    /// Raises the retention of a path to at least `retention`.
    pub fn raise_retention(&mut self, end: NodeKey, retention: u8) {
        let mut at = end;
        while !self.nodes[at].is_root() {
            if self.nodes[at].usage.retention() < retention {
                self.change(at, |node| node.usage.set_retention(retention));
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
        self.snapshots.remove(node.segment_size());
        self.nodes[node.parent].children.remove(node.first());
        self.list_if_free(node.parent);
        self.drop_empty_root(node.parent);
        node
    }

    /// The adapter that computes what comes after a node on a path with this key.
    fn adapter_or_new(&mut self, node: NodeKey, key: &PrefixKey) -> Adapter {
        match key.adapter_at(self.nodes[node].end()) {
            Some(adapter) => self.adapters.get_or_new(adapter),
            None => Adapter::default(),
        }
    }

    /// Removes a root without children that is not held.
    pub(super) fn drop_empty_root(&mut self, key: NodeKey) {
        let node = &self.nodes[key];
        if node.is_root() && node.children.is_empty() && !node.hold.is_held() {
            self.nodes.remove(key);
            let salt = self.salts.remove(key).expect("a root belongs to a salt");
            self.roots.remove(&salt);
        }
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
