//! Cancel flag: whether the caller or the scheduler ended a sequence first.
//!
//! Both may try at the same moment, from different threads; exactly one wins. If the caller
//! wins, the scheduler stops the sequence at the next step boundary. If the scheduler wins, a
//! later drop of the stream, or a cancel by a handle, has no effect.

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicU8, Ordering};

const LIVE: u8 = 0;
const CANCELLED: u8 = 1;
const FINISHED: u8 = 2;

/// The flag that a caller's stream, its handles, the sequence's actor and the scheduler share. Clones share one flag.
#[derive(Clone, Debug)]
pub struct CancelFlag(Arc<AtomicU8>);

impl CancelFlag {
    /// Creates the flag of a sequence that has not ended.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicU8::new(LIVE)))
    }

    /// Ends the sequence for the caller. Returns true if this call ended it.
    pub fn cancel(&self) -> bool {
        self.end(CANCELLED)
    }

    /// Ends the sequence for the scheduler or the actor of the sequence. Returns true if this call ended it, false if
    /// it had ended before.
    pub fn finish(&self) -> bool {
        self.end(FINISHED)
    }

    /// Whether the caller cancelled first. If so, the caller's earlier writes are visible.
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
