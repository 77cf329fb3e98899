//! The exchange with the pager.
//!
//! | file | contents |
//! |---|---|
//! | `offloads.rs` | segments that are offered to the pager, and the nodes that have copies |
//! | `backups.rs` | parts of live tails on their way to host memory |
//! | `loads.rs` | requests that wait for copies, and the bytes reserved for them |
//! | `deferred.rs` | requests and slots that wait for memory in transit |
//! | `prefetches.rs` | loads ahead of need |
//! | `shares.rs` | state that other processes may need |

mod backups;
mod deferred;
mod loads;
mod offloads;
mod prefetches;
mod shares;

use super::trie::{NodeKey, Trie};
use super::{OpenSlot, ProbePrefix, Salt};
use crate::config::PagerConfig;
use backups::Backups;
use loads::Loads;
use motet_protocol::pager::{self, CopyRange, Lookup, OffloadCandidate, PagerEvent};
use motet_protocol::{CopyId, SegmentId, SequenceId};
use offloads::{Offloads, SegmentTokens};
use prefetches::Prefetches;
use shares::Shares;

pub(super) use backups::Backup;
pub(super) use deferred::{Deferred, StarvedSlot};
pub(super) use loads::PendingLookup;

/// The exchange with the pager: its parts, and the messages that they send.
#[derive(Debug)]
pub(super) struct Paging {
    offloads: Offloads,
    /// Copies of live sequences.
    backups: Backups,
    loads: Loads,
    deferred: Deferred,
    prefetches: Prefetches,
    /// State for other processes.
    shares: Shares,
    /// Messages to the pager.
    outbox: Vec<pager::Message>,
    /// Whether there may be copies to look up.
    has_copies: bool,
    /// Resets of the device that the pager has not confirmed. Until it has, its events are
    /// about the state before the reset.
    resets_unconfirmed: u32,
}

impl Paging {
    pub(super) fn new(pager: &PagerConfig, has_copies: bool) -> Self {
        Self {
            offloads: Offloads::new(pager.clean_part),
            backups: Backups::default(),
            loads: Loads::default(),
            deferred: Deferred::default(),
            prefetches: Prefetches::new(pager.disk.is_some()),
            shares: Shares::new(pager),
            outbox: Vec::new(),
            has_copies: has_copies || pager.remote.is_some(),
            resets_unconfirmed: 0,
        }
    }

    pub(super) fn take_outbox(&mut self) -> Vec<pager::Message> {
        std::mem::take(&mut self.outbox)
    }

    /// Tells the pager whether the cache follows where copies are.
    pub(super) fn follow(&mut self, follows: bool) {
        self.send(pager::Message::Follow { follows });
    }

    /// Whether the cache must handle this event. Events about the state before a reset are
    /// dropped.
    pub(super) fn accepts(&mut self, pager_event: &PagerEvent) -> bool {
        self.has_copies |= matches!(pager_event, PagerEvent::Offloaded { .. });
        if self.resets_unconfirmed > 0 && *pager_event != PagerEvent::Gone {
            self.resets_unconfirmed -= u32::from(*pager_event == PagerEvent::Reset);
            return false;
        }
        true
    }

    /// Whether a request of this sequence can be looked up. An answer for an earlier request
    /// of the sequence must not be taken for an answer to this one.
    pub(super) fn can_look_up(&self, sequence: SequenceId) -> bool {
        self.has_copies && !self.loads.has_pending_release(sequence)
    }

    /// Looks up in the pager what a request lacks. The request waits for the answer.
    pub(super) fn look_up(&mut self, lookup: Lookup, pending: PendingLookup) {
        self.send(pager::Message::Lookup(lookup));
        self.loads.add(pending);
    }

    /// The request of a sequence that waits for the pager.
    pub(super) fn pending_lookup(&self, sequence: SequenceId) -> Option<&PendingLookup> {
        self.loads.get(sequence)
    }

    /// Reserves the bytes of the copies that were found for a waiting request. Returns the
    /// number of the fence that must be passed before they are loaded.
    pub(super) fn accept_hit(
        &mut self,
        sequence: SequenceId,
        copy_ranges: Vec<(CopyRange, usize)>,
    ) -> u64 {
        self.loads.reserve(sequence, copy_ranges)
    }

