//! Fresh blocks, random numbers of several distributions, events in time.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A source of fresh blocks and random numbers.
#[derive(Debug)]
pub(crate) struct Generator {
    random: ChaCha8Rng,
    blocks: u32,
}

/// Ranks by Zipf's law; the first is the most popular.
#[derive(Debug)]
pub(crate) struct Zipf(Vec<f64>);

/// Requests in the order of their times, not of their creation.
#[derive(Debug, Default)]
pub(crate) struct Timeline(Vec<(f64, Vec<u32>)>);

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            blocks: 0,
        }
    }

    /// Returns this many blocks that no request has had yet.
    pub(crate) fn fresh(&mut self, blocks: usize) -> Vec<u32> {
        let from = self.blocks;
        self.blocks += blocks as u32;
        (from..self.blocks).collect()
    }

    /// A prompt of fresh blocks, with this mean number of blocks.
    pub(crate) fn prompt(&mut self, mean: f64) -> Vec<u32> {
        let blocks = self.geometric(mean);
        self.fresh(blocks)
    }

    pub(crate) fn prompts(&mut self, prompts: usize, mean: f64) -> Vec<Vec<u32>> {
        (0..prompts).map(|_| self.prompt(mean)).collect()
    }

    /// A uniform random number, at least 0 and less than 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }

    /// A geometrically distributed number, at least 1.
    pub(crate) fn geometric(&mut self, mean: f64) -> usize {
        1 + self.exponential(mean - 0.5) as usize
    }

    pub(crate) fn rank(&mut self, zipf: &Zipf) -> usize {
        let sums = &zipf.0;
        let at = self.uniform() * sums[sums.len() - 1];
        sums.partition_point(|sum| *sum < at).min(sums.len() - 1)
    }
}

impl Zipf {
    pub(crate) fn new(ranks: usize, exponent: f64) -> Self {
        let weights = (1..=ranks).map(|rank| (rank as f64).powf(-exponent));
        let mut sum = 0.0;
        Self(
            weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        )
    }
}

impl Timeline {
    pub(crate) fn add(&mut self, at: f64, request: Vec<u32>) {
        self.0.push((at, request));
    }

    pub(crate) fn requests(mut self) -> Vec<Vec<u32>> {
        self.0.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        self.0.into_iter().map(|(_, request)| request).collect()
    }
}
