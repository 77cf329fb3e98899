//! A value that one thread publishes to others for a while; they may enter and read it while
//! the gate is open.
//!
//! The opener never waits for threads that have not entered: it closes the gate without them,
//! and they find it closed. It waits only for threads that are inside. One atomic counts the
//! openings and the threads inside, so each worker enters at most once for each opening.

use std::fmt;

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicU64, Ordering, UnsafeCell, spin_loop, yield_now};

/// The gate is open: threads may enter.
const OPEN: u64 = 1 << 31;
/// One thread inside.
const ONE: u64 = 1;
/// Low half of the state: `OPEN`, and the number of threads inside. The high half counts the
/// openings.
const LOW: u64 = (1 << 32) - 1;
/// Number of spins between two yields.
const SPINS: u32 = 1 << 10;

/// Creates a closed gate and returns its two ends.
#[must_use]
pub fn gate<T: Copy>() -> (Opener<T>, Entrance<T>) {
    let gate = Arc::new(Gate {
        state: AtomicU64::new(0),
        shown: UnsafeCell::new(None),
    });
    (Opener(Arc::clone(&gate)), Entrance(gate))
}

/// The end that opens the gate; there is one.
#[derive(Debug)]
pub struct Opener<T: Copy>(Arc<Gate<T>>);

/// The end of the threads that enter.
#[derive(Debug)]
pub struct Entrance<T: Copy>(Arc<Gate<T>>);

/// The open gate. Dropping it closes the gate and waits until no thread is inside.
#[derive(Debug)]
pub struct Opened<'a, T: Copy>(&'a Gate<T>);

/// Proof that a thread is inside, until it is dropped.
#[derive(Debug)]
pub struct Inside<'a, T: Copy> {
    gate: &'a Gate<T>,
    shown: T,
}

struct Gate<T> {
    state: AtomicU64,
    shown: UnsafeCell<Option<T>>,
}

// SAFETY: only the one opener writes `shown`, while the gate is closed and no thread is
// inside. Threads read it only inside: they enter with an acquiring exchange after the
// releasing store that opened the gate, and leave with a releasing subtraction before the
// gate is closed.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}
// SAFETY: it owns the value that it shows.
unsafe impl<T: Send> Send for Gate<T> {}

impl<T: Copy> Opener<T> {
    /// Opens the gate and publishes `value` to threads that enter in time.
    ///
    /// The opener must wake workers that are [parked](super::parking).
    pub fn open(&mut self, value: T) -> Opened<'_, T> {
        let gate = &*self.0;
        // An `Opened` that was leaked with `mem::forget` is still open.
        gate.close();
        // SAFETY: this is the one opener, the gate is closed and no thread is inside.
        gate.shown.with_mut(|shown| unsafe { *shown = Some(value) });
        let times = gate.state.load(Ordering::Relaxed) & !LOW;
        let opened = times.wrapping_add(LOW + 1) | OPEN;
        let order = ordering(
            InjectedBug::GateOpenRelease,
            Ordering::Release,
            Ordering::Relaxed,
        );
        gate.state.store(opened, order);
        Opened(gate)
    }
}

impl<T: Copy> Entrance<T> {
    /// Returns the number of this opening, if the gate is open and the number differs from
    /// `seen`. This orders no memory; `enter` does.
    #[must_use]
    pub fn number(&self, seen: u64) -> Option<u64> {
        let state = self.0.state.load(Ordering::Relaxed);
        let number = state & !LOW;
        (number != seen && state & OPEN != 0).then_some(number)
    }

    /// Enters the gate at this opening. Returns `None` if the opening has ended.
    #[must_use]
    pub fn enter(&self, number: u64) -> Option<Inside<'_, T>> {
        let gate = &*self.0;
        let mut state = gate.state.load(Ordering::Relaxed);
        loop {
            if state & !LOW != number || state & OPEN == 0 {
                return None;
            }
            if injected(InjectedBug::GateInTwoSteps) {
                // Checks and enters in two steps.
                gate.state.fetch_add(ONE, Ordering::Acquire);
                break;
            }
            let order = ordering(
                InjectedBug::GateEnterAcquire,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            let failed = Ordering::Relaxed;
            match gate
                .state
                .compare_exchange_weak(state, state + ONE, order, failed)
            {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        // SAFETY: no thread writes it while one is inside the gate.
        let shown = gate.shown.with(|shown| unsafe { *shown });
        let shown = shown.expect("an open gate holds a value");
        Some(Inside { gate, shown })
    }
}

impl<T: Copy> Clone for Entrance<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Copy> Inside<'_, T> {
    /// Returns the published value.
    #[must_use]
    pub fn shown(&self) -> T {
        self.shown
    }
}

impl<T> Gate<T> {
    /// Closes the gate and waits until no thread is inside.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut waited = 0_u32;
        let order = ordering(
            InjectedBug::GateCloseAcquire,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        while self.state.load(order) & LOW != 0 {
            waited += 1;
            if waited.is_multiple_of(SPINS) {
                yield_now();
            }
            spin_loop();
        }
    }
}

impl<T: Copy> Drop for Opened<'_, T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T: Copy> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        let order = ordering(
            InjectedBug::GateLeaveRelease,
            Ordering::Release,
            Ordering::Relaxed,
        );
        self.gate.state.fetch_sub(ONE, order);
    }
}

impl<T> fmt::Debug for Gate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        f.debug_struct("Gate")
            .field("is_open", &(state & OPEN != 0))
            .field("inside", &(state & (OPEN - 1)))
            .finish_non_exhaustive()
    }
}
