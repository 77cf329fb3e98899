//! Memory for copies: page-aligned buffers and their pool.
//!
//! Fresh memory is slow: the system clears each page at its first use, which costs several
//! times a copy into it. Dropped buffers therefore return to a pool and are reused. Buffers are
//! mapped from the system page by page, not taken from the allocator, which might keep freed
//! memory: the memory that the pool frees leaves the process.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

use memmap2::MmapMut;
use tokio::time::Instant;

use super::TierError;
use motet_core::pager::footprint;
use motet_sync::primitives::inject::{InjectedBug, injected};
use motet_sync::primitives::{Arc, Mutex, MutexGuard};

/// From this many bytes on the system is asked for large pages, which are cleared faster.
const LARGE_BYTES: usize = 2 << 20;

/// Bytes of exactly the requested length, at the start of a page. The memory returns to its
/// pool on drop.
pub struct Buffer {
    /// `None` only during drop.
    memory: Option<MmapMut>,
    bytes: usize,
    pool: BufferPool,
}

/// A pool of buffers. Clones share one pool.
#[derive(Clone)]
pub struct BufferPool {
    state: Arc<Mutex<PoolState>>,
}

/// The memory of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Capacities of all buffers in use, in bytes.
    pub in_use_bytes: usize,
    /// Bytes of idle memory.
    pub idle_bytes: usize,
}

/// The state that the clones of a pool share.
struct PoolState {
    /// Idle buffers by capacity; the most recently returned is at the back.
    idle_buffers: BTreeMap<usize, VecDeque<IdleBuffer>>,
    stats: PoolStats,
    idle_bytes_max: usize,
}

struct IdleBuffer {
    memory: MmapMut,
    since: Instant,
}

impl BufferPool {
    /// Creates a pool that holds at most `idle_bytes_max` idle bytes. A few times the largest
    /// copy is enough: for copies in transit and those just dropped.
    #[must_use]
    pub fn new(idle_bytes_max: usize) -> Self {
        let state = PoolState {
            idle_buffers: BTreeMap::new(),
            stats: PoolStats::default(),
            idle_bytes_max,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
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
        let idle_buffer = self.state().take(capacity);
        let memory = idle_buffer.map_or_else(|| map_fresh(capacity), Ok);
        let memory = memory.map_err(|source| {
            self.state().stats.in_use_bytes -= capacity;
            TierError::NoMemory { bytes, source }
        })?;
        Ok(Buffer {
            memory: Some(memory),
            bytes,
            pool: self.clone(),
        })
    }

    /// Returns memory to the system that has been idle for `idle`.
    pub fn trim(&self, idle: Duration) {
        let now = Instant::now();
        let freed = self.state().trim(|since| now - since >= idle);
        drop(freed);
    }

    /// Returns the current memory of the pool.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.state().stats
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        // Poisoning is ignored: buffers are dropped during unwinding, where another panic would
        // abort. A panic under this lock can at most leave a wrong sum.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Counts a buffer of this capacity as in use, and returns an idle one if there is one.
    fn take(&mut self, capacity: usize) -> Option<MmapMut> {
        self.stats.in_use_bytes += capacity;
        let alike = self.idle_buffers.get_mut(&capacity)?;
        let idle_buffer = alike.pop_back()?;
        self.stats.idle_bytes -= capacity;
        Some(idle_buffer.memory)
    }

    /// Takes memory back, and returns the memory that exceeds the limit. The caller frees it
    /// after the lock is released, since freeing takes the system a while.
    fn put(&mut self, memory: MmapMut) -> Vec<MmapMut> {
        let capacity = memory.len();
        if !injected(InjectedBug::BufferTwoLocks) {
            self.stats.in_use_bytes -= capacity;
        }
        if capacity > self.idle_bytes_max {
            return vec![memory];
        }
        self.stats.idle_bytes += capacity;
        self.idle_buffers
            .entry(capacity)
            .or_default()
            .push_back(IdleBuffer {
                memory,
                since: Instant::now(),
            });
        let mut freed = Vec::new();
        while self.stats.idle_bytes > self.idle_bytes_max {
            let oldest = self.idle_buffers.values().filter_map(VecDeque::front);
            let since = oldest.map(|idle_buffer| idle_buffer.since).min();
            let since = since.expect("idle bytes belong to an idle buffer");
            freed.extend(self.trim(|other| other == since));
        }
        freed
    }

    /// Removes idle buffers while `may_go` holds for the oldest of their capacity.
    fn trim(&mut self, may_go: impl Fn(Instant) -> bool) -> Vec<MmapMut> {
        let mut freed = Vec::new();
        self.idle_buffers.retain(|capacity, alike| {
            while let Some(idle_buffer) =
                alike.pop_front_if(|idle_buffer| may_go(idle_buffer.since))
            {
                self.stats.idle_bytes -= capacity;
                freed.push(idle_buffer.memory);
            }
            !alike.is_empty()
        });
        freed
    }
}

impl Buffer {
    /// Returns the bytes of memory that it takes, more than its length.
    #[must_use]
    pub fn capacity(&self) -> usize {
        BufferPool::capacity_bytes(self.bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let memory = self.memory.as_ref();
        &memory.expect("the memory is taken only by drop")[..self.bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let memory = self.memory.as_mut();
        &mut memory.expect("the memory is taken only by drop")[..self.bytes]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = self
            .memory
            .take()
            .expect("the memory is taken only by drop");
        if injected(InjectedBug::BufferTwoLocks) {
            // Counts under two locks: a buffer taken in between is not counted.
            let in_use_bytes = self.pool.state().stats.in_use_bytes;
            self.pool.state().stats.in_use_bytes = in_use_bytes - memory.len();
        }
        let freed = self.pool.state().put(memory);
        drop(freed);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufferPool").field(&self.stats()).finish()
    }
}

fn map_fresh(capacity: usize) -> std::io::Result<MmapMut> {
    let memory = MmapMut::map_anon(capacity)?;
    #[cfg(target_os = "linux")]
    if capacity >= LARGE_BYTES {
        // Only a hint: systems without large pages reject it, and the mapping works all the
        // same.
        memory.advise(memmap2::Advice::HugePage).ok();
    }
    Ok(memory)
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
