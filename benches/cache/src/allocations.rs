//! A counting allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

/// The system's allocator, which counts on request. Otherwise it costs one branch, so that
/// times are those of the system's.
pub(crate) struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicIsize = AtomicIsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// Allocated memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    /// Bytes requested and not freed, without the allocator's own rounding.
    pub(crate) bytes: isize,
    /// Allocation calls.
    pub(crate) allocations: usize,
}

/// Counts the allocations of `work`. No other thread may allocate meanwhile.
pub(crate) fn count<T>(work: impl FnOnce() -> T) -> (T, Allocated) {
    BYTES.store(0, Ordering::Relaxed);
    ALLOCATIONS.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    let made = work();
    COUNTS.store(false, Ordering::Relaxed);
    let allocated = Allocated {
        bytes: BYTES.load(Ordering::Relaxed),
        allocations: ALLOCATIONS.load(Ordering::Relaxed),
    };
    (made, allocated)
}

fn note(allocations: usize, bytes: isize) {
    if COUNTS.load(Ordering::Relaxed) {
        BYTES.fetch_add(bytes, Ordering::Relaxed);
        ALLOCATIONS.fetch_add(allocations, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as isize);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as isize);
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size as isize - layout.size() as isize);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(0, -(layout.size() as isize));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(at, layout) }
    }
}
