//! Slices that several threads write at once.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that threads write disjoint parts of.
#[derive(Debug)]
pub(crate) struct Split<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it represents a `&mut [T]`, which other threads may use when `T: Send`.
unsafe impl<T: Send> Sync for Split<'_, T> {}

impl<'a, T> Split<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Split<'a, T> {
        Split {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            borrow: PhantomData,
        }
    }

    /// A part of the slice.
    ///
    /// # Safety
    ///
    /// No two parts that are in use at a time overlap.
    ///
    /// # Panics
    ///
    /// When the slice does not have this range.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller promises that no two parts overlap"
    )]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies within the slice; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
