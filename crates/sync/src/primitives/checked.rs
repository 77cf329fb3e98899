//! The mutex of model checks: loom's, around a value that loom watches too.
//!
//! No code weakens the ordering of a lock, but a model that would not notice it
//! proves little about the guarded state. With [`InjectedBug::LockOrdersNothing`] injected, the
//! lock excludes other threads but orders no memory.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::LockResult;

use loom::cell::{MutPtr, UnsafeCell};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::yield_now;

use super::inject::{InjectedBug, injected};

/// A mutex with the interface of std's.
pub struct Mutex<T> {
    lock: loom::sync::Mutex<()>,
    /// The lock with the bug injected: set while a thread holds it.
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

/// The guard: a thread holds the lock until it is dropped.
pub struct MutexGuard<'a, T> {
    // Dropped first: loom must see the access end while the lock is held.
    value: MutPtr<T>,
    _held: Held<'a>,
}

enum Held<'a> {
    Lock {
        _guard: loom::sync::MutexGuard<'a, ()>,
    },
    Taken(&'a AtomicBool),
}

// SAFETY: the value is accessed only through the guard, and there is one guard at a time; loom
// detects violations.
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
        // SAFETY: the holder of the lock is the only one, as loom has checked.
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
