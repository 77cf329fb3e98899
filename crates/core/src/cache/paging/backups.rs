//! Parts of live tails on their way to host memory.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::cache::PrefixKey;
use crate::cache::slots::{CacheSlot, Slots};
use crate::cache::trie::{NodeKey, Trie};
use motet_protocol::SegmentSize;
use motet_protocol::{SegmentId, SequenceId, SlotId, TokenId};

/// Maximum number of parts being copied at once. It is small, since each takes device memory.
const BACKUPS_MAX: usize = 4;

/// Parts of live tails on their way to host memory.
#[derive(Debug, Default)]
pub(super) struct Backups {
    /// Parts to be offered, in this order; at most one of each slot.
    due: VecDeque<Backup>,
    /// Nodes on the paths of live slots that have no copy.
    paths: VecDeque<NodeKey>,
    /// Parts offered and not answered for, by the segment id that stands for each.
    in_flight: BTreeMap<SegmentId, Backup>,
}

/// A part of a live tail.
#[derive(Debug)]
pub(in crate::cache) struct Backup {
    sequence: SequenceId,
    slot: SlotId,
    key: PrefixKey,
    /// The sequence's tokens up to the end of the part.
    tokens: Arc<[TokenId]>,
    /// The offset at which the part starts.
    from: usize,
    /// Device bytes of its copy; 0 until the copy is made.
    bytes: usize,
    /// Whether the slot no longer holds these tokens.
    is_void: bool,
}

impl Backups {
    /// Schedules the nodes of a path that have no copy.
    pub(super) fn add_path(&mut self, end: NodeKey, trie: &Trie) {
        for node in trie.path(end) {
            if trie.is_not_offloaded(node) {
                self.add_node(node);
            }
        }
    }

    /// Schedules a node that has no copy.
    pub(super) fn add_node(&mut self, node: NodeKey) {
        if !self.paths.contains(&node) {
            self.paths.push_back(node);
        }
    }

    /// Schedules a part. It is joined with one of the same slot that is still due.
    pub(super) fn add(&mut self, mut part: Backup) {
        let before = self.due.iter().position(|due| due.slot == part.slot);
        if let Some(before) = before.and_then(|at| self.due.remove(at)) {
            part.from = part.from.min(before.from);
        }
        self.due.push_back(part);
    }

    /// The next node of a path that still has no copy.
    pub(super) fn next_path(&mut self, trie: &Trie) -> Option<NodeKey> {
        loop {
            let node = self.paths.pop_front()?;
            if trie.is_not_offloaded(node) {
                return Some(node);
            }
        }
    }

    /// The next part, if one may be offered now.
    pub(super) fn next_part(&mut self) -> Option<Backup> {
        if self.in_flight.len() < BACKUPS_MAX {
            self.due.pop_front()
        } else {
            None
        }
    }

    /// Records that a part is offered under this segment id.
    pub(super) fn begin(&mut self, segment: SegmentId, part: Backup) {
        self.in_flight.insert(segment, part);
    }

    /// Ends the way of a part. `None` if no part was offered under this segment id.
    pub(super) fn take(&mut self, segment: SegmentId) -> Option<Backup> {
        self.in_flight.remove(&segment)
    }

    /// Invalidates the parts of a sequence that reach past offset `from`, as other tokens may
    /// take the place of theirs.
    pub(super) fn void(&mut self, sequence: SequenceId, from: usize) {
        for part in self.of(sequence) {
            part.is_void |= part.tokens.len() > from;
        }
    }

    /// Passes the parts of a slot's tail on to the sequence that takes over the slot.
    pub(super) fn rename(&mut self, from: SequenceId, to: SequenceId) {
        self.of(from).for_each(|part| part.sequence = to);
    }

    /// Device bytes of parts that were copied there and are not in host memory yet.
    pub(super) fn bytes(&self) -> usize {
        self.in_flight.values().map(|part| part.bytes).sum()
    }

    /// Panics unless the parts are bounded and in order.
    pub(super) fn check_integrity(&self) {
        assert!(self.in_flight.len() <= BACKUPS_MAX, "backups are bounded");
        let slots: std::collections::BTreeSet<SlotId> =
            self.due.iter().map(|part| part.slot).collect();
        assert_eq!(slots.len(), self.due.len(), "one part of a slot is due");
        let mut parts = self.due.iter().chain(self.in_flight.values());
        assert!(
            parts.all(|part| part.from < part.tokens.len()),
            "a part has tokens"
        );
        let mut due = self.due.iter();
        assert!(due.all(|part| part.bytes == 0), "a due part has no copy");
    }

