//! A value that one thread shows to others for a while, which may look at it if they come in
//! time.
//!
//! Whoever shows it never waits for those who have not come: the gate is closed without them,
//! and they find it closed. It waits for those inside only. One word counts both the times
//! that the gate was opened and those inside, so that each comes in once a time.

use std::fmt;

use crate::primitives::plant::{Plant, ordering, planted};
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
        word: AtomicU64::new(0),
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
    word: AtomicU64,
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
        let times = gate.word.load(Ordering::Relaxed) & !LOW;
        let opened = times.wrapping_add(LOW + 1) | OPEN;
        let order = ordering(Plant::GateOpenRelease, Ordering::Release, Ordering::Relaxed);
        gate.word.store(opened, order);
        Opened(gate)
    }
}

impl<T: Copy> Entrance<T> {
    /// The number of this time, if the gate is open and it is another than `seen`. It orders
    /// nothing: coming in does.
    #[must_use]
    pub fn number(&self, seen: u64) -> Option<u64> {
        let word = self.0.word.load(Ordering::Relaxed);
        let number = word & !LOW;
        (number != seen && word & OPEN != 0).then_some(number)
    }

    /// Comes in at this time, unless it is over.
    #[must_use]
    pub fn enter(&self, number: u64) -> Option<Inside<'_, T>> {
        let gate = &*self.0;
        let mut word = gate.word.load(Ordering::Relaxed);
        loop {
            if word & !LOW != number || word & OPEN == 0 {
                return None;
            }
            if planted(Plant::GateInTwoSteps) {
                // Looks, and then goes in, in two steps.
                gate.word.fetch_add(ONE, Ordering::Acquire);
                break;
            }
            let order = ordering(
                Plant::GateEnterAcquire,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            let failed = Ordering::Relaxed;
            match gate
                .word
                .compare_exchange_weak(word, word + ONE, order, failed)
            {
                Ok(_) => break,
                Err(now) => word = now,
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
        self.word.fetch_and(!OPEN, Ordering::Relaxed);
        let mut waited = 0_u32;
        let order = ordering(
            Plant::GateCloseAcquire,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        while self.word.load(order) & LOW != 0 {
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
            Plant::GateLeaveRelease,
            Ordering::Release,
            Ordering::Relaxed,
        );
        self.gate.word.fetch_sub(ONE, order);
    }
}

impl<T> fmt::Debug for Gate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        f.debug_struct("Gate")
            .field("is_open", &(word & OPEN != 0))
            .field("inside", &(word & (OPEN - 1)))
            .finish_non_exhaustive()
    }
}
