//! Credits: how far a sequence is ahead of its reader, and whether it is paused.
//!
//! The scheduler counts a token when it sends it, the caller's stream when it reads it. A
//! sequence that is too far ahead pauses; the read that reaches half of the limit resumes it.
//! Count and pause flag are one atomic, so no wakeup is lost. A read that reaches the mark
//! either finds the pause and ends it, or comes before the pause, and then the count is too
//! small to pause.

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicUsize, Ordering};

/// Set while the sequence is paused; the other bits count unread tokens.
const PAUSED: usize = 1 << (usize::BITS - 1);

/// The state that the scheduler and a caller's stream share. Clones share one state.
#[derive(Clone, Debug)]
pub struct Credits {
    state: Arc<AtomicUsize>,
    unread_max: usize,
}

impl Credits {
    /// Creates the credits of a sequence that may be `unread_max` tokens ahead of its reader, or
    /// as many as can be counted.
    ///
    /// # Panics
    ///
    /// If `unread_max` is 0.
    #[must_use]
    pub fn new(unread_max: usize) -> Self {
        assert!(unread_max > 0, "unread_max is 0; expected at least 1");
        Self {
            state: Arc::new(AtomicUsize::new(0)),
            unread_max: unread_max.min(PAUSED - 1),
        }
    }

    /// Counts a token sent by the scheduler. Call it before the token is sent.
    pub fn sent(&self) {
        self.state.fetch_add(1, Ordering::AcqRel);
    }

    /// Pauses the sequence if it is as far ahead as it may be. Returns true while it is paused.
    /// If it returns false, the reader's writes before its reads are visible.
    #[must_use]
    pub fn pause_if_full(&self) -> bool {
        let order = ordering(
            InjectedBug::CreditsPauseAcquire,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        let mut seen = self.state.load(order);
        loop {
            if seen & PAUSED != 0 {
                return true;
            }
            if seen < self.unread_max {
                return false;
            }
            if injected(InjectedBug::CreditsPauseInTwoSteps) {
                self.state.fetch_or(PAUSED, Ordering::AcqRel);
                return true;
            }
            match self.state.compare_exchange_weak(
                seen,
                seen | PAUSED,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Counts a token read by the caller. Returns true if this ended a pause: the caller must
    /// then notify the scheduler.
    #[must_use]
    pub fn read(&self) -> bool {
        let mut seen = self.state.load(Ordering::Acquire);
        loop {
            let unread = seen & !PAUSED;
            debug_assert!(unread > 0, "a token is sent before it is read");
            let unread_left = unread - 1;
            let resumes = seen & PAUSED != 0 && unread_left <= self.unread_max / 2;
            let next = if resumes { unread_left } else { seen - 1 };
            let order = ordering(
                InjectedBug::CreditsReadRelease,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match self
                .state
                .compare_exchange_weak(seen, next, order, Ordering::Acquire)
            {
                Ok(_) => return resumes,
                Err(now) => seen = now,
            }
        }
    }

    /// Whether the sequence is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.state.load(Ordering::Acquire) & PAUSED != 0
    }

    /// Returns the number of tokens sent and not read.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.state.load(Ordering::Acquire) & !PAUSED
    }
}
