//! Offload ahead of need.
//!
//! A configured part of the device is kept *clean*: free, or evictable and held in a copy as
//! well, so that it can be dropped at no cost. The coldest nodes are offered to the pager
//! first. A segment is leased while its bytes are copied: it stays on the device and in use.
//! If its node is split or evicted meanwhile, that does not wait for the copy. The bytes then
//! count as used until the pager has finished.
//!
//! Loads are in `load.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::backup::Backups;
use super::load::PendingLoad;
use super::trie::{NodeKey, OffloadState};
use super::{CacheCore, Effect, Flush, OpenSlot, ProbePrefix, Salt};
use crate::config::PagerConfig;
use crate::protocol::Edit;
use crate::protocol::pager::{self, OffloadCandidate, PagerEvent};
use crate::{CopyId, SegmentId, SequenceId, TokenId};

/// Maximum number of segments offered to the pager at once.
const OFFLOADS_MAX: usize = 8;
/// Divisor of the device's bytes: at most this fraction is offered at once, except for a
/// single larger segment.
const OFFLOAD_PART: usize = 4;
/// Maximum number of prefetched sequences that are remembered.
const PREFETCHES_MAX: usize = 1024;

/// State of the exchange with the pager.
#[derive(Debug, Default)]
pub(super) struct Paging {
    /// The fraction of the device's bytes that is to be free, or evictable with a copy.
    clean_part: f64,
    /// Whether there may be copies to look up.
    pub(super) has_copies: bool,
    /// Whether there is a disk tier, from which copies load slowly.
    has_disk: bool,
    /// Messages to the pager.
    pub(super) outbox: Vec<pager::Message>,
    /// Nodes to be offered as soon as possible, in this order.
    to_flush: VecDeque<NodeKey>,
    /// Copies of live sequences.
    pub(super) backups: Backups,
    /// Segments offered to the pager that it has not answered for.
    offloading: BTreeMap<SegmentId, Offloading>,
    /// Nodes by the copy that holds their state.
    pub(super) nodes_of: BTreeMap<CopyId, Vec<NodeKey>>,
    /// Requests that wait for the pager.
    pub(super) loading: BTreeMap<SequenceId, PendingLoad>,
    /// Device bytes reserved for pending loads.
    pub(super) arriving_bytes: usize,
    /// Number of fences sent to learn when the device has memory for a load.
    pub(super) fences_made: u64,
    /// Device bytes still reserved for cancelled and discarded loads. One entry per
    /// confirmation that the pager owes.
    pending_release: Vec<(SequenceId, usize)>,
    /// Requests that are deferred until memory has been released.
    deferred: Vec<OpenSlot>,
    /// Slots that wait to be extended until then, and to how many tokens.
    starved: Vec<(SequenceId, usize)>,
    /// Sequences for which a prefetch was sent to the pager.
    prefetched: BTreeSet<SequenceId>,
    /// Resets of the device that the pager has not confirmed. Until it has, its events are
    /// about the state before the reset.
    resets_unconfirmed: u32,
}

/// A segment that was offered to the pager.
#[derive(Clone, Copy, Debug)]
struct Offloading {
    /// `None` if the node was split or evicted meanwhile.
    node: Option<NodeKey>,
    bytes: usize,
}

/// The parties that a request may still wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitPolicy {
    /// A leader that computes the same tokens.
    pub(super) leader: bool,
    /// The pager.
    pub(super) pager: bool,
    /// Tokens in copies that the request does not wait for.
    pub(super) copied_tokens: usize,
}

impl WaitPolicy {
    pub(super) const ALL: Self = Self {
        leader: true,
        pager: true,
        copied_tokens: 0,
    };
}

impl Paging {
    /// Whether the pager still owes a confirmation for a cancelled or discarded load of this
    /// sequence.
    pub(super) fn has_pending_release(&self, sequence: SequenceId) -> bool {
        self.pending_release.iter().any(|(of, _)| *of == sequence)
    }

    /// Device bytes in transit: neither sealed nor reserved by a slot.
    fn transit_bytes(&self) -> usize {
        let pending_release: usize = self.pending_release.iter().map(|(_, bytes)| bytes).sum();
        let gone = self.offloading.values().filter(|one| one.node.is_none());
        let gone: usize = gone.map(|one| one.bytes).sum();
        self.arriving_bytes + pending_release + gone + self.backups.bytes()
    }
}

