//! Panics that a test asks for, as the oracle's faults are for the model.

use motet_core::SequenceId;
use motet_sync::primitives::{Arc, AtomicU64, Ordering};

/// Makes an actor or a device thread panic when a test wants it to. Clones are the same
/// fuse.
#[derive(Clone, Debug, Default)]
pub struct Fuse(Arc<Wires>);

#[derive(Debug, Default)]
struct Wires {
    /// Messages until it goes off; none while it is not lit.
    messages: AtomicU64,
    /// The sequence at which it goes off each time; 0, which is nobody's name, if none.
    sequence: AtomicU64,
}

/// The fuses of a house.
#[derive(Clone, Debug, Default)]
pub struct Fuses {
    /// The device threads', which die of it: each outcome is a message.
    pub device: Fuse,
    /// The scheduler's.
    pub scheduler: Fuse,
    /// The cache's.
    pub cache: Fuse,
    /// The pager's.
    pub pager: Fuse,
}

impl Fuse {
    /// From now on so many messages are handled; the last of them panics, when the state
    /// has changed and nobody has heard of it yet.
    pub fn light(&self, messages: u64) {
        self.0.messages.store(messages, Ordering::Relaxed);
    }

    /// From now on each message panics that is about this sequence and no other.
    pub fn light_for(&self, sequence: SequenceId) {
        self.0.sequence.store(sequence.0, Ordering::Relaxed);
    }

    /// Whether it is lit and has not gone off.
    #[must_use]
    pub fn is_lit(&self) -> bool {
        self.0.messages.load(Ordering::Relaxed) > 0
    }

    /// A message is handled, which is about this sequence, if about one.
    ///
    /// # Panics
    ///
    /// When it was to.
    pub(crate) fn burn(&self, concerns: Option<SequenceId>) {
        let poison = self.0.sequence.load(Ordering::Relaxed);
        let is_poison = concerns.is_some_and(|sequence| sequence.0 == poison);
        assert!(!is_poison, "the fuse went off at {concerns:?} (injected)");
        if !self.is_lit() {
            return;
        }
        let left = self.0.messages.fetch_sub(1, Ordering::Relaxed) - 1;
        assert!(left > 0, "the fuse went off (injected)");
    }
}
