//! Panics that a test requests, as the oracle's faults are failures of the model.

use motet_protocol::SequenceId;
use motet_sync::primitives::{Arc, AtomicU64, Ordering};

/// Makes an actor or a device thread panic on request of a test. Clones share one failpoint.
#[derive(Clone, Debug, Default)]
pub struct Failpoint(Arc<Triggers>);

#[derive(Debug, Default)]
struct Triggers {
    /// Messages until the panic; 0 while the failpoint is not armed.
    messages: AtomicU64,
    /// The sequence whose messages all panic; 0, which is never a sequence's id, if none.
    sequence: AtomicU64,
}

/// The failpoints of an engine.
#[derive(Clone, Debug, Default)]
pub struct Failpoints {
    /// The device threads': the panic ends the thread, and each outcome counts as a message.
    pub device: Failpoint,
    /// The scheduler's.
    pub scheduler: Failpoint,
    /// The cache's.
    pub cache: Failpoint,
    /// The pager's.
    pub pager: Failpoint,
}

impl Failpoint {
    /// Makes the last of the next `messages` messages panic, after the state has changed and
    /// before any effect is sent.
    pub fn arm(&self, messages: u64) {
        self.0.messages.store(messages, Ordering::Relaxed);
    }

    /// Makes every message about this sequence panic, and no other.
    pub fn arm_for(&self, sequence: SequenceId) {
        self.0.sequence.store(sequence.0, Ordering::Relaxed);
    }

    /// Whether it is armed and has not panicked yet.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.0.messages.load(Ordering::Relaxed) > 0
    }

    /// Counts a message, with the sequence that it concerns, if any.
    ///
    /// # Panics
    ///
    /// When the failpoint is armed for this message.
    pub(crate) fn trip(&self, concerns: Option<SequenceId>) {
        let poison = self.0.sequence.load(Ordering::Relaxed);
        let is_poison = concerns.is_some_and(|sequence| sequence.0 == poison);
        assert!(
            !is_poison,
            "the failpoint tripped at {concerns:?} (injected)"
        );
        if !self.is_armed() {
            return;
        }
        let left = self.0.messages.fetch_sub(1, Ordering::Relaxed) - 1;
        assert!(left > 0, "the failpoint tripped (injected)");
    }
}
