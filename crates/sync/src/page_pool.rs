//! Page-aligned memory that is reused without page faults.
//!
//! Fresh memory is slow: the system clears each page at its first use, which costs several times a
//! copy into it. The memory of dropped blocks is therefore kept for the next ones, up to a bound.
//! Blocks are mapped from the system page by page, not taken from the allocator, which might keep
//! freed memory: the memory that the pool frees leaves the process.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use crate::primitives::inject::{InjectedBug, injected};
use crate::primitives::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering};

/// A multiple of the page sizes of common systems.
const PAGES_BYTES: usize = 64 << 10;

/// A pool of blocks. Clones share one pool.
#[derive(Clone)]
pub struct PagePool {
    state: Arc<Mutex<State>>,
    clock: fn() -> Instant,
}

/// Page-aligned memory that returns to its pool on drop.
pub struct PageBlock {
    /// `None` only during drop.
    memory: Option<MmapMut>,
    /// Bytes of it that were not given back.
    used_bytes: AtomicUsize,
    pool: PagePool,
}

/// The most idle memory that a pool keeps.
#[derive(Clone, Copy, Debug)]
pub struct IdleLimits {
    /// Bytes of idle blocks.
    pub bytes_max: usize,
    /// Number of idle blocks.
    pub blocks_max: usize,
}

/// The page size to ask the system for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// Large pages, where the system has them, for memory that is filled at once: they are cleared
    /// faster.
    Large,
    /// Small pages, each provided when it is first written to, for memory that is filled gradually
    /// or perhaps never.
    Small,
    /// The system's choice.
    Default,
}

/// The memory of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of all blocks in use, without those that were given back.
    pub in_use_bytes: usize,
    /// Bytes of idle memory.
    pub idle_bytes: usize,
}

/// The state that the clones of a pool share.
struct State {
    /// Idle blocks by size, none of them empty; the most recently returned is at the back.
    idle: BTreeMap<usize, VecDeque<Idle>>,
    idle_blocks: usize,
    returned: u64,
    stats: PoolStats,
    limits: IdleLimits,
}

struct Idle {
    memory: MmapMut,
    since: Instant,
    /// Blocks that were returned before.
    number: u64,
}

impl PagePool {
    /// Creates a pool. `clock` tells how long a block has been idle.
    #[must_use]
    pub fn new(limits: IdleLimits, clock: fn() -> Instant) -> Self {
        let state = State {
            idle: BTreeMap::new(),
            idle_blocks: 0,
            returned: 0,
            stats: PoolStats::default(),
            limits,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            clock,
        }
    }

    /// Returns the smallest idle block of a size in `sizes`, or else a new one of the least of them.
    /// Its content is arbitrary.
    ///
    /// # Errors
    ///
    /// If the system has no memory.
    ///
    /// # Panics
    ///
    /// If `sizes` is empty.
    pub fn take(&self, sizes: RangeInclusive<usize>, pages: PageSize) -> io::Result<PageBlock> {
        let fresh_bytes = (*sizes.start()).max(1);
        let idle = self.state().take(sizes, fresh_bytes);
        let memory = idle.map_or_else(|| map_fresh(fresh_bytes, pages), Ok);
        let memory = memory.inspect_err(|_| self.state().stats.in_use_bytes -= fresh_bytes)?;
        Ok(PageBlock {
            used_bytes: AtomicUsize::new(memory.len()),
            memory: Some(memory),
            pool: self.clone(),
        })
    }

    /// Returns memory to the system that has been idle for `idle`.
    pub fn trim(&self, idle: Duration) {
        let now = (self.clock)();
        let freed = self
            .state()
            .trim(|block| now.saturating_duration_since(block.since) >= idle);
        drop(freed);
    }

