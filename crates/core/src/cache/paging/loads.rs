//! Requests that wait for copies, and the device bytes reserved for those copies.

use std::collections::BTreeMap;

use crate::cache::OpenSlot;
use crate::cache::trie::{NodeKey, Trie};
use motet_protocol::SequenceId;
use motet_protocol::pager::CopyRange;

/// The loads that the pager was asked for.
#[derive(Debug, Default)]
pub(super) struct Loads {
    /// Requests that wait for the pager.
    pending: BTreeMap<SequenceId, PendingLoad>,
    /// Device bytes reserved for pending loads.
    arriving_bytes: usize,
    /// Number of fences sent to learn when the device has memory for a load.
    fences_made: u64,
    /// Device bytes still reserved for cancelled and discarded loads. One entry per
    /// confirmation that the pager owes.
    pending_release: Vec<(SequenceId, usize)>,
}

/// A request whose missing tokens are looked up in the pager.
#[derive(Debug)]
pub(in crate::cache) struct PendingLookup {
    pub(in crate::cache) request: OpenSlot,
    /// The node held meanwhile.
    pub(in crate::cache) end: NodeKey,
    /// Whether it may wait for a leader afterwards.
    pub(in crate::cache) leader: bool,
    /// Tokens that it could start with now.
    pub(in crate::cache) resident_tokens: usize,
    /// Tokens that the trie holds; loaded copies are cut there.
    pub(in crate::cache) seen_tokens: usize,
}

/// A request that waits for the pager: for the answer to its lookup, then for its copies.
#[derive(Debug)]
struct PendingLoad {
    lookup: PendingLookup,
    /// The copies to load, each with the device bytes reserved for it.
    copy_ranges: Vec<(CopyRange, usize)>,
    /// The sum of those bytes.
    reserved_bytes: usize,
    /// The fence that must be passed before the load: then the device has the memory.
    fence: Option<u64>,
}

impl Loads {
    /// Adds a request that was looked up.
    pub(super) fn add(&mut self, lookup: PendingLookup) {
        let sequence = lookup.request.sequence;
        let pending = PendingLoad {
            lookup,
            copy_ranges: Vec::new(),
            reserved_bytes: 0,
            fence: None,
        };
        self.pending.insert(sequence, pending);
    }

    /// The request of a sequence that waits for the pager.
    pub(super) fn get(&self, sequence: SequenceId) -> Option<&PendingLookup> {
        self.pending.get(&sequence).map(|pending| &pending.lookup)
    }

    pub(super) fn contains(&self, sequence: SequenceId) -> bool {
        self.pending.contains_key(&sequence)
    }

    /// Reserves the bytes of the copies that were found for a waiting request. Returns the
    /// number of the fence that must be passed before they are loaded.
    pub(super) fn reserve(
        &mut self,
        sequence: SequenceId,
        copy_ranges: Vec<(CopyRange, usize)>,
    ) -> u64 {
        self.fences_made += 1;
        let pending = self.pending.get_mut(&sequence);
        let pending = pending.expect("the request is waiting");
        pending.reserved_bytes = copy_ranges.iter().map(|(_, bytes)| bytes).sum();
        pending.copy_ranges = copy_ranges;
        pending.fence = Some(self.fences_made);
        self.arriving_bytes += pending.reserved_bytes;
        self.fences_made
    }

    /// The sequence whose load can start, as the device passed this fence. `None` if it has
    /// ended meanwhile.
    pub(super) fn fence_passed(&mut self, number: u64) -> Option<SequenceId> {
        let mut pending = self.pending.iter_mut();
        let (sequence, load) = pending.find(|(_, load)| load.fence == Some(number))?;
        load.fence = None;
        Some(*sequence)
    }

    /// Ends the wait of a request whose copies have arrived. Each copy keeps its bytes until
    /// [`release_loaded`](Self::release_loaded). `None` if the sequence has ended meanwhile.
    pub(super) fn take_loaded(
        &mut self,
        sequence: SequenceId,
    ) -> Option<(PendingLookup, Vec<(CopyRange, usize)>)> {
        let load = self.pending.remove(&sequence)?;
        Some((load.lookup, load.copy_ranges))
    }

    /// Releases the bytes of a copy that has arrived.
    pub(super) fn release_loaded(&mut self, bytes: usize) {
        self.arriving_bytes -= bytes;
    }

    /// Ends the wait of a request whose copies will not be loaded.
    pub(super) fn give_up(&mut self, sequence: SequenceId) -> Option<PendingLookup> {
        let load = self.pending.remove(&sequence)?;
        self.arriving_bytes -= load.reserved_bytes;
        Some(load.lookup)
    }

    /// Ends all waits, as there is no pager any more.
    pub(super) fn give_up_all(self) -> impl Iterator<Item = PendingLookup> {
        self.pending.into_values().map(|load| load.lookup)
    }

    /// Cancels a load, if there is one. Its bytes count as used until the pager has confirmed
    /// the cancellation, since they may have arrived already. Returns the held node.
    pub(super) fn cancel(&mut self, sequence: SequenceId) -> Option<NodeKey> {
        let load = self.pending.remove(&sequence)?;
        self.arriving_bytes -= load.reserved_bytes;
        self.add_pending_release(sequence, load.reserved_bytes);
        Some(load.lookup.end)
    }

