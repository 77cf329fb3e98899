//! How many requests are in the house: the bound that every submit passes.
//!
//! A request takes a [`Permit`] before anything is spent on it and gives it back
//! when its last trace is gone, so the queue cannot grow past its bound by any
//! path. The gate can be shut for good (drain); requests inside finish.

use crate::sync::{Arc, AtomicUsize, Ordering};

/// Set while the gate is shut; the rest of the word counts permits.
const SHUT: usize = 1 << (usize::BITS - 1);

/// The gate that all callers share. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Admission {
    word: Arc<AtomicUsize>,
    permits_max: usize,
}

/// Why a request was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many requests as there may be are inside.
    Full,
    /// The gate is shut.
    Shut,
}

impl Admission {
    /// A gate that lets at most `permits_max` requests in at a time.
    #[must_use]
    pub fn new(permits_max: usize) -> Self {
        assert!(
            permits_max < SHUT,
            "a bound is smaller than half the address space"
        );
        Self {
            word: Arc::new(AtomicUsize::new(0)),
            permits_max,
        }
    }

    /// Lets one request in, or says at once why not.
    ///
    /// # Errors
    ///
    /// [`Refusal::Full`] at the bound, [`Refusal::Shut`] once shut.
    pub fn enter(&self) -> Result<Permit, Refusal> {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            if seen & SHUT != 0 {
                return Err(Refusal::Shut);
            }
            if seen >= self.permits_max {
                return Err(Refusal::Full);
            }
            if cfg!(motet_planted_bug) {
                self.word.fetch_add(1, Ordering::AcqRel);
                return Ok(Permit(Arc::clone(&self.word)));
            }
            match self.word.compare_exchange_weak(
                seen,
                seen + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Ok(Permit(Arc::clone(&self.word)));
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Shuts the gate for good.
    pub fn shut(&self) {
        self.word.fetch_or(SHUT, Ordering::AcqRel);
    }

    /// Requests inside.
    #[must_use]
    pub fn inside(&self) -> usize {
        self.word.load(Ordering::Acquire) & !SHUT
    }

    /// Whether the gate is shut.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.word.load(Ordering::Acquire) & SHUT != 0
    }
}

/// One request's place in the house; dropping it gives the place back.
#[derive(Debug)]
pub struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before & !SHUT != 0, "a permit is given back once");
    }
}
