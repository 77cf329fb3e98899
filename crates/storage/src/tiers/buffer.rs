//! Memory for copies: buffers of exact lengths in blocks of a page pool.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use motet_core::pager::footprint;
use motet_sync::page_pool::{IdleLimits, PageBlock, PagePool, PageSize};

use super::TierError;

pub use motet_sync::page_pool::PoolStats;

/// From this many bytes on the system is asked for large pages.
const LARGE_BYTES: usize = 2 << 20;

/// Bytes of exactly the requested length, at the start of a page. The memory returns to its
/// pool on drop.
pub struct Buffer {
    block: PageBlock,
    bytes: usize,
}

/// A pool of buffers. Clones share one pool.
#[derive(Clone, Debug)]
pub struct BufferPool(PagePool);

impl BufferPool {
    /// Creates a pool that holds at most `idle_bytes_max` idle bytes. A few times the largest
    /// copy is enough: for copies in transit and those just dropped.
    #[must_use]
    pub fn new(idle_bytes_max: usize) -> Self {
        let limits = IdleLimits {
            bytes_max: idle_bytes_max,
            blocks_max: usize::MAX,
        };
        // tokio's clock stands still where a test pauses it.
        let clock = || tokio::time::Instant::now().into_std();
        Self(PagePool::new(limits, clock))
    }

    /// Returns the memory that a buffer of `bytes` bytes takes: at least a page, and at most an
    /// eighth more than needed. Few different sizes exist, so most requests find an idle
    /// buffer.
    #[must_use]
    pub fn capacity_bytes(bytes: usize) -> usize {
        footprint::host_bytes(bytes)
    }

    /// Returns a buffer of `bytes` bytes. Its content is arbitrary: the caller must write all
    /// of it.
    ///
    /// # Errors
    ///
    /// [`TierError::NoMemory`] if the system has no memory.
    pub fn take(&self, bytes: usize) -> Result<Buffer, TierError> {
        let capacity = Self::capacity_bytes(bytes);
        let pages = if capacity >= LARGE_BYTES {
            PageSize::Large
        } else {
            PageSize::Default
        };
        let block = self.0.take(capacity..=capacity, pages);
        let block = block.map_err(|source| TierError::NoMemory { bytes, source })?;
        Ok(Buffer { block, bytes })
    }

    /// Returns memory to the system that has been idle for `idle`.
    pub fn trim(&self, idle: Duration) {
        self.0.trim(idle);
    }

    /// Returns the current memory of the pool.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.0.stats()
    }
}

impl Buffer {
    /// Returns the bytes of memory that it takes, more than its length.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.block.len()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block[..self.bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.block[..self.bytes]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use motet_core::pager::footprint::PAGE_BYTES;

    use super::*;

    #[test]
    fn capacities_are_few_and_close_to_the_request() {
        let mut distinct = std::collections::BTreeSet::new();
        for bytes in (0..1 << 22).step_by(1021) {
            let capacity = BufferPool::capacity_bytes(bytes);
            distinct.insert(capacity);
            assert_eq!(capacity % PAGE_BYTES, 0);
            let surplus = capacity
                .checked_sub(bytes)
                .expect("a capacity is at least the request");
            assert!(surplus <= PAGE_BYTES + bytes / 8, "{bytes}: {capacity}");
        }
        assert!(distinct.len() < 8 * 11, "{}", distinct.len());
    }

    #[test]
    fn buffers_have_the_requested_length_and_alignment() {
        let pool = BufferPool::new(0);
        for bytes in [0, 1, 4095, 4096, 4097, 1_000_000] {
            let buffer = pool.take(bytes).unwrap();
            assert_eq!(buffer.len(), bytes);
            assert_eq!(buffer.as_ptr().align_offset(64), 0);
            assert_eq!(pool.stats().in_use_bytes, buffer.capacity());
        }
        assert_eq!(pool.stats(), PoolStats::default());
    }

    #[test]
    fn freed_memory_is_reused() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(10_000).unwrap();
        buffer.fill(7);
        let at = buffer.as_ptr();
        drop(buffer);
        assert_eq!(pool.stats().idle_bytes, 12_288);

        let other_size = pool.take(1).unwrap();
        let again = pool.take(9_000).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (at, 9_000));
        assert!(
            again.iter().all(|byte| *byte == 7),
            "reused memory is not cleared"
        );
        drop((other_size, again));
        assert_eq!(pool.stats().in_use_bytes, 0);
    }

    #[test]
    fn idle_buffers_are_bounded_and_the_oldest_are_freed_first() {
        let pool = BufferPool::new(4 * PAGE_BYTES);
        let buffers: Vec<_> = (1..=3).map(|n| pool.take(n * PAGE_BYTES)).collect();
        // The buffer of three pages returns last and displaces the others.
        for buffer in buffers {
            drop(buffer.unwrap());
        }
        assert_eq!(pool.stats().idle_bytes, 3 * PAGE_BYTES);
        drop(pool.take(PAGE_BYTES).unwrap());
        assert_eq!(pool.stats().idle_bytes, 4 * PAGE_BYTES);
        drop(pool.take(5 * PAGE_BYTES).unwrap());
        assert_eq!(
            pool.stats().idle_bytes,
            4 * PAGE_BYTES,
            "a buffer above the limit is freed"
        );
    }

    #[test]
    fn trimming_frees_idle_buffers() {
        let pool = BufferPool::new(1 << 20);
        drop(pool.take(10_000).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        let (second, third) = (pool.take(5_000).unwrap(), pool.take(10_000).unwrap());
        drop((second, third));
        pool.trim(Duration::from_secs(60));
        assert_eq!(pool.stats().idle_bytes, 8_192 + 12_288);
        drop(pool.take(100_000).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        drop(pool.take(10_000).unwrap());
        pool.trim(Duration::from_millis(20));
        assert_eq!(pool.stats().idle_bytes, 12_288);
        pool.trim(Duration::ZERO);
        assert_eq!(pool.stats(), PoolStats::default());
    }

    #[test]
    fn unavailable_memory_is_an_error() {
        let pool = BufferPool::new(0);
        for bytes in [usize::MAX, usize::MAX / 2, 1 << 60] {
            let rejected = pool.take(bytes);
            assert!(matches!(rejected, Err(TierError::NoMemory { .. })));
        }
        assert_eq!(pool.stats(), PoolStats::default());
    }

    #[test]
    fn buffers_may_be_dropped_anywhere() {
        let pool = BufferPool::new(1 << 20);
        std::thread::scope(|threads| {
            for thread in 0..4_u8 {
                let pool = pool.clone();
                threads.spawn(move || {
                    for round in 1..200_usize {
                        let mut buffer = pool.take(round * 37).unwrap();
                        buffer.fill(thread);
                        std::thread::yield_now();
                        assert!(buffer.iter().all(|byte| *byte == thread));
                    }
                });
            }
        });
        assert_eq!(pool.stats().in_use_bytes, 0);
        assert!(pool.stats().idle_bytes <= 1 << 20);
    }
}