impl CacheCore {
    /// Returns the cache with a pager of these settings. Without copies, requests do not look
    /// any up.
    #[must_use]
    pub fn with_pager(mut self, pager: &PagerConfig, has_copies: bool) -> Self {
        self.trie.track_not_offloaded();
        self.paging = Some(Paging {
            clean_part: pager.clean_part,
            has_copies,
            has_disk: pager.disk.is_some(),
            ..Paging::default()
        });
        self
    }

    /// Returns the messages to the pager since the last call, in order.
    pub fn take_outbox(&mut self) -> Vec<pager::Message> {
        let paging = self.paging.as_mut();
        let outbox = paging.map(|paging| std::mem::take(&mut paging.outbox));
        outbox.unwrap_or_default()
    }

    /// Handles an event from the pager.
    pub(super) fn pager_event(&mut self, pager_event: PagerEvent, effects: &mut Vec<Effect>) {
        let Some(paging) = self.paging.as_mut() else {
            return;
        };
        paging.has_copies |= matches!(pager_event, PagerEvent::Offloaded { .. });
        if paging.resets_unconfirmed > 0 && pager_event != PagerEvent::Gone {
            paging.resets_unconfirmed -= u32::from(pager_event == PagerEvent::Reset);
            return;
        }
        match pager_event {
            PagerEvent::Reset => unreachable!("the pager confirms each reset once"),
            PagerEvent::Gone => self.lose_pager(effects),
            PagerEvent::Export { segment, copy } if paging.backups.is_under_way(segment) => {
                self.export_backup(segment, copy, effects);
            }
            PagerEvent::Export { segment, copy } => {
                let offloading = paging.offloading.get(&segment);
                if offloading.is_some_and(|one| one.node.is_some()) {
                    effects.push(Effect::Edit(Edit::Export { segment, copy }));
                } else {
                    paging.offloading.remove(&segment);
                    paging.outbox.push(pager::Message::CancelExport { copy });
                    self.retry_deferred(effects);
                }
            }
            PagerEvent::Offloaded { segment, copy } => {
                self.offload_finished(segment, Ok(copy), effects)
            }
            PagerEvent::Rejected { segment } => self.offload_finished(segment, Err(()), effects),
            PagerEvent::Lost { copy } => self.lost(copy),
            PagerEvent::Hit {
                sequence,
                copy_ranges,
            } => self.hit(sequence, copy_ranges, effects),
            PagerEvent::Miss {
                sequence,
                copied_tokens,
            } => self.retry_open_slot(sequence, Some(copied_tokens), effects),
            PagerEvent::Retry { sequence } => self.retry_open_slot(sequence, None, effects),
            PagerEvent::Loaded { sequence, copies } => self.loaded(sequence, &copies, effects),
            PagerEvent::Cancelled { sequence } => self.release_confirmed(sequence, effects),
        }
    }

    /// Starts to offer the pager the nodes without a copy.
    pub(super) fn flush(&mut self, flush: Flush) {
        if let Some(paging) = &mut self.paging {
            paging.to_flush = self.trie.hottest_not_offloaded(flush).into();
        }
    }

