//! Grants of memory to slots.
//!
//! A sequence starts with memory for its prompt and some headroom, not for the longest output
//! that it may have: most end sooner. The cache extends the grant as the slot grows, and evicts
//! unused segments for it. When that does not suffice, the slot starves, and the scheduler
//! preempts a sequence (`preemption.rs`).
//!
//! After each such preemption new sequences get more headroom, and so fewer start. Without
//! preemptions the headroom shrinks again (as SGLang's ratio of new tokens does).

use std::cmp::Reverse;

use super::sequence::{Sequence, SequenceKey};
use super::sequences::Sequences;
use motet_protocol::Priority;
use motet_protocol::SequenceId;

/// The headroom of new grants, and the slots that starve.
#[derive(Debug, Default)]
pub(super) struct MemoryGrants {
    headroom: Headroom,
    /// Sequences whose grants the cache could not extend.
    starved: Vec<SequenceKey>,
}

/// Part of its longest output for which a new sequence gets memory.
#[derive(Clone, Copy, Debug)]
struct Headroom(f64);

impl MemoryGrants {
    /// Returns the tokens of a new slot's grant.
    pub(super) fn first(&self, sequence: &Sequence) -> usize {
        sequence.first_grant(|output_left| self.headroom.tokens(output_left))
    }

    /// Records a larger grant.
    pub(super) fn extend(&mut self, sequence: &mut Sequence, tokens_max: usize) {
        if let Some(slot) = sequence.slot_mut() {
            slot.extend_grant(tokens_max);
        }
    }

    /// Records that the cache had no memory for a larger grant.
    pub(super) fn deny(&mut self, key: SequenceKey, sequence: &mut Sequence) {
        if let Some(slot) = sequence.slot_mut() {
            slot.deny_grant();
            self.starved.push(key);
        }
    }

    /// Returns the starved sequences in the order in which they get memory. Each may ask again,
    /// since memory may have been freed.
    pub(super) fn retry(&mut self, sequences: &mut Sequences) -> Vec<SequenceKey> {
        let mut starved = std::mem::take(&mut self.starved);
        starved.sort_by_key(|key| rank(&sequences[*key]));
        for key in &starved {
            if let Some(slot) = sequences[*key].slot_mut() {
                slot.retry_grant();
            }
        }
        starved
    }

    /// Removes a sequence that loses its slot.
    pub(super) fn leave(&mut self, key: SequenceKey) {
        self.starved.retain(|starved| *starved != key);
    }

    /// Whether a slot starves.
    pub(super) fn is_any_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Returns the first of the starved sequences that stand still: their grants are used up,
    /// and their callers read.
    pub(super) fn first_stalled(&self, sequences: &Sequences) -> Option<SequenceKey> {
        let is_stalled = |key: &SequenceKey| {
            let sequence = &sequences[*key];
            !sequence.is_paused() && sequence.slot().is_some_and(|slot| slot.grant_left() == 0)
        };
        let stalled = self.starved.iter().copied().filter(is_stalled);
        stalled.min_by_key(|key| rank(&sequences[*key]))
    }

    /// Returns the highest class of starved sequences whose callers read.
    pub(super) fn starved_class(&self, sequences: &Sequences) -> Option<Priority> {
        let entries = self.starved.iter().map(|key| &sequences[*key]);
        let reads = entries.filter(|sequence| !sequence.is_paused());
        reads.map(Sequence::priority).max()
    }

    /// Widens the headroom, since a sequence is preempted for want of memory.
    pub(super) fn widen_headroom(&mut self) {
        self.headroom.widen();
    }

    /// Narrows the headroom after a step.
    pub(super) fn narrow_headroom(&mut self) {
        self.headroom.narrow();
    }

    pub(super) fn check_integrity(&self, sequences: &Sequences) {
        let is_denied = |e: &Sequence| e.slot().is_some_and(|slot| slot.grant().is_denied());
        let denied = sequences.count(is_denied);
        assert_eq!(denied, self.starved.len(), "`starved` is complete");
        for key in &self.starved {
            assert!(is_denied(&sequences[*key]), "a starved slot was denied");
        }
    }
}

impl Headroom {
    const LEAST: f64 = 0.1;
    /// Factor by which it shrinks after each step.
    const DECAY: f64 = 0.998;

    fn tokens(self, output_left: usize) -> usize {
        (self.0 * output_left as f64) as usize
    }

    fn widen(&mut self) {
        self.0 = (self.0 * 1.5).min(1.0);
    }

    fn narrow(&mut self) {
        self.0 = (self.0 * Self::DECAY).max(Self::LEAST);
    }
}

impl Default for Headroom {
    fn default() -> Self {
        Self(0.5)
    }
}

/// Returns the order in which starved sequences get memory: the highest class first, then the
/// earliest arrival.
fn rank(sequence: &Sequence) -> (Reverse<Priority>, SequenceId) {
    (Reverse(sequence.priority()), sequence.id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_follows_preemptions() {
        let mut headroom = Headroom::default();
        assert_eq!(headroom.tokens(100), 50);
        headroom.widen();
        assert_eq!(headroom.tokens(100), 75);
        headroom.widen();
        assert_eq!(headroom.tokens(100), 100, "at most the whole output");
        for _ in 0..10_000 {
            headroom.narrow();
        }
        assert_eq!(headroom.tokens(100), 10);
    }
}
