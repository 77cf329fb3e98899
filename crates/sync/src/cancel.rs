//! Who ended a sequence: its caller by leaving, or the scheduler by finishing.
//!
//! Both may try at the same moment, from different threads; exactly one wins.
//! When the caller wins, the scheduler stops the sequence at the next step
//! boundary; when the scheduler wins, a later drop of the stream is no news.

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicU8, Ordering};

const LIVE: u8 = 0;
const CANCELLED: u8 = 1;
const FINISHED: u8 = 2;

/// The word that a caller's stream and the scheduler share. Clones are the same
/// word.
#[derive(Clone, Debug)]
pub struct CancelFlag(Arc<AtomicU8>);

impl CancelFlag {
    /// The word of a sequence that nobody has ended.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicU8::new(LIVE)))
    }

    /// The caller leaves. True when that ended the sequence.
    pub fn cancel(&self) -> bool {
        self.end(CANCELLED)
    }

    /// The scheduler is done. True when that ended the sequence; false when the
    /// caller had left before.
    pub fn finish(&self) -> bool {
        self.end(FINISHED)
    }

    /// Whether the caller left first. What it did before is seen then.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let order = ordering(
            InjectedBug::CancelSeenAcquire,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        self.0.load(order) == CANCELLED
    }

    fn end(&self, end: u8) -> bool {
        if injected(InjectedBug::CancelInTwoSteps) {
            let won = self.0.load(Ordering::Acquire) == LIVE;
            if won {
                self.0.store(end, Ordering::Release);
            }
            return won;
        }
        let order = ordering(
            InjectedBug::CancelRelease,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        self.0
            .compare_exchange(LIVE, end, order, Ordering::Relaxed)
            .is_ok()
    }
}

impl Default for CancelFlag {
    fn default() -> Self {
        Self::new()
    }
}