    /// The parts of a sequence's tail.
    fn of(&mut self, sequence: SequenceId) -> impl Iterator<Item = &mut Backup> {
        let all = self.due.iter_mut().chain(self.in_flight.values_mut());
        all.filter(move |part| part.sequence == sequence)
    }
}

impl Backup {
    /// The tokens of a sequence from offset `from` on.
    pub(in crate::cache) fn new(
        sequence: SequenceId,
        slot: SlotId,
        key: PrefixKey,
        tokens: Arc<[TokenId]>,
        from: usize,
    ) -> Self {
        Self {
            sequence,
            slot,
            key,
            tokens,
            from,
            bytes: 0,
            is_void: false,
        }
    }

    /// The key of its tokens.
    pub(in crate::cache) fn key(&self) -> &PrefixKey {
        &self.key
    }

    /// The offset at which the part starts.
    pub(in crate::cache) fn from(&self) -> usize {
        self.from
    }

    /// The sequence's tokens up to the end of the part.
    pub(in crate::cache) fn tokens(&self) -> &Arc<[TokenId]> {
        &self.tokens
    }

    pub(in crate::cache) fn segment_size(&self) -> SegmentSize {
        SegmentSize::whole(self.tokens.len() - self.from)
    }

    /// Its token range as offsets in a tail after `path_tokens` tokens.
    pub(in crate::cache) fn range_after(&self, path_tokens: usize) -> Range<usize> {
        self.from - path_tokens..self.tokens.len() - path_tokens
    }

    /// The slot whose tail still holds the part.
    pub(in crate::cache) fn slot_in<'a>(&self, slots: &'a Slots) -> Option<&'a CacheSlot> {
        let slot = slots.get(self.sequence)?;
        let is_its = slot.id() == self.slot && !slot.is_sealed_in_place();
        (!self.is_void && is_its && slot.path_tokens() <= self.from).then_some(slot)
    }

    /// The slot that the part came from, whatever it holds now.
    pub(in crate::cache) fn slot_mut<'a>(&self, slots: &'a mut Slots) -> Option<&'a mut CacheSlot> {
        let slot = slots.get_mut(self.sequence);
        slot.filter(|slot| slot.id() == self.slot)
    }

    /// This part with a copy of so many device bytes.
    pub(in crate::cache) fn with_copy(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Whether a copy was made for this part. A copy that existed before was not.
    pub(in crate::cache) fn has_copy(&self) -> bool {
        self.bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(slot: u64, from: usize, to: usize) -> Backup {
        let (sequence, slot) = (SequenceId(slot), SlotId(slot));
        Backup::new(
            sequence,
            slot,
            PrefixKey::default(),
            vec![1; to].into(),
            from,
        )
    }

    #[test]
    fn due_parts_of_a_slot_are_joined() {
        let mut backups = Backups::default();
        backups.add(part(1, 0, 4));
        backups.add(part(2, 0, 3));
        backups.add(part(1, 4, 9));
        backups.check_integrity();
        let ranges: Vec<_> = std::iter::from_fn(|| backups.next_part())
            .map(|part| (part.slot, part.range_after(0)))
            .collect();
        assert_eq!(ranges, [(SlotId(2), 0..3), (SlotId(1), 0..9)]);
    }

    #[test]
    fn parts_in_flight_are_bounded_and_count_once_copied() {
        let mut backups = Backups::default();
        for slot in 0..6 {
            backups.add(part(slot, 0, 4));
        }
        let mut segment = 0;
        while let Some(part) = backups.next_part() {
            backups.begin(SegmentId(segment), part.with_copy(10));
            segment += 1;
        }
        backups.check_integrity();
        assert_eq!(backups.bytes(), 10 * BACKUPS_MAX);
        backups.rename(SequenceId(1), SequenceId(9));
        backups.void(SequenceId(9), 3);
        let mut is_void = |segment| backups.take(SegmentId(segment)).map(|part| part.is_void);
        assert_eq!([1, 2, 9].map(&mut is_void), [Some(true), Some(false), None]);
        assert!(backups.next_part().is_some());
    }
}