    /// Returns the current memory of the pool.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.state().stats
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Poisoning is ignored: blocks are dropped during unwinding, where another panic would
        // abort. A panic under this lock can at most leave a wrong sum.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a block as in use, and returns an idle one if one fits.
    fn take(&mut self, sizes: RangeInclusive<usize>, fresh_bytes: usize) -> Option<MmapMut> {
        let found = self.idle.range_mut(sizes).next();
        let Some((&bytes, alike)) = found else {
            self.stats.in_use_bytes += fresh_bytes;
            return None;
        };
        let block = alike.pop_back().expect("no empty list is kept");
        if alike.is_empty() {
            self.idle.remove(&bytes);
        }
        self.idle_blocks -= 1;
        self.stats.idle_bytes -= bytes;
        self.stats.in_use_bytes += bytes;
        Some(block.memory)
    }

    /// Takes memory back, and returns the memory that exceeds a limit. The caller frees it after
    /// the lock is released, since freeing takes the system a while.
    fn put(&mut self, memory: MmapMut, used_bytes: usize, now: Instant) -> Vec<MmapMut> {
        let bytes = memory.len();
        if !injected(InjectedBug::BufferTwoLocks) {
            self.stats.in_use_bytes -= used_bytes;
        }
        if bytes > self.limits.bytes_max {
            return vec![memory];
        }
        self.stats.idle_bytes += bytes;
        self.idle_blocks += 1;
        self.returned += 1;
        self.idle.entry(bytes).or_default().push_back(Idle {
            memory,
            since: now,
            number: self.returned,
        });
        let mut freed = Vec::new();
        while self.stats.idle_bytes > self.limits.bytes_max
            || self.idle_blocks > self.limits.blocks_max
        {
            let oldest = self.idle.values().filter_map(VecDeque::front);
            let oldest = oldest.map(|block| block.number).min();
            let oldest = oldest.expect("idle memory belongs to an idle block");
            freed.extend(self.trim(|block| block.number == oldest));
        }
        freed
    }

    /// Removes idle blocks while `may_go` holds for the oldest of their size.
    fn trim(&mut self, may_go: impl Fn(&Idle) -> bool) -> Vec<MmapMut> {
        let mut freed = Vec::new();
        self.idle.retain(|bytes, alike| {
            while let Some(block) = alike.pop_front_if(|block| may_go(block)) {
                self.stats.idle_bytes -= bytes;
                self.idle_blocks -= 1;
                freed.push(block.memory);
            }
            !alike.is_empty()
        });
        freed
    }
}

impl PageBlock {
    /// Returns the memory after the first `bytes` bytes to the system.
    ///
    /// # Safety
    ///
    /// Nothing uses that memory any more.
    pub unsafe fn give_back_after(&self, bytes: usize) {
        let memory = self.memory.as_ref().expect("not dropped yet");
        let from = bytes.next_multiple_of(PAGES_BYTES);
        #[cfg(unix)]
        if from < memory.len() {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the caller's promise. Later reads return the system's zeros until the
            // memory is written. If the system does not support the call, the memory stays.
            unsafe { memory.unchecked_advise_range(advice, from, memory.len() - from) }.ok();
        }
        let left = from.min(memory.len());
        let before = self.used_bytes.fetch_min(left, Ordering::Relaxed);
        self.pool.state().stats.in_use_bytes -= before.saturating_sub(left);
    }
}

impl Deref for PageBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().expect("not dropped yet")
    }
}

impl DerefMut for PageBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().expect("not dropped yet")
    }
}

impl Drop for PageBlock {
    fn drop(&mut self) {
        let memory = self.memory.take().expect("dropped once");
        let used_bytes = self.used_bytes.load(Ordering::Relaxed);
        if injected(InjectedBug::BufferTwoLocks) {
            // Counts under two locks: a block taken in between is not counted.
            let in_use_bytes = self.pool.state().stats.in_use_bytes;
            self.pool.state().stats.in_use_bytes = in_use_bytes - used_bytes;
        }
        let now = (self.pool.clock)();
        let freed = self.pool.state().put(memory, used_bytes, now);
        drop(freed);
    }
}

