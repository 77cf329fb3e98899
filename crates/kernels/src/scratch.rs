//! Scratch memory that a thread keeps between calls.

use std::cell::RefCell;

/// Numbers that are allocated once and reused.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    numbers: Vec<f32>,
}

/// Numbers in a cache line.
const LINE: usize = 16;

impl Scratch {
    /// Slices of arbitrary numbers, each aligned to a cache line.
    #[inline(always)]
    pub(super) fn take<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [f32]; N] {
        let padded = lengths.map(|length| length.next_multiple_of(LINE));
        let needed = padded.iter().sum::<usize>() + LINE;
        if self.numbers.len() < needed {
            // Zeroed memory costs nothing until it is touched, and nothing is copied.
            self.numbers = vec![0.0; needed];
        }
        let skip = self.numbers.as_ptr().align_offset(LINE * size_of::<f32>());
        let mut rest = &mut self.numbers[skip.min(LINE)..];
        std::array::from_fn(|i| {
            let (slice, after) = std::mem::take(&mut rest).split_at_mut(padded[i]);
            rest = after;
            &mut slice[..lengths[i]]
        })
    }
}

thread_local! {
    static STEP: RefCell<Scratch> = RefCell::default();
    static ITEM: RefCell<Scratch> = RefCell::default();
    static WEIGHTS: RefCell<Scratch> = RefCell::default();
}

/// Calls `body` with this thread's memory for a whole call of a kernel.
pub(super) fn for_step<T>(body: impl FnOnce(&mut Scratch) -> T) -> T {
    STEP.with_borrow_mut(body)
}

/// Calls `body` with this thread's memory for one item of a kernel's loop.
pub(super) fn for_item<T>(body: impl FnOnce(&mut Scratch) -> T) -> T {
    ITEM.with_borrow_mut(body)
}

/// Calls `body` with this thread's memory for decoded weights. An item may do so in the middle.
pub(super) fn for_weights<T>(body: impl FnOnce(&mut Scratch) -> T) -> T {
    WEIGHTS.with_borrow_mut(body)
}
