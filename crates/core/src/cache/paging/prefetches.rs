//! Loads ahead of need: which sequences the pager has been told of.

use std::collections::BTreeSet;

use motet_protocol::SequenceId;

/// Maximum number of prefetched sequences that are remembered.
const PREFETCHES_MAX: usize = 1024;

/// The sequences for which a prefetch was sent to the pager.
#[derive(Debug)]
pub(super) struct Prefetches {
    /// Whether there is a disk tier, from which copies load slowly.
    has_disk: bool,
    sent: BTreeSet<SequenceId>,
}

impl Prefetches {
    pub(super) fn new(has_disk: bool) -> Self {
        Self {
            has_disk,
            sent: BTreeSet::new(),
        }
    }

    /// Whether a prefetch is to be sent for this sequence now. It is sent once.
    pub(super) fn is_due(&mut self, sequence: SequenceId) -> bool {
        if !self.has_disk || !self.sent.insert(sequence) {
            return false;
        }
        if self.sent.len() > PREFETCHES_MAX {
            // The oldest have usually started.
            self.sent.pop_first();
        }
        true
    }

    /// No sequence is prefetched after a reset.
    pub(super) fn after_reset(self) -> Self {
        Self::new(self.has_disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_is_prefetched_once() {
        let mut prefetches = Prefetches::new(true);
        assert!(prefetches.is_due(SequenceId(1)));
        assert!(!prefetches.is_due(SequenceId(1)));
        assert!(!Prefetches::new(false).is_due(SequenceId(1)));
        for name in 0..3 * PREFETCHES_MAX as u64 {
            prefetches.is_due(SequenceId(name));
        }
        assert_eq!(prefetches.sent.len(), PREFETCHES_MAX);
    }
}
