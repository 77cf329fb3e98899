//! The only door to shared memory: std in the product, loom in model checks.
//!
//! Every primitive that more than one thread touches (see [`crate::shared`]) is
//! written over these names, so that `--cfg motet_loom` swaps the whole world
//! beneath it and loom can try every interleaving. No other file knows that loom
//! exists.

#[cfg(not(motet_loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(motet_loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
};
