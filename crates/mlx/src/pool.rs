//! Memory for cached state that is reused without page faults.
//!
//! Touching a page for the first time costs a process several times as much as a copy into it.
//! The memory that a segment or a tail frees is therefore kept for the next one, up to a bound.
//! The rest goes back to the system at once.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::MmapMut;

/// Maximum idle blocks that a search looks at.
const IDLE_BLOCKS_MAX: usize = 256;
/// An idle block may exceed the requested size by at most one part in this many.
const SLACK_PARTS: usize = 8;
/// Alignment of sizes: the system's page size divides this.
const PAGE_BYTES: usize = 64 << 10;

/// A handle to the pool, usable from any thread.
#[derive(Clone, Debug)]
pub(super) struct Pool(Arc<Mutex<Inner>>);

/// Page-aligned memory that returns to its pool when it is dropped.
#[derive(Debug)]
pub(super) struct Block {
    /// Always `Some` until the block is dropped.
    memory: Option<MmapMut>,
    /// Bytes of it that were not given back.
    used_bytes: AtomicUsize,
    pool: Pool,
}

/// The page size to ask the system for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// Large pages, where the system has them, for memory that is filled at once.
    Large,
    /// Small pages, each provided when it is first written to, for memory that is filled
    /// gradually or perhaps never.
    Small,
}

#[derive(Debug, Default)]
struct Inner {
    /// Oldest first.
    idle: VecDeque<MmapMut>,
    idle_bytes: usize,
    idle_bytes_max: usize,
    in_use_bytes: usize,
    /// The peak of the device's used bytes at times when the pool had some in use.
    peak_bytes: usize,
}

impl Pool {
    /// A pool that keeps up to `idle_bytes_max` bytes of unused memory.
    pub(super) fn new(idle_bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            idle_bytes_max,
            ..Inner::default()
        })))
    }

    /// At least `bytes` bytes with arbitrary contents.
    ///
    /// # Errors
    ///
    /// When the system has no memory.
    pub(super) fn take(&self, bytes: usize, pages: Pages) -> io::Result<Block> {
        let idle = self.inner().take(bytes);
        let memory = match idle {
            Some(memory) => memory,
            None => fresh(bytes, pages)?,
        };
        self.inner().in_use_bytes += memory.len();
        Ok(Block {
            used_bytes: AtomicUsize::new(memory.len()),
            memory: Some(memory),
            pool: self.clone(),
        })
    }

    /// Bytes of all blocks that are not dropped yet.
    pub(super) fn in_use_bytes(&self) -> usize {
        self.inner().in_use_bytes
    }

    /// Records that `others` bytes of the device are in use besides the pool's. Returns the
    /// peak of both together over all times when the pool had some in use.
    pub(super) fn peak_bytes_beside(&self, others: usize) -> usize {
        let mut inner = self.inner();
        if inner.in_use_bytes > 0 {
            inner.peak_bytes = inner.peak_bytes.max(inner.in_use_bytes + others);
        }
        inner.peak_bytes
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No code panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The smallest idle block that fits.
    fn take(&mut self, bytes: usize) -> Option<MmapMut> {
        let fitting = bytes..=bytes + bytes / SLACK_PARTS;
        let blocks = self.idle.iter().map(|block| block.len()).enumerate();
        let fitting = blocks.filter(|(_, length)| fitting.contains(length));
        let (index, length) = fitting.min_by_key(|(_, length)| *length)?;
        self.idle_bytes -= length;
        self.idle.remove(index)
    }

    /// Keeps a block, and returns the idle blocks that exceed the bound.
    fn put(&mut self, memory: MmapMut) -> Vec<MmapMut> {
        if memory.len() > self.idle_bytes_max {
            return vec![memory];
        }
        self.idle_bytes += memory.len();
        self.idle.push_back(memory);
        let mut surplus = Vec::new();
        while self.idle_bytes > self.idle_bytes_max || self.idle.len() > IDLE_BLOCKS_MAX {
            let oldest = self
                .idle
                .pop_front()
                .expect("idle bytes above the bound need a block");
            self.idle_bytes -= oldest.len();
            surplus.push(oldest);
        }
        surplus
    }
}

