//! Operations on whole rows that sampling needs: maxima, exponentials, sums and races.
//!
//! Only the four [`RowOperations`] touch every number of a row, so only these need a device's
//! vector instructions. Their results are fixed to the last bit, including the order of every
//! sum: every implementation samples the same token.

mod race;

use super::noise::Noise;
use motet_protocol::TokenId;
pub use race::Race;

/// Numbers of a row over which one maximum is taken.
pub const BLOCK: usize = 64;

/// Numbers of a row that are summed up separately.
pub const RUN: usize = 1024;

/// Sums that run side by side through a run: each takes every 16th number.
pub const LANES: usize = 16;

/// The passes over whole rows.
pub trait RowOperations {
    /// The largest number of each [`BLOCK`]; NaN does not count, and the maximum of no numbers is
    /// minus infinity.
    fn maxima(&self, numbers: &[f32], maxima: &mut [f32]);

    /// [`exp`] of `(logit - top) / temperature` of each logit.
    fn weigh(&self, logits: &[f32], top: f32, temperature: f32, weights: &mut [f32]);

    /// The sum of the weights of each [`RUN`]: the sums of its [`LANES`] in their order, then the
    /// remaining numbers, as [`finish`] adds them.
    fn sums(&self, weights: &[f32], sums: &mut [f32]);

    /// The [winner](Race::winner) of the race.
    fn race(&self, race: Race<'_>) -> TokenId;
}

/// [`RowOperations`] in plain Rust.
#[derive(Clone, Copy, Debug)]
pub struct ScalarOperations;

impl RowOperations for ScalarOperations {
    fn maxima(&self, numbers: &[f32], maxima: &mut [f32]) {
        for (block, largest) in numbers.chunks(BLOCK).zip(maxima) {
            *largest = maximum(block);
        }
    }

    fn weigh(&self, logits: &[f32], top: f32, temperature: f32, weights: &mut [f32]) {
        for (logit, weight) in logits.iter().zip(weights) {
            *weight = exp((logit - top) / temperature);
        }
    }

    fn sums(&self, weights: &[f32], sums: &mut [f32]) {
        for (run, sum) in weights.chunks(RUN).zip(sums) {
            let mut lanes = [0.0; LANES];
            let (whole, rest) = run.as_chunks::<LANES>();
            for weights in whole {
                for (lane, weight) in lanes.iter_mut().zip(weights) {
                    *lane += weight;
                }
            }
            *sum = finish(&lanes, rest);
        }
    }

    fn race(&self, race: Race<'_>) -> TokenId {
        race.winner()
    }
}

/// The sum of a run: the sums of its lanes, and the numbers that fill no further row of lanes.
pub fn finish(lanes: &[f32; LANES], rest: &[f32]) -> f32 {
    lanes.iter().chain(rest).sum()
}

/// Processes rows, one after another, and keeps its memory between them.
#[derive(Debug)]
pub struct RowReader<P> {
    row_operations: P,
    adjusted: Vec<f32>,
    weights: Vec<f32>,
    maxima: Vec<f32>,
    weight_maxima: Vec<f32>,
    sums: Vec<f32>,
}

impl<P: RowOperations> RowReader<P> {
    /// A reader that uses these row operations.
    pub fn new(row_operations: P) -> Self {
        Self {
            row_operations,
            adjusted: Vec::new(),
            weights: Vec::new(),
            maxima: Vec::new(),
            weight_maxima: Vec::new(),
            sums: Vec::new(),
        }
    }

    /// Calls `change` with a copy of the row, and then `read` with that.
    pub(super) fn changed<T>(
        &mut self,
        row: &[f32],
        change: impl FnOnce(&mut [f32]),
        read: impl FnOnce(&mut Self, &[f32]) -> T,
    ) -> T {
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(row);
        change(&mut adjusted);
        let result = read(self, &adjusted);
        self.adjusted = adjusted;
        result
    }

    /// The largest number of each [`BLOCK`], and of all.
    pub(super) fn maxima(&mut self, numbers: &[f32]) -> (&[f32], f32) {
        let maxima = sized(&mut self.maxima, numbers.len().div_ceil(BLOCK));
        self.row_operations.maxima(numbers, maxima);
        (maxima, maximum(maxima))
    }

