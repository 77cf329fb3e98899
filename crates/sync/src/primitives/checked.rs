//! The mutex of model checks: loom's, around a value that loom watches as well.
//!
//! Nobody weakens the ordering of a lock, but a model that would not notice that proves
//! little about what the lock guards. With [`InjectedBug::LockOrdersNothing`] planted, whoever has
//! the lock is alone, and sees what those before it did only by chance.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::LockResult;

use loom::cell::{MutPtr, UnsafeCell};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::yield_now;

use super::inject::{InjectedBug, injected};

/// A mutex, as std's is used.
pub struct Mutex<T> {
    lock: loom::sync::Mutex<()>,
    /// The lock of one that is planted: set while somebody has it.
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

/// Somebody has the lock, until this is dropped.
pub struct MutexGuard<'a, T> {
    // Dropped first: loom is told that the access is over while the lock is held.
    value: MutPtr<T>,
    _held: Held<'a>,
}

enum Held<'a> {
    Lock {
        _guard: loom::sync::MutexGuard<'a, ()>,
    },
    Taken(&'a AtomicBool),
}

// SAFETY: the value is reached through the guard only, and there is one guard at a time;
// loom notices where that is not so.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self {
            lock: loom::sync::Mutex::new(()),
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let held = if injected(InjectedBug::LockOrdersNothing) {
            while self.taken.swap(true, Ordering::Relaxed) {
                yield_now();
            }
            Held::Taken(&self.taken)
        } else {
            let guard = self.lock.lock().expect("loom's locks are never poisoned");
            Held::Lock { _guard: guard }
        };
        Ok(MutexGuard {
            value: self.value.get_mut(),
            _held: held,
        })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: whoever has the lock is alone, as loom has checked.
        unsafe { self.value.deref() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.value.deref() }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Self::Taken(taken) = self {
            taken.store(false, Ordering::Relaxed);
        }
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}
