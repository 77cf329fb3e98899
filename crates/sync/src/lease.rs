//! Leases: a count of the handles that use a segment. An eviction succeeds only if it is zero.
//!
//! `S` is the type of segment names.
//!
//! The atomic holds the number of live [`Lease`]s, or `EVICTED`. A lease is RAII: an actor that
//! dies drops its leases. An eviction is a compare-and-swap from "no leases"; after it no lease
//! can be taken.

use std::fmt;

use crate::injected::{Bug, is_injected};
use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicUsize, Ordering};

const EVICTED: usize = usize::MAX;

/// The count that all leases of one segment share. The cache owns it.
#[derive(Clone)]
pub struct LeaseCount<S>(Arc<Inner<S>>);

struct Inner<S> {
    segment: S,
    leases: AtomicUsize,
}

impl<S: Copy> LeaseCount<S> {
    /// Creates the count of a segment without leases.
    #[must_use]
    pub fn new(segment: S) -> Self {
        Self(Arc::new(Inner {
            segment,
            leases: AtomicUsize::new(0),
        }))
    }

    /// Returns the segment.
    #[must_use]
    pub fn segment(&self) -> S {
        self.0.segment
    }

    /// Returns the number of leases alive at some moment during this call; 0 once evicted.
    #[must_use]
    pub fn leases(&self) -> usize {
        match self.0.leases.load(Ordering::Acquire) {
            EVICTED => 0,
            leases => leases,
        }
    }

    /// Takes a lease, unless the segment has been evicted.
    #[must_use]
    pub fn lease(&self) -> Option<Lease<S>> {
        let mut seen = self.0.leases.load(Ordering::Relaxed);
        loop {
            if seen == EVICTED {
                return None;
            }
            assert!(seen < EVICTED - 1, "lease count overflows");
            match self.0.leases.compare_exchange_weak(
                seen,
                seen + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Some(Lease(Arc::clone(&self.0)));
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Evicts the segment if it has no lease. Returns true once, for the winner.
    #[must_use]
    pub fn try_evict(&self) -> bool {
        if injected(InjectedBug::LeaseEvictInTwoSteps) {
            // Checks and evicts in two steps: a lease may be taken between them.
            let free = self.0.leases.load(Ordering::Acquire) == 0;
            if free {
                self.0.leases.store(EVICTED, Ordering::Release);
            }
            return free;
        }
        if is_injected(Bug::LeasedEvicted) {
            return self.0.leases.swap(EVICTED, Ordering::AcqRel) != EVICTED;
        }
        let order = ordering(
            InjectedBug::LeaseEvictAcquire,
            Ordering::AcqRel,
            Ordering::Release,
        );
        self.0
            .leases
            .compare_exchange(0, EVICTED, order, Ordering::Relaxed)
            .is_ok()
    }
}

impl<S: Copy + fmt::Debug> fmt::Debug for LeaseCount<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LeaseCount({:?}, {} leases)",
            self.segment(),
            self.leases()
        )
    }
}

/// The right to use a segment; while it lives, the segment is not evicted.
pub struct Lease<S>(Arc<Inner<S>>);

impl<S: Copy> Lease<S> {
    /// Returns the segment.
    #[must_use]
    pub fn segment(&self) -> S {
        self.0.segment
    }
}

impl<S> Clone for Lease<S> {
    /// Takes another lease of the same segment, which cannot be evicted meanwhile.
    fn clone(&self) -> Self {
        let before = self.0.leases.fetch_add(1, Ordering::Relaxed);
        assert!(before < EVICTED - 1, "lease count overflows");
        Self(Arc::clone(&self.0))
    }
}

impl<S> Drop for Lease<S> {
    fn drop(&mut self) {
        if injected(InjectedBug::LeaseDropInTwoSteps) {
            // Counts down in two steps: a drop of another thread between them is lost.
            let before = self.0.leases.load(Ordering::Acquire);
            self.0.leases.store(before - 1, Ordering::Release);
            return;
        }
        let order = ordering(
            InjectedBug::LeaseDropRelease,
            Ordering::Release,
            Ordering::Relaxed,
        );
        let before = self.0.leases.fetch_sub(1, order);
        // While a panic unwinds, a second one would abort the process and hide the first.
        debug_assert!(
            before != 0 && before != EVICTED || std::thread::panicking(),
            "a lease is released once, and before eviction"
        );
    }
}

impl<S: fmt::Debug> fmt::Debug for Lease<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?})", self.0.segment)
    }
}