    /// Declines the copies that were found, as there is no memory for them. The pager confirms
    /// that before the sequence can look up again.
    pub(super) fn reject_hit(&mut self, sequence: SequenceId) {
        self.send(pager::Message::Cancel { sequence });
        self.loads.add_pending_release(sequence, 0);
    }

    /// Ends the wait of a request whose copies have arrived. Each copy keeps its bytes until
    /// [`release_loaded`](Self::release_loaded). If the sequence has ended meanwhile, the
    /// copies are discarded.
    pub(super) fn take_loaded(
        &mut self,
        sequence: SequenceId,
        copies: &[CopyId],
    ) -> Option<(PendingLookup, Vec<(CopyRange, usize)>)> {
        let loaded = self.loads.take_loaded(sequence);
        if loaded.is_none() {
            let copies = copies.to_vec();
            self.loads.add_later_release(sequence);
            self.send(pager::Message::Discard { sequence, copies });
        }
        loaded
    }

    /// Releases the bytes of a copy that has arrived.
    pub(super) fn release_loaded(&mut self, bytes: usize) {
        self.loads.release_loaded(bytes);
    }

    /// Discards a loaded copy. Its bytes count as used until the pager has confirmed that.
    pub(super) fn discard(&mut self, sequence: SequenceId, copy: CopyId, bytes: usize) {
        let copies = vec![copy];
        self.loads.add_pending_release(sequence, bytes);
        self.send(pager::Message::Discard { sequence, copies });
    }

    /// Ends the wait of a request whose copies will not be loaded.
    pub(super) fn give_up_load(&mut self, sequence: SequenceId) -> Option<PendingLookup> {
        self.loads.give_up(sequence)
    }

    /// Handles that the pager has dropped a cancelled or discarded load. Returns whether bytes
    /// were released.
    pub(super) fn release_confirmed(&mut self, sequence: SequenceId) -> bool {
        self.loads.release_confirmed(sequence) > 0
    }

    /// The nodes that waiting requests hold.
    pub(super) fn ends(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.loads.ends()
    }

    /// Sets the nodes to be offered as soon as possible.
    pub(super) fn flush(&mut self, nodes: Vec<NodeKey>) {
        self.offloads.flush(nodes);
    }

    /// Whether nodes are offered, or due to be, without an answer yet.
    pub(super) fn is_flushing(&self) -> bool {
        self.offloads.is_flushing()
    }

    /// Offers the nodes that are to be flushed, a few at a time.
    pub(super) fn offload_flushed(&mut self, trie: &mut Trie) {
        while let Some(node) = self.offloads.next_flushed(trie) {
            self.offload(node, trie);
        }
    }

    /// Offers the coldest nodes until enough of the device is clean. `clean` of its bytes are
    /// now.
    pub(super) fn offload_cold(&mut self, clean: usize, bytes_max: usize, trie: &mut Trie) {
        if !self.deferred.is_empty() {
            return;
        }
        let candidates = self.offloads.offload_cold(clean, bytes_max, trie);
        let messages = candidates.into_iter().map(pager::Message::OffloadCandidate);
        self.outbox.extend(messages);
    }

    /// Handles that the pager has accepted a segment. If it cannot be exported any more, its
    /// export is cancelled. Returns whether it can.
    pub(super) fn accept_export(&mut self, segment: SegmentId, copy: CopyId) -> bool {
        let can_export = self.offloads.can_export(segment);
        if !can_export {
            self.reject_export(copy);
        }
        can_export
    }

    /// Tells the pager that a segment which it has accepted is not exported.
    pub(super) fn reject_export(&mut self, copy: CopyId) {
        self.send(pager::Message::CancelExport { copy });
    }

    /// Handles the pager's final answer: the segment is in this copy, or in none. Returns the tokens of
    /// the segment, if blocks are followed.
    pub(super) fn finish_offload(
        &mut self,
        segment: SegmentId,
        copy: Option<CopyId>,
        trie: &mut Trie,
    ) -> Option<SegmentTokens> {
        let finished = self.offloads.finish(segment, copy, trie);
        if finished.has_copy {
            self.share_waiting(trie);
        }
        finished.tokens
    }

    /// Takes a node back that is being copied, as it is about to be split or evicted. Leases
    /// outside the trie no longer count.
    pub(super) fn cancel_export(&mut self, node: NodeKey, trie: &mut Trie) {
        self.offloads.cancel(node, trie);
    }

