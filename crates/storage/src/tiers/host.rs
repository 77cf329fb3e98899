//! Copies in host memory.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Buffer, BufferPool, Tier, TierError};
use motet_core::pager::Label;
use motet_protocol::CopyId;

/// The host tier: buffers, shared with threads that read them.
///
/// A copy that is removed while a thread reads it takes memory until then. The pool counts it
/// ([`PoolStats::in_use_bytes`](super::PoolStats)), the tier does not.
#[derive(Debug)]
pub struct HostTier {
    copies: FxHashMap<CopyId, Arc<Buffer>>,
    used_bytes: usize,
    bytes_max: usize,
}

impl HostTier {
    /// Creates an empty tier that takes at most `bytes_max` bytes of memory.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            copies: FxHashMap::default(),
            used_bytes: 0,
            bytes_max,
        }
    }

    /// Returns the bytes of the budget that a copy of `bytes` bytes takes.
    #[must_use]
    pub fn bytes_taken(bytes: usize) -> usize {
        BufferPool::capacity_bytes(bytes)
    }
}

impl Tier for HostTier {
    fn store(&mut self, copy: CopyId, label: &Label, bytes: &Arc<Buffer>) -> Result<(), TierError> {
        assert_eq!(
            bytes.len(),
            label.bytes,
            "the label names another number of bytes"
        );
        if self.copies.contains_key(&copy) {
            return Ok(());
        }
        let needed = bytes.capacity();
        if needed > self.bytes_max.saturating_sub(self.used_bytes) {
            return Err(TierError::OutOfSpace {
                tier: "the host tier",
                bytes: needed,
                used_bytes: self.used_bytes,
                bytes_max: self.bytes_max,
            });
        }
        self.used_bytes += needed;
        self.copies.insert(copy, Arc::clone(bytes));
        Ok(())
    }

    fn load(&mut self, copy: CopyId, _: &Label) -> Result<Arc<Buffer>, TierError> {
        let bytes = self.copies.get(&copy);
        bytes.map(Arc::clone).ok_or(TierError::Unknown(copy))
    }

    fn remove(&mut self, copy: CopyId) -> Result<(), TierError> {
        if let Some(bytes) = self.copies.remove(&copy) {
            self.used_bytes -= bytes.capacity();
        }
        Ok(())
    }

    fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}
