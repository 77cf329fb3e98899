//! Panics that a test asks for, as the oracle's faults are for the model.

use crate::sync::{Arc, AtomicU64, Ordering};

/// Makes an actor or a device thread panic when a test wants it to. Clones are the same
/// fuse.
#[derive(Clone, Debug, Default)]
pub struct Fuse(Arc<AtomicU64>);

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
        self.0.store(messages, Ordering::Relaxed);
    }

    /// Whether it is lit and has not gone off.
    #[must_use]
    pub fn is_lit(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// A message is handled.
    ///
    /// # Panics
    ///
    /// When it was to.
    pub(crate) fn burn(&self) {
        if !self.is_lit() {
            return;
        }
        let left = self.0.fetch_sub(1, Ordering::Relaxed) - 1;
        assert!(left > 0, "the fuse went off (injected)");
    }
}
