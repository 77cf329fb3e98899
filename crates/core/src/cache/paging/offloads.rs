//! Segments that are offered to the pager, and the nodes that have copies.
//!
//! A segment is leased while its bytes are copied: it stays on the device and in use. If its
//! node is split or evicted meanwhile, that does not wait for the copy. The bytes then count as
//! used until the pager has finished.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::cache::trie::{NodeKey, OffloadState, Trie};
use crate::cache::{PrefixKey, Salt};
use motet_protocol::pager::OffloadCandidate;
use motet_protocol::{CopyId, SegmentId, TokenId};

/// Maximum number of segments offered to the pager at once.
const OFFLOADS_MAX: usize = 8;
/// Divisor of the device's bytes: at most this fraction is offered at once, except for a
/// single larger segment.
const OFFLOAD_PART: usize = 4;

/// Segments offered to the pager, and the nodes that have copies.
#[derive(Debug)]
pub(super) struct Offloads {
    /// The fraction of the device's bytes that is to be free, or evictable with a copy.
    clean_part: f64,
    /// Nodes to be offered as soon as possible, in this order.
    to_flush: VecDeque<NodeKey>,
    /// Segments offered to the pager that it has not answered for.
    offloading: BTreeMap<SegmentId, Offloading>,
    /// Nodes by the copy that holds their state.
    nodes_of: BTreeMap<CopyId, Vec<NodeKey>>,
}

/// A segment that was offered to the pager.
#[derive(Debug)]
struct Offloading {
    /// `None` if the node was split or evicted meanwhile.
    node: Option<NodeKey>,
    bytes: usize,
    /// The tokens of its state, if blocks are followed.
    tokens: Option<SegmentTokens>,
}

/// An offered segment that the pager has answered for.
#[derive(Debug, Default)]
pub(super) struct Finished {
    /// Whether a node has a copy now.
    pub(super) has_copy: bool,
    /// The tokens of the segment, if blocks are followed.
    pub(super) tokens: Option<SegmentTokens>,
}

/// The tokens of an offered segment.
#[derive(Debug)]
pub(in crate::cache) struct SegmentTokens {
    /// Their key.
    pub(in crate::cache) key: PrefixKey,
    /// All tokens from the first of a sequence to the end of the segment.
    pub(in crate::cache) tokens: Arc<[TokenId]>,
    /// The offset at which the segment starts.
    pub(in crate::cache) start: usize,
}

impl Offloads {
    pub(super) fn new(clean_part: f64) -> Self {
        Self {
            clean_part,
            to_flush: VecDeque::new(),
            offloading: BTreeMap::new(),
            nodes_of: BTreeMap::new(),
        }
    }

    /// Sets the nodes to be offered as soon as possible.
    pub(super) fn flush(&mut self, nodes: Vec<NodeKey>) {
        self.to_flush = nodes.into();
    }

    /// Whether nodes are offered, or due to be, without an answer yet.
    pub(super) fn is_flushing(&self) -> bool {
        !self.to_flush.is_empty() || self.has_unanswered()
    }

    /// Whether the pager still has to answer for a segment.
    pub(super) fn has_unanswered(&self) -> bool {
        !self.offloading.is_empty()
    }

    /// Whether as many segments are offered as may be at once.
    pub(super) fn is_full(&self) -> bool {
        self.offloading.len() >= OFFLOADS_MAX
    }

    /// The next node to be flushed, if one may be offered now.
    pub(super) fn next_flushed(&mut self, trie: &Trie) -> Option<NodeKey> {
        while !self.is_full() {
            let node = self.to_flush.pop_front()?;
            if trie.is_not_offloaded(node) {
                return Some(node);
            }
        }
        None
    }

