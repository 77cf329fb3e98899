//! How far a sequence is ahead of its reader, and whether it waits for it.
//!
//! The scheduler counts a token when it sends it, the caller's stream when it reads it.
//! A sequence that is too far ahead pauses; the read that takes it down to half of that
//! wakes it. Count and pause are one word, so no wake-up is lost: whoever reads down to
//! the mark either finds the pause and ends it, or comes before it, and then the count
//! is too small to pause.

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicUsize, Ordering};

/// Set while the sequence is paused; the rest of the word counts unread tokens.
const PAUSED: usize = 1 << (usize::BITS - 1);

/// The word that the scheduler and a caller's stream share. Clones are the same word.
#[derive(Clone, Debug)]
pub struct Credits {
    state: Arc<AtomicUsize>,
    unread_max: usize,
}

impl Credits {
    /// The word of a sequence that may be `unread_max` tokens ahead of its reader.
    ///
    /// # Panics
    ///
    /// When `unread_max` is 0, or half the address space.
    #[must_use]
    pub fn new(unread_max: usize) -> Self {
        assert!(
            (1..PAUSED).contains(&unread_max),
            "a sequence may be at least one token ahead"
        );
        Self {
            state: Arc::new(AtomicUsize::new(0)),
            unread_max,
        }
    }

    /// The scheduler has sent a token. Comes before the token itself.
    pub fn sent(&self) {
        self.state.fetch_add(1, Ordering::AcqRel);
    }

    /// Pauses the sequence if it is as far ahead as it may be. True while it is paused.
    /// Otherwise what the reader did before it read is seen.
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

    /// The caller has read a token. True when that ended a pause: then the scheduler is
    /// to be told.
    #[must_use]
    pub fn read(&self) -> bool {
        let mut seen = self.state.load(Ordering::Acquire);
        loop {
            let unread = seen & !PAUSED;
            debug_assert!(unread > 0, "a token is sent before it is read");
            let unread_left = unread - 1;
            let resumes = seen & PAUSED != 0 && unread_left <= self.unread_max / 2;
            let next = match resumes {
                true => unread_left,
                false => seen - 1,
            };
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

    /// Tokens that were sent and not read.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.state.load(Ordering::Acquire) & !PAUSED
    }
}
