//! An allocator that remembers the largest request of each thread. Tests use it to show that a
//! hostile header causes no allocation of gigabytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Watched;

thread_local! {
    static LARGEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

// SAFETY: every call is passed on unchanged to the system's allocator. The cell beside it is a
// plain number without a destructor, which allocates nothing.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn note(bytes: usize) {
    LARGEST_BYTES.with(|largest| largest.set(largest.get().max(bytes)));
}

/// Runs `work` and returns its result with the bytes of the largest single allocation that this
/// thread requested meanwhile.
pub(crate) fn largest_during<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LARGEST_BYTES.with(|largest| largest.set(0));
    let result = work();
    (result, LARGEST_BYTES.with(Cell::get))
}
