//! The tiers below the device: stores for the bytes of sealed segments.
//!
//! A *copy* is the state of one sealed segment outside the device. It never changes. A
//! [`Label`] describes the tokens whose state it holds; the [`Tier`] that stores it knows it by
//! its [`CopyId`]. A tier decides nothing: the pager frees memory and chooses the tier of each
//! copy.
//!
//! | file | contents |
//! |---|---|
//! | `buffer.rs` | memory for copies: page-aligned, pooled, returned to the system |
//! | `host.rs` | copies in host memory |
//! | [`disk`] | copies in a folder, found again after a restart |
//! | `checksum.rs` | detects damage |
//! | [`precision`] | quantisation to eight bits for each number |
//! | `error.rs` | errors of tiers |
//!
//! The copy workers call tiers, one operation after another; each operation returns when it has
//! finished.

mod buffer;
mod checksum;
pub mod disk;
mod error;
mod host;
pub mod precision;

use std::fmt;
use std::sync::Arc;

use motet_protocol::CopyId;

pub use buffer::{Buffer, BufferPool, PoolStats};
pub use disk::{DiskLimits, DiskTier, Recovered};
pub use error::TierError;
pub use host::HostTier;
use motet_core::pager::Label;

/// A store for copies.
pub trait Tier: fmt::Debug + Send {
    /// Stores `bytes`. Nothing happens if the copy is stored already. A failed call leaves
    /// nothing behind.
    ///
    /// # Errors
    ///
    /// [`TierError::OutOfSpace`] if the tier's budget does not allow it; any error of the disk.
    ///
    /// # Panics
    ///
    /// If the label names another number of bytes.
    fn store(&mut self, copy: CopyId, label: &Label, bytes: &Arc<Buffer>) -> Result<(), TierError>;

    /// Returns the copy's bytes, exactly as they were stored.
    ///
    /// # Errors
    ///
    /// [`TierError::Unknown`] if the tier does not have the copy. [`TierError::Damaged`],
    /// [`TierError::OtherModel`] or [`TierError::OtherFormat`] if the stored bytes are not
    /// those of the copy: they are then removed. Any error of the disk: the copy then stays.
    fn load(&mut self, copy: CopyId, label: &Label) -> Result<Arc<Buffer>, TierError>;

    /// Removes a copy. A copy that does not exist is no error.
    ///
    /// # Errors
    ///
    /// If its bytes could not be freed. The copy is removed nevertheless, and the tier tries
    /// again at the next [`store`](Tier::store).
    fn remove(&mut self, copy: CopyId) -> Result<(), TierError>;

    /// Returns the bytes of the tier's budget that are in use: those of each copy by the tier's
    /// `bytes_taken`, and those that could not be freed.
    fn used_bytes(&self) -> usize;
}