    /// Whether nodes are offered to the pager, or due to be, without an answer yet. A
    /// [`Flush`] may make this true. Once it is false again, each flushed node is in host
    /// memory, was rejected, or is gone.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        let flushes =
            |paging: &Paging| !paging.to_flush.is_empty() || !paging.offloading.is_empty();
        self.paging.as_ref().is_some_and(flushes)
    }

    /// Whether some node has no copy and was not rejected by the pager.
    #[must_use]
    pub fn has_not_offloaded(&self) -> bool {
        let keys = self.trie.keys();
        let is_paged = self.paging.is_some();
        is_paged
            && keys
                .into_iter()
                .any(|key| self.trie.node(key).offload_state() == OffloadState::NotOffloaded)
    }

    /// Offers the nodes that are to be flushed, a few at a time.
    fn offload_flushed(&mut self) {
        loop {
            let Some(paging) = &mut self.paging else {
                return;
            };
            if paging.offloading.len() >= OFFLOADS_MAX {
                return;
            }
            let Some(node) = paging.to_flush.pop_front() else {
                return;
            };
            if self.trie.contains(node)
                && self.trie.node(node).offload_state() == OffloadState::NotOffloaded
            {
                self.offload(node);
            }
        }
    }

    /// Offers the nodes that are to be flushed, then the coldest ones, until enough of the
    /// device is clean.
    pub(super) fn offload_cold(&mut self) {
        self.offload_flushed();
        let Some(paging) = &self.paging else {
            return;
        };
        let evictable = self.trie.bytes() - self.trie.protected_bytes();
        let clean = self.free_bytes() + evictable - self.trie.not_offloaded_bytes();
        let target_bytes = (paging.clean_part * self.config.device_bytes_max as f64) as usize;
        let offloading: usize = paging.offloading.values().map(|one| one.bytes).sum();
        // No more segments are leased while requests or slots wait for memory.
        let waited_for = !paging.starved.is_empty() || !paging.deferred.is_empty();
        if clean + offloading >= target_bytes || waited_for {
            return;
        }
        let candidates_max = OFFLOADS_MAX - paging.offloading.len();
        let mut missing = target_bytes - clean - offloading;
        let mut bytes_left =
            (self.config.device_bytes_max / OFFLOAD_PART).saturating_sub(offloading);
        for node in self.trie.coldest_not_offloaded(candidates_max) {
            let bytes = self.trie.node(node).bytes();
            let alone = self
                .paging
                .as_ref()
                .is_some_and(|p| p.offloading.is_empty());
            if missing == 0 || bytes > bytes_left && !alone {
                return;
            }
            self.offload(node);
            missing = missing.saturating_sub(bytes);
            bytes_left = bytes_left.saturating_sub(bytes);
        }
    }

    /// Whether no more is to be offered now.
    pub(super) fn is_offload_held_back(&self) -> bool {
        let full = |paging: &Paging| paging.offloading.len() >= OFFLOADS_MAX;
        let waited_for =
            |paging: &Paging| !paging.starved.is_empty() || !paging.deferred.is_empty();
        // No more segments are leased while requests or slots wait for memory.
        let waits = |paging: &Paging| full(paging) || waited_for(paging);
        self.paging.as_ref().is_none_or(waits)
    }

    pub(super) fn offload(&mut self, key: NodeKey) {
        let salt = self.trie.salt_above(key);
        if salt.is_private() {
            // No other sequence can use it later.
            self.trie.set_offload_state(key, OffloadState::Rejected);
            return;
        }
        let salt = salt.digest();
        let Some(lease) = self.trie.node(key).lease_count().lease() else {
            return;
        };
        let path = self.trie.path(key);
        let edges = path.iter().map(|node| self.trie.node(*node).edge());
        let tokens: Vec<TokenId> = edges.flatten().copied().collect();
        let node = self.trie.node(key);
        let offloading = Offloading {
            node: Some(key),
            bytes: node.bytes(),
        };
        let (segment_size, priority) = (node.segment_size(), node.priority());
        self.trie.set_offload_state(key, OffloadState::Offloading);
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.offloading.insert(lease.segment(), offloading);
        paging
            .outbox
            .push(pager::Message::OffloadCandidate(OffloadCandidate {
                lease,
                salt,
                tokens: tokens.into(),
                segment_size,
                priority,
            }));
    }

    /// Handles the pager's final answer to an offload: it has a copy, or will not have one.
    fn offload_finished(
        &mut self,
        segment: SegmentId,
        offloaded: Result<CopyId, ()>,
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_mut().expect("there is a pager");
        if paging.backups.is_under_way(segment) {
            self.backup_ended(segment, offloaded.ok());
            return self.retry_deferred(effects);
        }
        let offloading = paging.offloading.remove(&segment);
        // The lease may have ended before this event arrived, and the node may have been
        // merged into another since.
        let is_it = |node: &NodeKey| {
            let hit = self.trie.contains(*node);
            hit && self.trie.node(*node).lease_count().segment() == segment
        };
        let node = offloading
            .and_then(|offloading| offloading.node)
            .filter(is_it);
        if let Some(node) = node {
            match offloaded {
                Ok(copy) => self.note_copy(node, copy),
                Err(()) => self.trie.set_offload_state(node, OffloadState::Rejected),
            }
        }
        self.retry_deferred(effects);
    }

    /// Takes a node back that is being copied, as it is about to be split or evicted. Leases
    /// outside the trie no longer count.
    pub(super) fn cancel_export(&mut self, key: NodeKey) {
        if self.trie.node(key).offload_state() != OffloadState::Offloading {
            return;
        }
        let segment = self.trie.node(key).lease_count().segment();
        self.trie.renew_lease_count(key);
        self.trie.set_offload_state(key, OffloadState::NotOffloaded);
        let paging = self.paging.as_mut().expect("there is a pager");
        let offloading = paging.offloading.get_mut(&segment);
        offloading.expect("an offloading node is registered").node = None;
    }

    /// Handles that a segment is gone. If it was being offloaded, its lease has ended and its
    /// bytes have been copied. The bytes of a cancelled export stay in transit until the pager
    /// has answered.
    pub(super) fn note_gone(&mut self, segment: SegmentId) {
        let paging = self.paging.as_mut();
        let offloading = paging.and_then(|paging| paging.offloading.get_mut(&segment));
        if let Some(offloading) = offloading.filter(|offloading| offloading.node.is_some()) {
            *offloading = Offloading {
                node: None,
                bytes: 0,
            };
        }
    }

    /// Cancels the exports of all nodes of a salt that are not held. Held nodes stay in the
    /// trie, so their bytes would count twice.
    pub(super) fn cancel_exports(&mut self, salt: Option<&Salt>) {
        let offloading = self
            .paging
            .iter()
            .flat_map(|paging| paging.offloading.values());
        let nodes: Vec<NodeKey> = offloading.filter_map(|one| one.node).collect();
        for node in nodes {
            let is_held = self.trie.node(node).ref_count() > 0;
            if !is_held && salt.is_none_or(|salt| salt == self.trie.salt_above(node)) {
                self.cancel_export(node);
            }
        }
    }

    /// Records that the node's state is in a copy.
    pub(super) fn note_copy(&mut self, node: NodeKey, copy: CopyId) {
        self.trie
            .set_offload_state(node, OffloadState::Offloaded(copy));
        if let Some(paging) = &mut self.paging {
            let nodes = paging.nodes_of.entry(copy).or_default();
            // Drops nodes that were evicted and loaded back under new keys.
            nodes.retain(|node| self.trie.contains(*node));
            nodes.push(node);
        }
    }

    /// Handles that a copy was dropped in favour of others. It is not made again before the
    /// node is used.
    fn lost(&mut self, copy: CopyId) {
        let paging = self.paging.as_mut().expect("there is a pager");
        for node in paging.nodes_of.remove(&copy).unwrap_or_default() {
            let offloaded = OffloadState::Offloaded(copy);
            if self.trie.contains(node) && self.trie.node(node).offload_state() == offloaded {
                self.trie.set_offload_state(node, OffloadState::Rejected);
            }
        }
    }

    /// Bytes of nodes that are not held but cannot be evicted now, because the pager reads
    /// them or a node below them.
    pub(super) fn leased_bytes(&self) -> usize {
        let offloading = self
            .paging
            .iter()
            .flat_map(|paging| paging.offloading.iter());
        let read = offloading.filter_map(|(segment, one)| {
            let node = one.node.filter(|node| self.trie.contains(*node))?;
            let lease_count = self.trie.node(node).lease_count();
            // The pager may have dropped its lease, with the event still on its way.
            (lease_count.segment() == *segment && lease_count.leases() > 0).then_some(node)
        });
        let offloaded: BTreeSet<NodeKey> = read.flat_map(|node| self.trie.path(node)).collect();
        let free = offloaded.iter().map(|node| self.trie.node(*node));
        let free = free.filter(|node| node.ref_count() == 0);
        free.map(|node| node.bytes()).sum()
    }

    /// Whether memory may be released soon.
    pub(super) fn is_memory_leaving(&self) -> bool {
        let leaves = |paging: &Paging| {
            let mut pending_release = paging.pending_release.iter();
            let copied = paging.backups.bytes() > 0;
            copied || !paging.offloading.is_empty() || pending_release.any(|(_, bytes)| *bytes > 0)
        };
        self.paging.as_ref().is_some_and(leaves)
    }

    /// Defers a request that memory is short for. It is retried when the memory in transit has
    /// been released.
    pub(super) fn defer(&mut self, request: OpenSlot, effects: &mut Vec<Effect>) {
        effects.push(Effect::Deferred {
            sequence: request.sequence,
            tokens: 0,
        });
        let paging = self
            .paging
            .as_mut()
            .expect("memory in transit implies a pager");
        paging.deferred.push(request);
    }

    /// Defers the extension of a grant if memory is about to be released. Returns whether it
    /// was deferred; it is then answered after the release.
    pub(super) fn defer_grant(&mut self, sequence: SequenceId, tokens_max: usize) -> bool {
        let leaves = self.is_memory_leaving();
        if let (Some(paging), true) = (&mut self.paging, leaves) {
            paging.starved.push((sequence, tokens_max));
        }
        leaves
    }

    /// Retries the deferred requests and extensions after memory was released.
    pub(super) fn retry_deferred(&mut self, effects: &mut Vec<Effect>) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let deferred = std::mem::take(&mut paging.deferred);
        for (sequence, tokens_max) in std::mem::take(&mut paging.starved) {
            self.extend_grant(sequence, tokens_max, effects);
        }
        for request in deferred {
            self.open_slot(request, WaitPolicy::ALL, effects);
        }
    }

    /// Counts the bytes of a discarded load as used until the pager has confirmed that it
    /// dropped them.
    pub(super) fn add_pending_release(&mut self, sequence: SequenceId, bytes: usize) {
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.pending_release.push((sequence, bytes));
    }

    /// A cancelled load has arrived meanwhile. It is discarded too and counts as used until
    /// that is confirmed as well.
    pub(super) fn add_later_release(&mut self, sequence: SequenceId) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let first = paging
            .pending_release
            .iter()
            .position(|(of, _)| *of == sequence);
        paging
            .pending_release
            .insert(first.unwrap_or(0), (sequence, 0));
    }

    fn release_confirmed(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let gone = paging
            .pending_release
            .iter()
            .position(|(of, _)| *of == sequence);
        let bytes = gone.map_or(0, |gone| paging.pending_release.remove(gone).1);
        if bytes > 0 {
            self.retry_deferred(effects);
        }
    }

    /// Continues without a pager. Loads that it was asked for are computed instead, and
    /// deferred requests no longer wait for memory in transit. The pager has dropped its
    /// leases.
    fn lose_pager(&mut self, effects: &mut Vec<Effect>) {
        let paging = self.paging.take().expect("there is a pager");
        for (segment, offloading) in paging.offloading {
            // It may have been merged into another node, or be gone.
            if let Some(node) = offloading.node.filter(|node| self.trie.contains(*node))
                && self.trie.node(node).lease_count().segment() == segment
            {
                self.trie
                    .set_offload_state(node, OffloadState::NotOffloaded);
            }
        }
        for loading in paging.loading.into_values() {
            let request = loading.give_up(&mut self.trie);
            self.open_slot(request, WaitPolicy::ALL, effects);
        }
        for (sequence, tokens_max) in paging.starved {
            self.extend_grant(sequence, tokens_max, effects);
        }
        for request in paging.deferred {
            self.open_slot(request, WaitPolicy::ALL, effects);
        }
    }

    /// Sends the pager one prefetch for a sequence that will start, so that its copies on disk
    /// move to the host meanwhile.
    pub(super) fn prefetch(&mut self, probe: &ProbePrefix, resident: usize, most: usize) {
        let Some(paging) = &mut self.paging else {
            return;
        };
        let asks = paging.has_disk && paging.has_copies && resident < most;
        if !asks || !paging.prefetched.insert(probe.sequence) {
            return;
        }
        if paging.prefetched.len() > PREFETCHES_MAX {
            // The oldest have usually started.
            paging.prefetched.pop_first();
        }
        paging.outbox.push(pager::Message::Prefetch {
            salt: probe.salt.digest(),
            tokens: probe.tokens[..most].into(),
            resident,
        });
    }

    /// Whether the sequence waits for the pager or for memory in transit.
    pub(super) fn is_paged(&self, sequence: SequenceId) -> bool {
        let waits = |paging: &Paging| {
            let deferred = paging.deferred.iter();
            paging.loading.contains_key(&sequence)
                || deferred.map(|one| one.sequence).any(|one| one == sequence)
        };
        self.paging.as_ref().is_some_and(waits)
    }

    /// Removes a finished sequence from everything that waits for the pager.
    pub(super) fn stop_paging(&mut self, sequence: SequenceId) {
        if let Some(paging) = &mut self.paging {
            paging.deferred.retain(|one| one.sequence != sequence);
            paging.starved.retain(|(starved, _)| *starved != sequence);
            self.cancel_load(sequence);
        }
    }

    /// Device bytes in transit: neither sealed nor reserved by a slot.
    pub(super) fn transit_bytes(&self) -> usize {
        self.paging.as_ref().map_or(0, Paging::transit_bytes)
    }

    pub(super) fn send_to_pager(&mut self, message: pager::Message) {
        if let Some(paging) = self.paging.as_mut() {
            paging.outbox.push(message);
        }
    }

    /// Forgets all transfers, as the device is empty.
    pub(super) fn reset_paging(&mut self) -> Option<Paging> {
        let paging = self.paging.take()?;
        let mut outbox = paging.outbox;
        outbox.push(pager::Message::Reset);
        Some(Paging {
            clean_part: paging.clean_part,
            has_copies: paging.has_copies,
            has_disk: paging.has_disk,
            resets_unconfirmed: paging.resets_unconfirmed + 1,
            fences_made: paging.fences_made,
            outbox,
            ..Paging::default()
        })
    }
}
