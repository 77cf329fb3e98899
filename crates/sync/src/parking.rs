//! Threads that sleep until there is something for them, and are woken only if they sleep.
//!
//! To wake a thread costs a call of the system, also where it is awake. So each thread says
//! before it parks that it will, and whoever has something for it wakes those that have said
//! so. Both write one word and then read the other's. A fence between the two, on both sides,
//! is what makes that safe: either the waker sees that the thread parks, or the thread sees
//! what there is. Acquiring and releasing alone would let both read the older value
//! (Dekker's pattern), and a thread would sleep through what it is needed for.

use crate::primitives::inject::{InjectedBug, full_fence};
use crate::primitives::{AtomicBool, Ordering, park};

/// Which of so many threads are parked, or about to be.
#[derive(Debug)]
pub struct Parking {
    parked: Vec<AtomicBool>,
}

impl Parking {
    /// For so many threads, of which none is parked.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            parked: (0..threads).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Parks this thread, which is the one of this number, until `find` finds something. None
    /// once `is_finished`: whoever says so unparks all threads afterwards, parked or not.
    ///
    /// Neither `find` nor `is_finished` need order memory.
    pub fn wait<T>(
        &self,
        thread: usize,
        find: impl Fn() -> Option<T>,
        is_finished: impl Fn() -> bool,
    ) -> Option<T> {
        let parked = &self.parked[thread];
        loop {
            parked.store(true, Ordering::Relaxed);
            full_fence(InjectedBug::ParkingSleeperFence);
            let found = find();
            if found.is_none() && !is_finished() {
                park();
            }
            parked.store(false, Ordering::Relaxed);
            if let Some(found) = found.or_else(&find) {
                return Some(found);
            }
            if is_finished() {
                return None;
            }
        }
    }

    /// The threads that must be unparked so that they find what this thread has stored before.
    /// The others find it by themselves.
    pub fn parked(&self) -> impl Iterator<Item = usize> + '_ {
        full_fence(InjectedBug::ParkingWakerFence);
        let all = self.parked.iter().enumerate();
        let parked = all.filter(|(_, parked)| parked.load(Ordering::Relaxed));
        parked.map(|(thread, _)| thread)
    }
}
