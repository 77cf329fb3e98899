//! The sequences, by key and by id.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use slotmap::SlotMap;

use super::sequence::{Finished, Sequence, SequenceKey};
use motet_protocol::SequenceId;

/// All sequences: live ones, which are found by their ids, and draining ones, which are finished
/// but part of a step in flight.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    entries: SlotMap<SequenceKey, Sequence>,
    /// Keys of the sequences that are not finished.
    live: BTreeMap<SequenceId, SequenceKey>,
    /// Finished sequences that are part of a step in flight.
    draining: Vec<SequenceKey>,
    /// Number of sequences whose callers do not read.
    paused: usize,
}

impl Sequences {
    pub(super) fn insert(&mut self, sequence: Sequence) -> SequenceKey {
        let id = sequence.id();
        let key = self.entries.insert(sequence);
        self.live.insert(id, key);
        key
    }

    /// Replaces a sequence that its caller has left by one that takes over its slot.
    pub(super) fn replace(&mut self, key: SequenceKey, sequence: Sequence) {
        self.live.insert(sequence.id(), key);
        self.entries[key] = sequence;
    }

    /// Returns a sequence that is not finished.
    pub(super) fn find(&self, sequence: SequenceId) -> Option<SequenceKey> {
        self.live.get(&sequence).copied()
    }

    pub(super) fn get(&self, key: SequenceKey) -> Option<&Sequence> {
        self.entries.get(key)
    }

    pub(super) fn get_mut(&mut self, key: SequenceKey) -> Option<&mut Sequence> {
        self.entries.get_mut(key)
    }

    pub(super) fn contains(&self, key: SequenceKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Returns all sequences.
    pub(super) fn keys(&self) -> impl Iterator<Item = SequenceKey> + '_ {
        self.entries.keys()
    }

    /// Returns the sequences that are not finished, in order of arrival.
    pub(super) fn live(&self) -> impl ExactSizeIterator<Item = SequenceKey> + '_ {
        self.live.values().copied()
    }

    /// Returns the finished sequences that are part of a step in flight.
    pub(super) fn draining(&self) -> &[SequenceKey] {
        &self.draining
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of sequences whose callers do not read.
    pub(super) fn paused(&self) -> usize {
        self.paused
    }

    /// Whether a sequence could go on: not all are paused.
    pub(super) fn have_work(&self) -> bool {
        self.entries.len() > self.paused
    }

    /// Returns the number of sequences that this holds for.
    pub(super) fn count(&self, predicate: impl Fn(&Sequence) -> bool) -> usize {
        let all = self.entries.values();
        all.filter(|sequence| predicate(sequence)).count()
    }

    /// Pauses a sequence. Returns false if it was paused.
    pub(super) fn pause(&mut self, key: SequenceKey, now: Duration) -> bool {
        let is_new = self.entries[key].pause(now);
        self.paused += usize::from(is_new);
        is_new
    }

    /// Ends a sequence's pause. Returns the time since which it was paused, if it was.
    pub(super) fn resume(&mut self, key: SequenceKey) -> Option<Duration> {
        let since = self.entries[key].resume();
        self.paused -= usize::from(since.is_some());
        since
    }

    /// Removes a sequence that ends from those that are found by id.
    pub(super) fn leave_caller(&mut self, key: SequenceKey) {
        self.live.remove(&self.entries[key].id());
    }

    /// Records that a sequence, which its caller has left, is finished. Returns whether its slot
    /// can be freed now; otherwise it drains.
    pub(super) fn finish(&mut self, key: SequenceKey, finished: Finished) -> bool {
        let sequence = &mut self.entries[key];
        sequence.finish(finished);
        let drains = sequence.in_flight();
        if drains {
            self.draining.push(key);
        }
        !drains
    }

    /// Removes a finished sequence.
    pub(super) fn remove(&mut self, key: SequenceKey) -> Sequence {
        self.draining.retain(|draining| *draining != key);
        self.entries.remove(key).expect("a sequence ends once")
    }

    /// Whether a sequence continues one that is finished and drains. That one's generated tokens
    /// are in the cache a step later.
    pub(super) fn continues_draining(&self, key: SequenceKey) -> bool {
        let sequence = &self.entries[key];
        let continues =
            |draining: &SequenceKey| sequence.continues_closed(&self.entries[*draining]);
        self.draining.iter().any(continues)
    }

    pub(super) fn check_integrity(&self) {
        let paused = self.count(Sequence::is_paused);
        assert_eq!(paused, self.paused, "paused sequences are counted");
        let finished = self.count(Sequence::is_finished);
        assert_eq!(finished, self.draining.len(), "`draining` is complete");
        assert_eq!(
            self.live.len() + finished,
            self.entries.len(),
            "an unfinished sequence is found by its id"
        );
        for (sequence, key) in &self.live {
            assert_eq!(self.entries[*key].id(), *sequence, "an id finds its own");
        }
        for key in &self.draining {
            let sequence = &self.entries[*key];
            assert!(
                sequence.is_finished() && sequence.in_flight(),
                "a draining sequence is finished and in a step"
            );
        }
    }
}

impl Index<SequenceKey> for Sequences {
    type Output = Sequence;

    fn index(&self, key: SequenceKey) -> &Sequence {
        &self.entries[key]
    }
}

impl IndexMut<SequenceKey> for Sequences {
    fn index_mut(&mut self, key: SequenceKey) -> &mut Sequence {
        &mut self.entries[key]
    }
}
