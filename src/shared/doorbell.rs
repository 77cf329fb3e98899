//! Somebody wanted to tell the scheduler something and found its mailbox full.
//!
//! What there was to tell stands in words of its own ([`CancelWord`], [`Credits`]);
//! the bell only says that it is time to look at them, so that the scheduler need not
//! look at every sequence at every step.
//!
//! [`CancelWord`]: super::cancel::CancelWord
//! [`Credits`]: super::credits::Credits

use crate::sync::{Arc, AtomicBool, Ordering};

/// The bell. Clones are the same bell.
#[derive(Clone, Debug, Default)]
pub struct Doorbell(Arc<AtomicBool>);

impl Doorbell {
    /// A bell that nobody has rung.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Rings. What there is to see was written before.
    pub fn ring(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether somebody has rung since this was last asked. What they wrote before can
    /// be seen now.
    #[must_use]
    pub fn answer(&self) -> bool {
        if cfg!(motet_planted_bug) {
            let rung = self.0.load(Ordering::Acquire);
            self.0.store(false, Ordering::Release);
            return rung;
        }
        self.0.swap(false, Ordering::AcqRel)
    }
}
