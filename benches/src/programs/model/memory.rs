//! The speed at which this machine reads memory, a lower bound for every step.

use std::time::Instant;

/// Numbers that are added up side by side, so that no addition waits for another.
const LANES: usize = 64;

/// Memory to read; each page was touched.
pub(crate) struct Memory {
    numbers: Vec<u64>,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            numbers: (0..bytes.div_ceil(size_of::<u64>()) as u64).collect(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.numbers[..])
    }

    /// The time in which `threads` threads read all of it once, each its own part from start to
    /// end.
    pub(crate) fn read_seconds(&self, threads: usize) -> f64 {
        let part = self.numbers.len().div_ceil(threads).max(1);
        let started = Instant::now();
        std::thread::scope(|scope| {
            for numbers in self.numbers.chunks(part) {
                scope.spawn(move || std::hint::black_box(sum(numbers)));
            }
        });
        started.elapsed().as_secs_f64()
    }
}

fn sum(numbers: &[u64]) -> u64 {
    let mut sums = [0_u64; LANES];
    let (rows, rest) = numbers.as_chunks::<LANES>();
    for row in rows {
        for (sum, number) in sums.iter_mut().zip(row) {
            *sum = sum.wrapping_add(*number);
        }
    }
    sums.iter().chain(rest).fold(0, |a, b| a.wrapping_add(*b))
}
