//! Nodes that were evicted, cleared or lost so far.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::trie::Evicted;

/// Maximum number of evicted nodes whose starts are remembered.
const EVICTED_MAX: usize = 4096;

/// Counts evicted nodes, and remembers the starts of the latest. A mark is a hash of a few
/// tokens, so one prompt may be mistaken for another. The only consequence is a wrong reason.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    evicted_segments: u64,
    evicted_tokens: u64,
    marks: FxHashSet<u64>,
    /// The same marks, oldest first.
    order: VecDeque<u64>,
}

impl Evictions {
    pub(super) fn add(&mut self, evicted: &Evicted) {
        self.evicted_segments += 1;
        self.evicted_tokens += evicted.tokens as u64;
        if let Some(mark) = evicted.mark {
            self.remember(mark);
        }
    }

    /// Whether a node with this start was evicted lately.
    pub(super) fn contains(&self, mark: u64) -> bool {
        self.marks.contains(&mark)
    }

    pub(super) fn segments(&self) -> u64 {
        self.evicted_segments
    }

    pub(super) fn tokens(&self) -> u64 {
        self.evicted_tokens
    }

    /// Returns the same counts without remembered starts, for the time after a reset of the device.
    pub(super) fn after_reset(&self) -> Self {
        Self {
            evicted_segments: self.evicted_segments,
            evicted_tokens: self.evicted_tokens,
            ..Self::default()
        }
    }

    /// Panics unless each mark has its place in the order.
    pub(super) fn check_integrity(&self) {
        assert_eq!(self.order.len(), self.marks.len(), "each mark is in order");
        assert!(self.order.len() <= EVICTED_MAX, "marks are bounded");
    }

    fn remember(&mut self, mark: u64) {
        if !self.marks.insert(mark) {
            return;
        }
        self.order.push_back(mark);
        if self.order.len() > EVICTED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.marks.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_evictions_are_bounded() {
        let mut evictions = Evictions::default();
        for mark in 0..2 * EVICTED_MAX as u64 {
            evictions.remember(mark % (EVICTED_MAX as u64 + 1));
        }
        assert_eq!(evictions.order.len(), EVICTED_MAX);
        evictions.check_integrity();
    }
}
