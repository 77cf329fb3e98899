//! The only door to shared memory: std in the product, loom in model checks.
//!
//! Every primitive that more than one thread touches (see [`crate`]) is
//! written over these names, so that `--cfg motet_loom` swaps the whole world
//! beneath it and loom can try every interleaving. No other file knows that loom
//! exists.
//!
//! | file | what is there |
//! |---|---|
//! | `inject.rs` | mistakes that model checks must find, each by its name |
//! | `wakeup.rs` | a channel that says that there is something, and no more |
//! | `checked.rs` | loom's world only: a mutex whose value loom watches as well |

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

/// std's, to be used as loom's is, which notices whoever reads what another writes.
#[cfg(not(motet_loom))]
#[derive(Debug)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(motet_loom))]
impl<T> UnsafeCell<T> {
    /// A cell with this value.
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
