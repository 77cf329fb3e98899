//! Memory for cached state: blocks of a page pool, and the peak of what is in use.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use motet_sync::page_pool::{IdleLimits, PageBlock, PagePool, PageSize};

/// Most idle blocks, each of which is a mapping of the process.
const IDLE_BLOCKS_MAX: usize = 256;
/// An idle block may exceed the requested size by at most one part in this many.
const SLACK_PARTS: usize = 8;

/// A handle to the pool, usable from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pages: PagePool,
    /// The peak of the device's used bytes at times when the pool had some in use.
    peak_bytes: Arc<AtomicUsize>,
}

impl Pool {
    /// A pool that keeps up to `idle_bytes_max` bytes of unused memory.
    pub(crate) fn new(idle_bytes_max: usize) -> Self {
        let limits = IdleLimits {
            bytes_max: idle_bytes_max,
            blocks_max: IDLE_BLOCKS_MAX,
        };
        Self {
            pages: PagePool::new(limits, Instant::now),
            peak_bytes: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// At least `bytes` bytes with arbitrary contents.
    ///
    /// # Errors
    ///
    /// When the system has no memory.
    pub(crate) fn take(&self, bytes: usize, pages: PageSize) -> io::Result<PageBlock> {
        self.pages.take(bytes..=bytes + bytes / SLACK_PARTS, pages)
    }

    /// Returns all unused memory to the system.
    pub(crate) fn trim(&self) {
        self.pages.trim(Duration::ZERO);
    }

    /// Bytes of all blocks that are not dropped yet.
    pub(crate) fn in_use_bytes(&self) -> usize {
        self.pages.stats().in_use_bytes
    }

    /// Records that `others` bytes of the device are in use besides the pool's. Returns the
    /// peak of both together over all times when the pool had some in use.
    pub(crate) fn peak_bytes_beside(&self, others: usize) -> usize {
        let in_use_bytes = self.in_use_bytes();
        let now = if in_use_bytes > 0 {
            in_use_bytes + others
        } else {
            0
        };
        self.peak_bytes.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_block_that_is_an_eighth_larger_is_reused() {
        let pool = Pool::new(1 << 20);
        let take = |bytes| pool.take(bytes, PageSize::Large).expect("memory");
        let start = take(90_000).as_ptr();
        assert_eq!(take(80_000).as_ptr(), start);
        assert_eq!(take(79_000).len(), 79_000);
    }

    #[test]
    fn trimming_leaves_no_idle_memory() {
        let pool = Pool::new(1 << 20);
        drop(pool.take(90_000, PageSize::Large).expect("memory"));
        assert_ne!(pool.pages.stats().idle_bytes, 0);
        pool.trim();
        assert_eq!(pool.pages.stats().idle_bytes, 0);
    }

    #[test]
    fn peak_counts_pool_and_device_together() {
        let pool = Pool::new(0);
        assert_eq!(pool.peak_bytes_beside(1000), 0);
        let block = pool.take(100, PageSize::Large).expect("memory");
        assert_eq!(pool.peak_bytes_beside(50), 150);
        drop(block);
        assert_eq!(pool.peak_bytes_beside(1000), 150);
    }
}