impl Block {
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().expect("not dropped yet")
    }

    /// Returns the memory after the first `bytes` bytes to the system.
    ///
    /// # Safety
    ///
    /// Nothing uses that memory any more.
    pub(super) unsafe fn give_back_after(&self, bytes: usize) {
        let memory = self.memory.as_ref().expect("not dropped yet");
        let from = bytes.next_multiple_of(PAGE_BYTES);
        #[cfg(unix)]
        if from < memory.len() {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the caller's promise. Later reads return the system's zeros until the
            // memory is written. If the system does not support the call, the memory stays.
            unsafe { memory.unchecked_advise_range(advice, from, memory.len() - from) }.ok();
        }
        let left = from.min(memory.len());
        let before = self.used_bytes.fetch_min(left, Ordering::Relaxed);
        self.pool.inner().in_use_bytes -= before.saturating_sub(left);
    }

    /// Address of the first byte.
    pub(super) fn start(&mut self) -> NonNull<u8> {
        NonNull::from(self.bytes_mut()).cast()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let memory = self.memory.take().expect("dropped once");
        let mut inner = self.pool.inner();
        inner.in_use_bytes -= *self.used_bytes.get_mut();
        let surplus = inner.put(memory);
        drop(inner);
        // Freeing takes time in the system, so the pool is not locked meanwhile.
        drop(surplus);
    }
}

fn fresh(bytes: usize, pages: Pages) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes.max(1))?;
    // The hints may fail; then access is only slower.
    #[cfg(target_os = "linux")]
    {
        let advice = match pages {
            Pages::Large => memmap2::Advice::HugePage,
            Pages::Small => memmap2::Advice::NoHugePage,
        };
        memory.advise(advice).ok();
    }
    #[cfg(not(target_os = "linux"))]
    let _ = pages;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn dropped_block_is_reused_where_it_fits() {
        let pool = Pool::new(64 * MIB);
        let mut block = pool.take(8 * MIB, Pages::Large).expect("memory");
        block.bytes_mut()[5] = 77;
        let start = block.start();
        assert_eq!(pool.in_use_bytes(), 8 * MIB);
        drop(block);
        assert_eq!(pool.in_use_bytes(), 0);
        let check = |bytes, serves| {
            let mut block = pool.take(bytes, Pages::Large).expect("memory");
            assert_eq!(block.start() == start, serves, "{bytes} bytes");
            assert!(block.bytes_mut().len() >= bytes);
            assert_eq!(block.bytes_mut()[5] == 77, serves, "{bytes} bytes");
        };
        check(8 * MIB, true);
        check(8 * MIB - 5, true);
        check(8 * MIB / 9 * 8 + 8, true);
        check(8 * MIB + 1, false);
        check(7 * MIB, false);
    }

    #[test]
    fn returned_memory_is_not_in_use() {
        let pool = Pool::new(64 * MIB);
        let mut block = pool.take(8 * MIB, Pages::Large).expect("memory");
        block.bytes_mut().fill(77);
        // SAFETY: nothing uses that memory.
        unsafe { block.give_back_after(3 * MIB - 5) };
        assert_eq!(pool.in_use_bytes(), 3 * MIB);
        assert_eq!(block.bytes_mut()[3 * MIB - 6], 77);
        assert_eq!(
            block.bytes_mut()[3 * MIB],
            0,
            "returned memory reads as zeros"
        );
        // SAFETY: as above.
        unsafe { block.give_back_after(9 * MIB) };
        assert_eq!(pool.in_use_bytes(), 3 * MIB);
        drop(block);
        assert_eq!(pool.in_use_bytes(), 0);
        let whole = pool.take(8 * MIB, Pages::Large).expect("memory");
        assert_eq!(pool.in_use_bytes(), 8 * MIB);
        drop(whole);
    }

    #[test]
    fn idle_blocks_stay_within_their_bound() {
        let pool = Pool::new(4 * MIB);
        let idle = || {
            let inner = pool.inner();
            (inner.idle.len(), inner.idle_bytes)
        };
        drop(pool.take(5 * MIB, Pages::Large).expect("memory"));
        assert_eq!(idle(), (0, 0));
        let blocks: Vec<Block> = (0..6)
            .map(|_| pool.take(MIB, Pages::Large).expect("memory"))
            .collect();
        drop(blocks);
        assert_eq!(idle(), (4, 4 * MIB));
        drop(pool.take(3 * MIB, Pages::Large).expect("memory"));
        assert_eq!(idle(), (2, 4 * MIB));
        let small: Vec<Block> = (0..300)
            .map(|_| pool.take(1, Pages::Large).expect("memory"))
            .collect();
        drop(small);
        assert_eq!(idle().0, IDLE_BLOCKS_MAX);
        assert_eq!(pool.in_use_bytes(), 0);
    }

    #[test]
    fn peak_counts_pool_and_device_together() {
        let pool = Pool::new(0);
        assert_eq!(pool.peak_bytes_beside(1000), 0);
        let block = pool.take(100, Pages::Large).expect("memory");
        assert_eq!(pool.peak_bytes_beside(50), 150);
        drop(block);
        assert_eq!(pool.peak_bytes_beside(1000), 150);
    }
}
