//! The only access to shared memory: std in the product, loom in model checks.
//!
//! Every primitive that more than one thread uses (see [`crate`]) is written over these names.
//! `--cfg motet_loom` replaces all of them, so that loom can try every interleaving. No other
//! file mentions loom.
//!
//! | file | contents |
//! |---|---|
//! | `inject.rs` | injected bugs that model checks must find |
//! | `wakeup.rs` | a wakeup channel without payload |
//! | `checked.rs` | model checks only: a mutex whose value loom watches too |

#[cfg(motet_loom)]
mod checked;
pub mod inject;
mod wakeup;

#[cfg(not(motet_loom))]
pub use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::{park, yield_now},
};

#[cfg(motet_loom)]
pub use checked::{Mutex, MutexGuard};
#[cfg(motet_loom)]
pub use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::{park, yield_now},
};

pub use wakeup::{WakeupReceiver, WakeupSender, wakeup};

/// std's cell with the interface of loom's, which detects unsynchronised accesses.
#[cfg(not(motet_loom))]
#[derive(Debug)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(motet_loom))]
impl<T> UnsafeCell<T> {
    /// Creates a cell with this value.
    pub fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer that may be read.
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer that may be written.
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