    /// Handles that a segment is gone.
    pub(super) fn note_gone(&mut self, segment: SegmentId) {
        self.offloads.note_gone(segment);
    }

    /// Records that the node's state is in a copy.
    pub(super) fn note_copy(&mut self, node: NodeKey, copy: CopyId, trie: &mut Trie) {
        self.offloads.note_copy(node, copy, trie);
    }

    /// Handles that a copy was dropped in favour of others.
    pub(super) fn lose_copy(&mut self, copy: CopyId, trie: &mut Trie) {
        self.offloads.lose_copy(copy, trie);
    }

    /// Whether a node on the device has its state in this copy.
    pub(super) fn is_on_device(&self, copy: CopyId, trie: &Trie) -> bool {
        self.offloads.is_on_device(copy, trie)
    }

    /// Bytes of nodes that are not held but cannot be evicted now, because the pager reads
    /// them or a node below them.
    pub(super) fn leased_bytes(&self, trie: &Trie) -> usize {
        self.offloads.leased_bytes(trie)
    }

    /// Schedules copies of the nodes of a live path.
    pub(super) fn back_up_path(&mut self, end: NodeKey, trie: &Trie) {
        self.backups.add_path(end, trie);
    }

    /// Schedules a copy of a part of a live tail.
    pub(super) fn back_up(&mut self, part: Backup) {
        self.backups.add(part);
    }

    /// The next part of a live tail, if one may be offered now.
    pub(super) fn next_backup(&mut self) -> Option<Backup> {
        if self.is_offload_held_back() {
            return None;
        }
        self.backups.next_part()
    }

    /// Offers a part of a live tail under the candidate's segment.
    pub(super) fn begin_backup(&mut self, part: Backup, candidate: OffloadCandidate) {
        self.backups.begin(candidate.lease.segment(), part);
        self.send(pager::Message::OffloadCandidate(candidate));
    }

    /// Records that the device copies an offered part, into so many bytes.
    pub(super) fn export_backup(&mut self, segment: SegmentId, part: Backup, bytes: usize) {
        self.backups.begin(segment, part.with_copy(bytes));
    }

    /// The part of a live tail that was offered under this segment id, if one was. It is no
    /// longer under way.
    pub(super) fn take_backup(&mut self, segment: SegmentId) -> Option<Backup> {
        self.backups.take(segment)
    }

    /// Invalidates the parts of a sequence that reach past offset `from`.
    pub(super) fn void_backups(&mut self, sequence: SequenceId, from: usize) {
        self.backups.void(sequence, from);
    }

    /// Passes the parts of a slot's tail on to the sequence that takes over the slot.
    pub(super) fn rename_backups(&mut self, from: SequenceId, to: SequenceId) {
        self.backups.rename(from, to);
    }

    /// Gives up copies of a finished sequence, except those that serve a node on the device.
    pub(super) fn give_up_copies(&mut self, mut copies: Vec<CopyId>, trie: &Trie) {
        copies.retain(|copy| !self.is_on_device(*copy, trie));
        if !copies.is_empty() {
            self.send(pager::Message::GiveUp { copies });
        }
    }

    /// Offers the nodes on the paths of live slots that have no copy.
    pub(super) fn offload_paths(&mut self, trie: &mut Trie) {
        while !self.is_offload_held_back()
            && let Some(node) = self.backups.next_path(trie)
        {
            self.offload(node, trie);
        }
    }

    /// Sends one prefetch for a sequence that will start, so that its copies on disk move to
    /// the host meanwhile.
    pub(super) fn prefetch(&mut self, probe: &ProbePrefix, resident: usize, most: usize) {
        let has_more = self.has_copies && resident < most;
        if has_more && self.prefetches.is_due(probe.sequence) {
            self.send(pager::Message::Prefetch {
                key: probe.key.digest(),
                tokens: probe.tokens[..most].into(),
                resident,
            });
        }
    }

    /// Starts the load for which the device now has the memory.
    pub(super) fn fence_passed(&mut self, number: u64) {
        if let Some(sequence) = self.loads.fence_passed(number) {
            self.send(pager::Message::Load { sequence });
        }
    }

    /// Cancels the load of a sequence, if there is one, and releases its path.
    pub(super) fn cancel_load(&mut self, sequence: SequenceId, trie: &mut Trie) {
        if let Some(end) = self.loads.cancel(sequence) {
            self.send(pager::Message::Cancel { sequence });
            trie.release(end);
        }
    }