impl fmt::Debug for PageBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageBlock({} bytes)", self.len())
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PagePool").field(&self.stats()).finish()
    }
}

fn map_fresh(bytes: usize, pages: PageSize) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes)?;
    // Only hints: systems without large pages reject them, and the mapping works all the same.
    #[cfg(target_os = "linux")]
    match pages {
        PageSize::Large => memory.advise(memmap2::Advice::HugePage).ok(),
        PageSize::Small => memory.advise(memmap2::Advice::NoHugePage).ok(),
        PageSize::Default => None,
    };
    #[cfg(not(target_os = "linux"))]
    let _ = pages;
    Ok(memory)
}

#[cfg(all(test, not(motet_loom)))]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn pool(bytes_max: usize) -> PagePool {
        let limits = IdleLimits {
            bytes_max,
            blocks_max: 256,
        };
        PagePool::new(limits, Instant::now)
    }

    fn take(pool: &PagePool, bytes: usize) -> PageBlock {
        pool.take(bytes..=bytes + bytes / 8, PageSize::Large)
            .expect("memory is available")
    }

    #[test]
    fn dropped_block_is_reused_where_it_fits() {
        let pool = pool(64 * MIB);
        let mut block = take(&pool, 8 * MIB);
        block[5] = 77;
        let start = block.as_ptr();
        assert_eq!(pool.stats().in_use_bytes, 8 * MIB);
        drop(block);
        assert_eq!(pool.stats().in_use_bytes, 0);
        let check = |bytes, serves| {
            let block = take(&pool, bytes);
            assert_eq!(block.as_ptr() == start, serves, "{bytes} bytes");
            assert!(block.len() >= bytes);
            assert_eq!(block[5] == 77, serves, "{bytes} bytes");
        };
        check(8 * MIB, true);
        check(8 * MIB - 5, true);
        check(8 * MIB / 9 * 8 + 8, true);
        check(8 * MIB + 1, false);
        check(7 * MIB, false);
    }

    #[test]
    fn returned_memory_is_not_in_use() {
        let pool = pool(64 * MIB);
        let mut block = take(&pool, 8 * MIB);
        block.fill(77);
        // SAFETY: nothing uses that memory.
        unsafe { block.give_back_after(3 * MIB - 5) };
        assert_eq!(pool.stats().in_use_bytes, 3 * MIB);
        assert_eq!(block[3 * MIB - 6], 77);
        assert_eq!(block[3 * MIB], 0, "returned memory reads as zeros");
        // SAFETY: as above.
        unsafe { block.give_back_after(9 * MIB) };
        assert_eq!(pool.stats().in_use_bytes, 3 * MIB);
        drop(block);
        assert_eq!(pool.stats().in_use_bytes, 0);
        let whole = take(&pool, 8 * MIB);
        assert_eq!(pool.stats().in_use_bytes, 8 * MIB);
        drop(whole);
    }

    #[test]
    fn idle_blocks_stay_within_their_bounds() {
        let pool = pool(4 * MIB);
        let idle = || {
            let state = pool.state();
            let blocks: usize = state.idle.values().map(VecDeque::len).sum();
            assert_eq!(blocks, state.idle_blocks);
            (blocks, state.stats.idle_bytes)
        };
        drop(take(&pool, 5 * MIB));
        assert_eq!(idle(), (0, 0));
        let blocks: Vec<_> = (0..6).map(|_| take(&pool, MIB)).collect();
        drop(blocks);
        assert_eq!(idle(), (4, 4 * MIB));
        drop(take(&pool, 3 * MIB));
        assert_eq!(idle(), (2, 4 * MIB));
        let small: Vec<_> = (0..300).map(|_| take(&pool, 1)).collect();
        drop(small);
        assert_eq!(idle().0, 256);
        assert_eq!(pool.stats().in_use_bytes, 0);
    }
}