    /// Offers the coldest nodes until enough of the device is clean. `clean` of its bytes are
    /// now.
    pub(super) fn offload_cold(
        &mut self,
        clean: usize,
        bytes_max: usize,
        trie: &mut Trie,
    ) -> Vec<OffloadCandidate> {
        let mut candidates = Vec::new();
        let target_bytes = (self.clean_part * bytes_max as f64) as usize;
        let in_flight: usize = self.offloading.values().map(|one| one.bytes).sum();
        if clean + in_flight >= target_bytes {
            return candidates;
        }
        let mut missing = target_bytes - clean - in_flight;
        let mut bytes_left = (bytes_max / OFFLOAD_PART).saturating_sub(in_flight);
        for node in trie.coldest_not_offloaded(OFFLOADS_MAX - self.offloading.len()) {
            let bytes = trie.node(node).bytes();
            if missing == 0 || bytes > bytes_left && self.has_unanswered() {
                break;
            }
            candidates.extend(self.offload(node, trie));
            missing = missing.saturating_sub(bytes);
            bytes_left = bytes_left.saturating_sub(bytes);
        }
        candidates
    }

    /// Offers a node's segment under a lease. `None` if no other sequence can use it later, or
    /// if it is being evicted.
    pub(super) fn offload(&mut self, end: NodeKey, trie: &mut Trie) -> Option<OffloadCandidate> {
        let key = trie.key_above(end);
        if key.is_private() {
            trie.set_offload_state(end, OffloadState::Rejected);
            return None;
        }
        let digest = key.digest();
        let lease = trie.node(end).lease_count().lease()?;
        let path = trie.path(end);
        let edges = path.iter().map(|node| trie.node(*node).edge());
        let tokens: Arc<[TokenId]> = edges.flatten().copied().collect();
        let node = trie.node(end);
        let segment_tokens = trie.block_tokens().map(|_| SegmentTokens {
            key,
            tokens: Arc::clone(&tokens),
            start: tokens.len() - node.edge().len(),
        });
        let offloading = Offloading {
            node: Some(end),
            bytes: node.bytes(),
            tokens: segment_tokens,
        };
        let (segment_size, retention) = (node.segment_size(), node.retention());
        trie.set_offload_state(end, OffloadState::Offloading);
        self.offloading.insert(lease.segment(), offloading);
        Some(OffloadCandidate {
            lease,
            key: digest,
            tokens,
            segment_size,
            retention,
        })
    }

    /// Whether an accepted segment can be exported. If its node was split or evicted
    /// meanwhile, it is forgotten.
    pub(super) fn can_export(&mut self, segment: SegmentId) -> bool {
        let offloading = self.offloading.get(&segment);
        let is_present = offloading.is_some_and(|one| one.node.is_some());
        if !is_present {
            self.offloading.remove(&segment);
        }
        is_present
    }

    /// Handles the pager's final answer: the segment is in this copy, or in none.
    pub(super) fn finish(
        &mut self,
        segment: SegmentId,
        copy: Option<CopyId>,
        trie: &mut Trie,
    ) -> Finished {
        let Some(offloading) = self.offloading.remove(&segment) else {
            return Finished::default();
        };
        let node = offloading.node_of(segment, trie);
        if let Some(node) = node {
            match copy {
                Some(copy) => self.note_copy(node, copy, trie),
                None => trie.set_offload_state(node, OffloadState::Rejected),
            }
        }
        Finished {
            has_copy: node.is_some() && copy.is_some(),
            tokens: offloading.tokens,
        }
    }

    /// Takes a node back that is being copied, as it is about to be split or evicted. Leases
    /// outside the trie no longer count.
    pub(super) fn cancel(&mut self, key: NodeKey, trie: &mut Trie) {
        if trie.node(key).offload_state() != OffloadState::Offloading {
            return;
        }
        let segment = trie.node(key).lease_count().segment();
        trie.renew_lease_count(key);
        trie.set_offload_state(key, OffloadState::NotOffloaded);
        let offloading = self.offloading.get_mut(&segment);
        offloading.expect("an offloading node is registered").node = None;
    }

    /// Takes all nodes of a salt back that are not held.
    pub(super) fn cancel_not_held(&mut self, salt: Option<&Salt>, trie: &mut Trie) {
        let nodes: Vec<NodeKey> = self
            .offloading
            .values()
            .filter_map(|one| one.node)
            .collect();
        for node in nodes {
            let is_held = trie.node(node).ref_count() > 0;
            if !is_held && salt.is_none_or(|salt| salt == trie.salt_above(node)) {
                self.cancel(node, trie);
            }
        }
    }