    /// Cancels the loads of requests that hold one of these nodes. Returns the requests.
    pub(super) fn cancel_loads_through(
        &mut self,
        nodes: &[NodeKey],
        trie: &mut Trie,
    ) -> Vec<OpenSlot> {
        let stopped = self.loads.through(nodes, trie);
        for request in &stopped {
            self.cancel_load(request.sequence, trie);
        }
        stopped
    }

    /// Drops all copies of a salt, or of all, and cancels the exports of nodes that are not
    /// held. Held nodes stay in the trie, so their bytes would count twice.
    pub(super) fn clear(&mut self, salt: Option<&Salt>, trie: &mut Trie) {
        let digest = salt.map(Salt::digest);
        self.send(pager::Message::Clear { salt: digest });
        self.offloads.cancel_not_held(salt, trie);
    }

    /// Defers a request until memory in transit has been released.
    pub(super) fn defer(&mut self, request: OpenSlot) {
        self.deferred.add_request(request);
    }

    /// Defers the extension of a grant if memory is about to be released. Returns whether it
    /// was deferred.
    pub(super) fn defer_grant(&mut self, slot: StarvedSlot) -> bool {
        let defers = self.is_memory_leaving();
        if defers {
            self.deferred.add_starved(slot);
        }
        defers
    }

    /// Takes what is deferred, to be retried.
    pub(super) fn take_deferred(&mut self) -> Deferred {
        std::mem::take(&mut self.deferred)
    }

    /// Whether the sequence waits for the pager or for memory in transit.
    pub(super) fn waits(&self, sequence: SequenceId) -> bool {
        self.loads.contains(sequence) || self.deferred.contains(sequence)
    }

    /// Removes a finished sequence from everything that waits for the pager.
    pub(super) fn forget(&mut self, sequence: SequenceId, trie: &mut Trie) {
        self.deferred.forget(sequence);
        self.cancel_load(sequence, trie);
    }

    /// Device bytes in transit: neither sealed nor reserved by a slot.
    pub(super) fn transit_bytes(&self) -> usize {
        self.loads.bytes() + self.offloads.cancelled_bytes() + self.backups.bytes()
    }

    /// Whether memory may be released soon.
    pub(super) fn is_memory_leaving(&self) -> bool {
        self.backups.bytes() > 0
            || self.offloads.has_unanswered()
            || self.loads.has_bytes_to_release()
    }

    /// Ends the exchange, as the pager is gone and has dropped its leases. Returns the requests
    /// that waited for copies, each with its held path, and what is deferred.
    pub(super) fn give_up(self, trie: &mut Trie) -> (Vec<PendingLookup>, Deferred) {
        self.offloads.give_up(trie);
        (self.loads.give_up_all().collect(), self.deferred)
    }

    /// Forgets all transfers, as the device is empty.
    pub(super) fn after_reset(self) -> Self {
        let mut outbox = self.outbox;
        outbox.push(pager::Message::Reset);
        Self {
            offloads: self.offloads.after_reset(),
            backups: Backups::default(),
            loads: self.loads.after_reset(),
            deferred: Deferred::default(),
            prefetches: self.prefetches.after_reset(),
            shares: self.shares.after_reset(),
            outbox,
            has_copies: self.has_copies,
            resets_unconfirmed: self.resets_unconfirmed + 1,
        }
    }

    /// Panics unless the parts are consistent with the trie.
    pub(super) fn check_integrity(&self, trie: &Trie) {
        self.offloads.check_integrity(trie);
        self.backups.check_integrity();
        self.loads.check_integrity();
        self.shares.check_integrity();
    }

    /// Whether no more is to be offered now. No more segments are leased while requests or
    /// slots wait for memory.
    fn is_offload_held_back(&self) -> bool {
        self.offloads.is_full() || !self.deferred.is_empty()
    }

    /// Offers a node to the pager.
    fn offload(&mut self, node: NodeKey, trie: &mut Trie) {
        let candidate = self.offloads.offload(node, trie);
        let message = candidate.map(pager::Message::OffloadCandidate);
        self.outbox.extend(message);
    }

    fn send(&mut self, message: pager::Message) {
        self.outbox.push(message);
    }
}
