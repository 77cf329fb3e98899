//! The slots that sequences have, or have asked the cache for.

use std::collections::BTreeMap;

use super::sequence::{Phase, Sequence, SequenceKey, Slot};
use super::sequences::Sequences;
use motet_protocol::{SlotId, UserId};

/// The sequences with a slot, and those for which the cache was asked for one.
#[derive(Debug)]
pub(super) struct Slots {
    /// Number of sequences that may have slots.
    sequences_max: usize,
    /// Sequences with a slot.
    running: Vec<SequenceKey>,
    /// Sequences for which the cache was asked for a slot.
    starting: Vec<SequenceKey>,
    /// Starting sequences for which another sequence computes their common prefix.
    awaiting_prefix: usize,
    /// Slots that each user has or has asked for.
    by_user: BTreeMap<UserId, usize>,
    /// Number of sequences that will be preempted once they are in no step.
    preempting: usize,
    /// Number of preemptions so far.
    preempted: u64,
}

impl Slots {
    pub(super) fn new(sequences_max: usize) -> Self {
        Self {
            sequences_max,
            running: Vec::new(),
            starting: Vec::new(),
            awaiting_prefix: 0,
            by_user: BTreeMap::new(),
            preempting: 0,
            preempted: 0,
        }
    }

    pub(super) fn running(&self) -> &[SequenceKey] {
        &self.running
    }

    pub(super) fn starting(&self) -> &[SequenceKey] {
        &self.starting
    }

    /// Returns the number of starting sequences for which another sequence computes their common
    /// prefix.
    pub(super) fn awaiting_prefix(&self) -> usize {
        self.awaiting_prefix
    }

    /// Returns the number of slots that the user has or has asked for.
    pub(super) fn of(&self, user: UserId) -> usize {
        self.by_user.get(&user).copied().unwrap_or(0)
    }

    /// Returns the number of free slots. A sequence that will be preempted is in no further
    /// step, so its slot counts as free.
    pub(super) fn free(&self) -> usize {
        let taken = self.running.len() + self.starting.len() - self.preempting;
        self.sequences_max.saturating_sub(taken)
    }

    pub(super) fn are_free(&self) -> bool {
        self.free() > 0
    }

    /// Whether a running sequence will be preempted once it is in no step.
    pub(super) fn is_preempting(&self) -> bool {
        self.preempting > 0
    }

    /// Returns the number of preemptions so far.
    pub(super) fn preempted(&self) -> u64 {
        self.preempted
    }

    /// Whether this sequence is the only one with a slot, and the cache was asked for no other.
    pub(super) fn is_alone(&self) -> bool {
        self.running.len() == 1 && self.starting.is_empty()
    }