    /// Handles that a segment is gone. If it was being offloaded, its lease has ended and its
    /// bytes have been copied. The bytes of a cancelled export stay in transit until the pager
    /// has answered.
    pub(super) fn note_gone(&mut self, segment: SegmentId) {
        let offloading = self.offloading.get_mut(&segment);
        if let Some(offloading) = offloading.filter(|one| one.node.is_some()) {
            (offloading.node, offloading.bytes) = (None, 0);
        }
    }

    /// Records that the node's state is in a copy.
    pub(super) fn note_copy(&mut self, node: NodeKey, copy: CopyId, trie: &mut Trie) {
        trie.set_offload_state(node, OffloadState::Offloaded(copy));
        let nodes = self.nodes_of.entry(copy).or_default();
        // Drops nodes that were evicted and loaded back under new keys.
        nodes.retain(|node| trie.contains(*node));
        nodes.push(node);
    }

    /// Handles that a copy was dropped in favour of others. It is not made again before the
    /// node is used.
    pub(super) fn lose_copy(&mut self, copy: CopyId, trie: &mut Trie) {
        for node in self.nodes_of.remove(&copy).unwrap_or_default() {
            let offloaded = OffloadState::Offloaded(copy);
            if trie.contains(node) && trie.node(node).offload_state() == offloaded {
                trie.set_offload_state(node, OffloadState::Rejected);
            }
        }
    }

    /// Whether a node on the device has its state in this copy. Evicted nodes are still listed.
    pub(super) fn is_on_device(&self, copy: CopyId, trie: &Trie) -> bool {
        let nodes = self.nodes_of.get(&copy);
        nodes.is_some_and(|nodes| nodes.iter().any(|node| trie.contains(*node)))
    }

    /// Bytes of nodes that are not held but cannot be evicted now, because the pager reads
    /// them or a node below them.
    pub(super) fn leased_bytes(&self, trie: &Trie) -> usize {
        let read = self.offloading.iter().filter_map(|(segment, one)| {
            let node = one.node_of(*segment, trie)?;
            // The pager may have dropped its lease, with the event still on its way.
            (trie.node(node).lease_count().leases() > 0).then_some(node)
        });
        let leased: BTreeSet<NodeKey> = read.flat_map(|node| trie.path(node)).collect();
        let free = leased.iter().map(|node| trie.node(*node));
        let free = free.filter(|node| node.ref_count() == 0);
        free.map(|node| node.bytes()).sum()
    }

    /// Bytes of segments whose nodes were split or evicted while the pager reads them.
    pub(super) fn cancelled_bytes(&self) -> usize {
        let cancelled = self.offloading.values().filter(|one| one.node.is_none());
        cancelled.map(|one| one.bytes).sum()
    }

    /// Takes all nodes back, as the pager is gone and has dropped its leases.
    pub(super) fn give_up(self, trie: &mut Trie) {
        for (segment, offloading) in self.offloading {
            if let Some(node) = offloading.node_of(segment, trie) {
                trie.set_offload_state(node, OffloadState::NotOffloaded);
            }
        }
    }

    /// No offloads, as the device is empty.
    pub(super) fn after_reset(self) -> Self {
        Self::new(self.clean_part)
    }

    /// Panics unless the offered segments are those that the trie says are being copied.
    pub(super) fn check_integrity(&self, trie: &Trie) {
        assert!(self.offloading.len() <= OFFLOADS_MAX, "offers are bounded");
        for (segment, one) in &self.offloading {
            let node = one.node_of(*segment, trie);
            assert_eq!(node, one.node, "an offered node keeps its segment");
        }
        let offloading = trie
            .keys()
            .filter(|key| trie.node(*key).offload_state() == OffloadState::Offloading);
        for key in offloading {
            let candidate = self.offloading.get(&trie.node(key).lease_count().segment());
            assert_eq!(
                candidate.and_then(|one| one.node),
                Some(key),
                "a node that is being copied is offered"
            );
        }
    }
}

impl Offloading {
    /// The node, if it still has the segment.
    fn node_of(&self, segment: SegmentId, trie: &Trie) -> Option<NodeKey> {
        self.node.filter(|node| {
            let is_present = trie.contains(*node);
            is_present && trie.node(*node).lease_count().segment() == segment
        })
    }
}
