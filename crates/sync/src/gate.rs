//! A value that one thread shows to others for a while, which may look at it if they come in
//! time.
//!
//! Whoever shows it never waits for those who have not come: the gate is closed without them,
//! and they find it closed. It waits for those inside only. One word counts both the times
//! that the gate was opened and those inside, so that each comes in once a time.

use std::fmt;

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicU64, Ordering, UnsafeCell, spin_loop, yield_now};

/// The gate is open: others may come in.
const OPEN: u64 = 1 << 31;
/// One of the others inside.
const ONE: u64 = 1;
/// Low half of the word: `OPEN`, and how many are inside. The high half counts the times.
const LOW: u64 = (1 << 32) - 1;
/// Spins between two times that the core is offered to others.
const SPINS: u32 = 1 << 10;

/// Both ends of a gate, which is closed.
#[must_use]
pub fn gate<T: Copy>() -> (Opener<T>, Entrance<T>) {
    let gate = Arc::new(Gate {
        state: AtomicU64::new(0),
        shown: UnsafeCell::new(None),
    });
    (Opener(Arc::clone(&gate)), Entrance(gate))
}

/// The end of whoever opens it: there is one.
#[derive(Debug)]
pub struct Opener<T: Copy>(Arc<Gate<T>>);

/// The end of those who come in.
#[derive(Debug)]
pub struct Entrance<T: Copy>(Arc<Gate<T>>);

/// The gate is open. Dropping this closes it, and returns when nobody is inside.
#[derive(Debug)]
pub struct Opened<'a, T: Copy>(&'a Gate<T>);

/// Somebody is inside, until this is dropped.
#[derive(Debug)]
pub struct Inside<'a, T: Copy> {
    gate: &'a Gate<T>,
    shown: T,
}

struct Gate<T> {
    state: AtomicU64,
    shown: UnsafeCell<Option<T>>,
}

// SAFETY: `shown` is written by the one opener only, while the gate is closed and nobody is
// inside; it is read inside only, by who came in with an acquiring exchange after the
// releasing store that opened the gate, and left with a releasing one before it was closed.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}
// SAFETY: it owns what it shows.
unsafe impl<T: Send> Send for Gate<T> {}

impl<T: Copy> Opener<T> {
    /// Shows `value` to whoever comes in time.
    ///
    /// A worker that [parks](super::parking) is woken by whoever opens.
    pub fn open(&mut self, value: T) -> Opened<'_, T> {
        let gate = &*self.0;
        // One that was forgotten instead of dropped is still open.
        gate.close();
        // SAFETY: this is the one opener, the gate is closed and nobody is inside.
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
    /// The number of this time, if the gate is open and it is another than `seen`. It orders
    /// nothing: coming in does.
    #[must_use]
    pub fn number(&self, seen: u64) -> Option<u64> {
        let state = self.0.state.load(Ordering::Relaxed);
        let number = state & !LOW;
        (number != seen && state & OPEN != 0).then_some(number)
    }

    /// Comes in at this time, unless it is over.
    #[must_use]
    pub fn enter(&self, number: u64) -> Option<Inside<'_, T>> {
        let gate = &*self.0;
        let mut state = gate.state.load(Ordering::Relaxed);
        loop {
            if state & !LOW != number || state & OPEN == 0 {
                return None;
            }
            if injected(InjectedBug::GateInTwoSteps) {
                // Looks, and then goes in, in two steps.
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
        // SAFETY: inside the gate nobody writes it.
        let shown = gate.shown.with(|shown| unsafe { *shown });
        let shown = shown.expect("an open gate shows something");
        Some(Inside { gate, shown })
    }
}

impl<T: Copy> Clone for Entrance<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Copy> Inside<'_, T> {
    /// What is shown.
    #[must_use]
    pub fn shown(&self) -> T {
        self.shown
    }
}

impl<T> Gate<T> {
    /// Closes it, and waits until nobody is inside.
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