    /// Counts the bytes of a discarded load as used until the pager has confirmed that it
    /// dropped them.
    pub(super) fn add_pending_release(&mut self, sequence: SequenceId, bytes: usize) {
        self.pending_release.push((sequence, bytes));
    }

    /// A cancelled load has arrived meanwhile. It is discarded too and counts as used until
    /// that is confirmed as well.
    pub(super) fn add_later_release(&mut self, sequence: SequenceId) {
        let first = self.next_release(sequence);
        self.pending_release
            .insert(first.unwrap_or(0), (sequence, 0));
    }

    /// Releases the bytes whose release the pager has confirmed, and returns them.
    pub(super) fn release_confirmed(&mut self, sequence: SequenceId) -> usize {
        let confirmed = self.next_release(sequence);
        confirmed.map_or(0, |confirmed| self.pending_release.remove(confirmed).1)
    }

    /// Whether the pager still owes a confirmation for a cancelled or discarded load of this
    /// sequence.
    pub(super) fn has_pending_release(&self, sequence: SequenceId) -> bool {
        self.next_release(sequence).is_some()
    }

    /// Whether a confirmation will release bytes.
    pub(super) fn has_bytes_to_release(&self) -> bool {
        self.pending_release.iter().any(|(_, bytes)| *bytes > 0)
    }

    /// Device bytes that are reserved or not released yet.
    pub(super) fn bytes(&self) -> usize {
        let pending_release: usize = self.pending_release.iter().map(|(_, bytes)| bytes).sum();
        self.arriving_bytes + pending_release
    }

    /// The nodes that waiting requests hold.
    pub(super) fn ends(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.pending.values().map(|load| load.lookup.end)
    }

    /// The waiting requests that hold a path through one of these nodes.
    pub(super) fn through(&self, nodes: &[NodeKey], trie: &Trie) -> Vec<OpenSlot> {
        let lookups = self.pending.values().map(|load| &load.lookup);
        let through = lookups.filter(|lookup| trie.leads_through(lookup.end, nodes));
        through.map(|lookup| lookup.request.clone()).collect()
    }

    /// No loads, as the device is empty. Numbers of fences continue, so that none is used
    /// twice.
    pub(super) fn after_reset(self) -> Self {
        Self {
            fences_made: self.fences_made,
            ..Self::default()
        }
    }

    /// Panics unless the bytes of pending loads add up.
    pub(super) fn check_integrity(&self) {
        let loads = self.pending.values();
        let arriving: usize = loads.map(|load| load.reserved_bytes).sum();
        assert_eq!(arriving, self.arriving_bytes, "the bytes of loads add up");
    }

    /// The place of the confirmation that the pager gives next for this sequence.
    fn next_release(&self, sequence: SequenceId) -> Option<usize> {
        let mut pending = self.pending_release.iter();
        pending.position(|(of, _)| *of == sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_protocol::CopyId;
    use motet_protocol::SegmentSize;

    const SEQUENCE: SequenceId = SequenceId(1);

    /// A load of 30 bytes, with its fence.
    fn loads() -> (Loads, u64) {
        let mut loads = Loads::default();
        loads.add(PendingLookup {
            request: OpenSlot::new(SEQUENCE, [1; 9], 0),
            end: NodeKey::default(),
            leader: true,
            resident_tokens: 0,
            seen_tokens: 0,
        });
        let copy_range = |start: usize| CopyRange {
            copy: CopyId(1),
            start,
            end: start + 4,
            segment_size: SegmentSize::whole(4),
        };
        let fence = loads.reserve(SEQUENCE, vec![(copy_range(0), 10), (copy_range(4), 20)]);
        loads.check_integrity();
        (loads, fence)
    }

    #[test]
    fn bytes_of_a_cancelled_load_are_released_when_that_is_confirmed() {
        let (mut loads, fence) = loads();
        assert_eq!(loads.fence_passed(fence + 1), None);
        assert_eq!(loads.fence_passed(fence), Some(SEQUENCE));
        assert_eq!(loads.fence_passed(fence), None, "a fence is passed once");
        assert!(loads.cancel(SEQUENCE).is_some());
        assert_eq!(loads.bytes(), 30);
        // The copies arrived meanwhile: the first of two confirmations is for those.
        loads.add_later_release(SEQUENCE);
        assert_eq!(loads.release_confirmed(SEQUENCE), 0);
        assert!(loads.has_pending_release(SEQUENCE));
        assert_eq!(loads.release_confirmed(SEQUENCE), 30);
        assert!(!loads.has_pending_release(SEQUENCE));
        assert_eq!(loads.bytes(), 0);
        loads.check_integrity();
    }

    #[test]
    fn bytes_of_loaded_copies_are_released_one_by_one() {
        let (mut loads, _) = loads();
        let (_, copy_ranges) = loads.take_loaded(SEQUENCE).expect("a load is pending");
        assert_eq!(loads.bytes(), 30);
        for (_, bytes) in copy_ranges {
            loads.release_loaded(bytes);
        }
        assert_eq!(loads.bytes(), 0);
        loads.check_integrity();
    }
}
