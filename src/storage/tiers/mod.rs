//! The tiers below the device: where sealed segments are kept as bytes.
//!
//! A *copy* is the state of one sealed segment outside the device. It never changes. A
//! [`Label`] says of what it is the state; the [`Tier`] that keeps it knows it by its
//! [`CopyId`]. A tier decides nothing: the pager makes room, and says what goes where.
//!
//! | file | what happens there |
//! |---|---|
//! | `buffer.rs` | memory for copies: page-aligned, pooled, given back to the system |
//! | `host.rs` | copies in memory |
//! | [`disk`] | copies in a folder, found again after a restart |
//! | `checksum.rs` | how damage is noticed |
//! | [`precision`] | eight bits for a number, where that is enough |
//! | `error.rs` | what may go wrong |
//!
//! Tiers are driven by the threads that copy, one operation after another, and each
//! operation returns when it is done.

mod buffer;
mod checksum;
pub mod disk;
mod error;
mod host;
pub mod precision;

use std::fmt;
use std::sync::Arc;

use motet_core::CopyId;

pub use buffer::{Buffer, BufferPool, PoolStats};
pub use disk::{DiskLimits, DiskTier, Recovered};
pub use error::TierError;
pub use host::HostTier;
use motet_core::pager::Label;

/// A place that keeps copies.
pub trait Tier: fmt::Debug + Send {
    /// Keeps `bytes`, to which nothing is done if the copy is there already. A copy
    /// that could not be stored has left nothing behind.
    ///
    /// # Errors
    ///
    /// [`TierError::OutOfSpace`] when the tier's budget does not allow it, and whatever the
    /// disk says.
    ///
    /// # Panics
    ///
    /// When the label names another number of bytes.
    fn store(&mut self, copy: CopyId, label: &Label, bytes: &Arc<Buffer>) -> Result<(), TierError>;

    /// The copy's bytes, exactly as they were stored.
    ///
    /// # Errors
    ///
    /// [`TierError::Unknown`] when the tier does not have it. [`TierError::Damaged`], or
    /// that it is of another model or format, when what is there is not what was stored:
    /// then it is removed. Whatever the disk says: then it stays.
    fn load(&mut self, copy: CopyId, label: &Label) -> Result<Arc<Buffer>, TierError>;

    /// Forgets a copy. One that is not there is no error.
    ///
    /// # Errors
    ///
    /// When its room could not be freed. The copy is gone nevertheless, and the tier
    /// tries again at the next [`store`](Tier::store).
    fn remove(&mut self, copy: CopyId) -> Result<(), TierError>;

    /// Bytes of the tier's budget that are taken: of each copy what `bytes_taken` of
    /// its tier says, and what could not be freed.
    fn used_bytes(&self) -> usize;
}