    /// Computes a weight per token that its probability is proportional to; the likeliest has 1.
    pub(super) fn weigh(&mut self, logits: &[f32], top: f32, temperature: f32) {
        let weights = sized(&mut self.weights, logits.len());
        self.row_operations.weigh(logits, top, temperature, weights);
    }

    /// The result of [`weigh`](Self::weigh).
    pub(super) fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The [`weights`](Self::weights), and the largest of each [`BLOCK`].
    pub(super) fn weights_and_maxima(&mut self) -> (&[f32], &[f32]) {
        let maxima = sized(&mut self.weight_maxima, self.weights.len().div_ceil(BLOCK));
        self.row_operations.maxima(&self.weights, maxima);
        (&self.weights, maxima)
    }

    /// The sum of the weights of each [`RUN`].
    pub(super) fn sums(&mut self) -> &[f32] {
        let sums = sized(&mut self.sums, self.weights.len().div_ceil(RUN));
        self.row_operations.sums(&self.weights, sums);
        sums
    }

    /// The winner of a race among all tokens whose weights reach `threshold`. The last
    /// [`maxima`](Self::maxima) are those of these logits, with this `top`. It needs no
    /// [`weigh`](Self::weigh).
    pub(super) fn race(
        &mut self,
        logits: &[f32],
        top: f32,
        temperature: f32,
        threshold: f32,
        noise: Noise,
    ) -> TokenId {
        let maxima = sized(&mut self.weight_maxima, self.maxima.len());
        self.row_operations
            .weigh(&self.maxima, top, temperature, maxima);
        self.row_operations.race(Race {
            logits,
            top,
            temperature,
            maxima,
            threshold,
            noise,
        })
    }
}

fn sized(numbers: &mut Vec<f32>, length: usize) -> &mut [f32] {
    numbers.resize(length, 0.0);
    numbers
}

pub(super) fn maximum(numbers: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (runs, rest) = numbers.as_chunks::<LANES>();
    for run in runs {
        for (lane, number) in lanes.iter_mut().zip(run) {
            *lane = larger(*lane, *number);
        }
    }
    lanes.iter().chain(rest).copied().fold(lanes[0], larger)
}

/// The parts of [`exp`], for vector implementations that apply them in the same order.
pub mod exponential {
    /// Adding it rounds to a whole number, which ends up in the lowest bits.
    pub const ROUND: f32 = 12_582_912.0;
    /// The upper part of ln(2).
    pub const LN_2_HIGH: f32 = 0.693_359_4;
    /// The lower part of ln(2).
    pub const LN_2_LOW: f32 = -2.121_944_4e-4;
    /// Coefficients of the polynomial, the highest power's first.
    pub const COEFFICIENTS: [f32; 7] = [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    /// Inputs at or below this are near underflow, and their exponential is taken as 0.
    pub const NOTHING: f32 = -87.0;
}

/// The exponential of a number up to 0, to a few units in the last place. It uses operations that
/// every machine rounds alike and has on vectors: Cody and Waite's reduction to `2^n * e^r` with
/// `|r| <= ln(2) / 2`, and Taylor's polynomial for the latter.
pub fn exp(x: f32) -> f32 {
    use exponential::{COEFFICIENTS, LN_2_HIGH, LN_2_LOW, NOTHING, ROUND};
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let mut power = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        power = power * r + coefficient;
    }
    // Multiplies by 2^n: adds n to the exponent.
    let scaled = f32::from_bits(power.to_bits().wrapping_add(shifted.to_bits() << 23));
    // A token that is ruled out has weight 0 too.
    if x > NOTHING { scaled } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_exact_to_rounding() {
        for step in 0..=87_000 {
            let x = -step as f32 / 1000.0;
            let error = f64::from(exp(x)) / f64::from(x).exp() - 1.0;
            assert!(
                step == 87_000 || error.abs() < 3e-7,
                "exp({x}) is off by {error}"
            );
        }
        assert_eq!(
            [exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)],
            [1.0, 0.0, 0.0]
        );
    }
}