    /// Whether no sequence has a slot, and the cache was asked for none.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.starting.is_empty()
    }

    /// Records that the cache is asked for a slot.
    pub(super) fn ask(&mut self, key: SequenceKey, user: UserId) {
        self.starting.push(key);
        self.count(user);
    }

    /// Records that a sequence starts after another one that computes their common prefix.
    pub(super) fn defer(&mut self, sequence: &mut Sequence) {
        self.awaiting_prefix += usize::from(sequence.defer());
    }

    /// Gives a starting sequence its slot. Returns whether that is its first.
    pub(super) fn open(
        &mut self,
        key: SequenceKey,
        slot: SlotId,
        cached_tokens: usize,
        sequences: &mut Sequences,
    ) -> bool {
        self.leave(key, sequences);
        let sequence = &mut sequences[key];
        let is_first = sequence.open_slot(slot, cached_tokens, self.running.len());
        self.running.push(key);
        self.count(sequence.user());
        is_first
    }

    /// Records that a slot changes from one user to another.
    pub(super) fn change_user(&mut self, from: UserId, to: UserId) {
        self.uncount(from);
        self.count(to);
    }

    /// Removes a sequence that leaves its phase, if it has a slot or has asked for one.
    pub(super) fn leave(&mut self, key: SequenceKey, sequences: &mut Sequences) {
        let sequence = &sequences[key];
        match sequence.phase() {
            Phase::Queued => {}
            Phase::Starting { waits, .. } => {
                self.starting.retain(|starting| *starting != key);
                self.awaiting_prefix -= usize::from(*waits);
                self.uncount(sequence.user());
            }
            Phase::Running(slot) => {
                self.preempting -= usize::from(slot.is_preempting());
                self.uncount(sequence.user());
                let running_index = slot.running_index();
                self.running.swap_remove(running_index);
                if let Some(moved) = self.running.get(running_index) {
                    let moved = sequences[*moved].slot_mut();
                    let moved = moved.expect("a running sequence has a slot");
                    moved.moved_to(running_index);
                }
            }
        }
    }

    /// Records that a sequence will be preempted. Returns whether that can happen now, since it
    /// is in no step.
    pub(super) fn preempt_after_step(&mut self, sequence: &mut Sequence) -> bool {
        let slot = sequence.slot_mut().expect("the sequence runs");
        slot.preempt_after_step();
        self.preempting += 1;
        !slot.is_in_step()
    }

    /// Counts a preemption.
    pub(super) fn count_preemption(&mut self) {
        self.preempted += 1;
    }

    fn count(&mut self, user: UserId) {
        *self.by_user.entry(user).or_default() += 1;
    }

    fn uncount(&mut self, user: UserId) {
        let slots = self.by_user.get_mut(&user);
        let slots = slots.expect("a slot is counted before it is freed");
        *slots -= 1;
        if *slots == 0 {
            self.by_user.remove(&user);
        }
    }

    pub(super) fn check_integrity(&self, sequences: &Sequences) {
        let starting = sequences.count(|e| matches!(e.phase(), Phase::Starting { .. }));
        assert_eq!(starting, self.starting.len(), "`starting` is complete");
        let awaiting = |e: &Sequence| matches!(e.phase(), Phase::Starting { waits: true, .. });
        let awaiting = sequences.count(awaiting);
        assert_eq!(awaiting, self.awaiting_prefix, "waits are counted");
        let running = sequences.count(|e| e.slot().is_some());
        assert_eq!(running, self.running.len(), "`running` is complete");
        let slots: usize = self.by_user.values().sum();
        assert_eq!(slots, running + starting, "slots are counted by user");
        assert!(
            slots <= self.sequences_max + self.preempting,
            "at most `sequences_max` sequences run"
        );
        let preempting = sequences.count(|e| e.slot().is_some_and(Slot::is_preempting));
        assert_eq!(
            preempting, self.preempting,
            "sequences to preempt are counted"
        );
        for (running_index, key) in self.running.iter().enumerate() {
            let sequence = &sequences[*key];
            let slot = sequence.slot().expect("a running sequence has a slot");
            assert_eq!(
                slot.running_index(),
                running_index,
                "a running sequence knows its index"
            );
            assert!(
                slot.evaluated() <= slot.grant().tokens(),
                "no slot exceeds its grant"
            );
            assert!(
                !sequence.is_finished() || slot.is_in_step(),
                "a finished sequence with a slot is draining"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::submission;
    use std::time::Duration;

    fn start(slots: &mut Slots, sequences: &mut Sequences, number: u64) -> SequenceKey {
        let mut sequence = Sequence::new(submission(number), 100, Duration::ZERO);
        let user = sequence.user();
        sequence.ask_for_slot(number, 50, Duration::ZERO);
        let key = sequences.insert(sequence);
        slots.ask(key, user);
        key
    }

    #[test]
    fn slot_is_counted_from_the_request_to_its_end() {
        let (mut slots, mut sequences) = (Slots::new(2), Sequences::default());
        let first = start(&mut slots, &mut sequences, 1);
        let second = start(&mut slots, &mut sequences, 2);
        assert!(!slots.are_free());
        assert!(slots.open(second, SlotId(2), 0, &mut sequences));
        assert!(slots.open(first, SlotId(1), 0, &mut sequences));
        slots.check_integrity(&sequences);
        assert_eq!(slots.of(sequences[first].user()), 2);

        assert!(slots.preempt_after_step(&mut sequences[second]));
        assert_eq!(slots.free(), 1, "it is in no further step");
        slots.leave(second, &mut sequences);
        sequences[second].preempt();
        slots.check_integrity(&sequences);
        assert!(slots.is_alone());
    }
}
