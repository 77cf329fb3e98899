//! Parking: threads that sleep until there is work for them, and are woken only if they sleep.
//!
//! Waking a thread costs a system call, even if it is awake. Therefore each thread announces
//! before it parks, and a waker wakes only the announced threads. Each side writes its own
//! atomic and then reads the other's. A sequentially consistent fence between the two, on both
//! sides, makes this safe: either the waker sees that the thread parks, or the thread sees the
//! work. Acquire and release alone would let both read the older value (Dekker's pattern), and
//! the thread would miss the work.

use crate::primitives::inject::{InjectedBug, full_fence};
use crate::primitives::{AtomicBool, Ordering, park};

/// The threads that are parked, or about to park.
#[derive(Debug)]
pub struct Parking {
    parked: Vec<AtomicBool>,
}

impl Parking {
    /// Creates the state for `threads` threads, none of them parked.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            parked: (0..threads).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Parks this thread, number `thread`, until `find` finds something. Returns `None` once
    /// `is_finished` is true; the thread that sets it must unpark all threads afterwards,
    /// parked or not.
    ///
    /// `find` and `is_finished` need not order memory.
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

    /// Returns the threads that must be unparked to find what this thread has stored before.
    /// The others find it by themselves.
    pub fn parked(&self) -> impl Iterator<Item = usize> + '_ {
        full_fence(InjectedBug::ParkingWakerFence);
        let all = self.parked.iter().enumerate();
        let parked = all.filter(|(_, parked)| parked.load(Ordering::Relaxed));
        parked.map(|(thread, _)| thread)
    }
}
