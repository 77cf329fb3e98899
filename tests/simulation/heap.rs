//! An allocator that counts the bytes it has given out. A soak uses it to tell whether the
//! engine's memory grows, however much freed memory the system's allocator retains.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are allocated now.
pub(crate) fn held_bytes() -> usize {
    HELD_BYTES.load(Relaxed)
}

// SAFETY: every call is forwarded unchanged to the system's allocator; the counter beside it
// allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD_BYTES.fetch_add(size, Relaxed);
        HELD_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}
