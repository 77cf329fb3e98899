//! Sampling of tokens: greedy, or by top-k, temperature, top-p and min-p, with log
//! probabilities; and log probabilities of tokens that are known.
//!
//! The results are those of [`sampling`](motet_model::sampling). Here its passes over whole
//! rows run on vectors, with operations that every instruction set rounds alike, and with sums
//! in the order that it prescribes. A token is therefore the same to the last bit on every
//! machine. Rows are spread over threads and sampled independently.

use std::cell::RefCell;
use std::f32::consts::LOG2_E;

use super::pool::Pool;
use motet_formats::simd::{InstructionSet, Job, Simd, dispatch_on};
use motet_model::sampling::rows::exponential::{COEFFICIENTS, LN_2_HIGH, LN_2_LOW, NOTHING, ROUND};
use motet_model::sampling::rows::{BLOCK, LANES, RUN, Race, RowOperations, RowReader, finish};
use motet_model::sampling::{SampleInputs, Sampled, logprobs_with};
use motet_protocol::TokenId;
use motet_protocol::TokenLogprobs;

thread_local! {
    /// Holds two rows of the largest vocabulary that the thread has sampled from.
    static READER: RefCell<RowReader<Vectors>> =
        RefCell::new(RowReader::new(Vectors(InstructionSet::best())));
}

/// Samples each of `rows_to_sample` from its row of `logits` (`[rows, vocab]`). Returns exactly
/// the tokens and log probabilities of [`SampleInputs::from_logits`].
///
/// # Panics
///
/// When a row does not exist or is empty.
#[must_use]
pub fn sample_rows(
    logits: &[f32],
    vocab: usize,
    rows_to_sample: &[(u32, SampleInputs)],
) -> Vec<Sampled> {
    sample_rows_on(Pool::global(), logits, vocab, rows_to_sample)
}

fn sample_rows_on(
    pool: &Pool,
    logits: &[f32],
    vocab: usize,
    rows_to_sample: &[(u32, SampleInputs)],
) -> Vec<Sampled> {
    let mut sampled: Vec<Option<Sampled>> = vec![None; rows_to_sample.len()];
    pool.for_each_chunk([&mut sampled], [1], |index, [sampled]| {
        let (row, sample_inputs) = &rows_to_sample[index];
        let row = &logits[*row as usize * vocab..][..vocab];
        sampled[0] = READER.with_borrow_mut(|reader| Some(sample_inputs.sample_with(reader, row)));
    });
    let sampled = sampled.into_iter();
    sampled
        .map(|sampled| sampled.expect("every row was sampled"))
        .collect()
}

/// The log probability of each row's token and of so many of the likeliest, for the rows of
/// `logits` (`[rows, vocab]`) in their order. Returns exactly those of
/// [`logprobs_of`](motet_model::sampling::logprobs_of).
///
/// # Panics
///
/// When there are more targets than rows, or a token is outside the vocabulary.
#[must_use]
pub fn score_rows(
    logits: &[f32],
    vocab: usize,
    targets: &[(TokenId, usize)],
) -> Vec<TokenLogprobs> {
    let mut scored: Vec<Option<TokenLogprobs>> = vec![None; targets.len()];
    Pool::global().for_each_chunk([&mut scored], [1], |index, [scored]| {
        let (token, top) = targets[index];
        let row = &logits[index * vocab..][..vocab];
        scored[0] = READER.with_borrow_mut(|reader| logprobs_with(reader, row, token, top));
    });
    let scored = scored.into_iter();
    scored
        .map(|logprobs| logprobs.expect("a target is a token of the vocabulary"))
        .collect()
}

/// [`RowOperations`] on the vectors of one instruction set.
#[derive(Clone, Copy, Debug)]
struct Vectors(InstructionSet);

impl RowOperations for Vectors {
    fn maxima(&self, numbers: &[f32], maxima: &mut [f32]) {
        dispatch_on(self.0, Maxima { numbers, maxima });
    }

    fn weigh(&self, logits: &[f32], top: f32, temperature: f32, weights: &mut [f32]) {
        let job = Weigh {
            logits,
            top,
            temperature,
            weights,
        };
        dispatch_on(self.0, job);
    }

    fn sums(&self, weights: &[f32], sums: &mut [f32]) {
        dispatch_on(self.0, Sums { weights, sums });
    }

    fn race(&self, race: Race<'_>) -> TokenId {
        dispatch_on(self.0, Winner(race))
    }
}

/// Maximum number of vectors that hold [`LANES`] numbers.
const PARTS_MAX: usize = 4;

/// Vectors that together hold [`LANES`] numbers.
const fn parts<S: Simd>() -> usize {
    assert!(LANES.is_multiple_of(S::LANES) && LANES <= PARTS_MAX * S::LANES);
    LANES / S::LANES
}

struct Maxima<'a> {
    numbers: &'a [f32],
    maxima: &'a mut [f32],
}

impl Job for Maxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (block, maximum) in self.numbers.chunks(BLOCK).zip(self.maxima) {
            let mut largest = [simd.splat(f32::NEG_INFINITY); PARTS_MAX];
            let (whole, rest) = block.as_chunks::<LANES>();
            for numbers in whole {
                for (part, largest) in largest[..parts::<S>()].iter_mut().enumerate() {
                    let numbers = simd.load_part(&numbers[part * S::LANES..]);
                    // Unlike `max`, this ignores NaN on every instruction set.
                    *largest = simd.select_ge(numbers, *largest, numbers, *largest);
                }
            }
            let [mut first, others @ ..] = largest;
            for other in &others[..parts::<S>() - 1] {
                first = simd.max(first, *other);
            }
            let larger = |a: f32, b: &f32| if *b > a { *b } else { a };
            *maximum = rest.iter().fold(simd.largest(first), larger);
        }
    }
}

struct Weigh<'a> {
    logits: &'a [f32],
    top: f32,
    temperature: f32,
    weights: &'a mut [f32],
}

impl Job for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (top, temperature) = (simd.splat(self.top), simd.splat(self.temperature));
        let logits = self.logits.chunks(S::LANES);
        for (logits, weights) in logits.zip(self.weights.chunks_mut(S::LANES)) {
            let x = simd.sub(simd.load_part(logits), top);
            simd.store_part(weights, exp(simd, simd.div(x, temperature)));
        }
    }
}

/// [`exp`](motet_model::sampling::rows::exp), step by step: a fused multiplication would give
/// another result than on a machine without one.
#[inline(always)]
fn exp<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let above = simd.splat(NOTHING.next_up());
    // Numbers out of range take no part, but would have an invalid exponent.
    let within = simd.min(simd.splat(0.0), simd.max(simd.splat(NOTHING), x));
    let round = simd.splat(ROUND);
    let n = simd.mul(within, simd.splat(LOG2_E));
    let n = simd.sub(simd.add(n, round), round);
    let r = simd.sub(within, simd.mul(n, simd.splat(LN_2_HIGH)));
    let r = simd.sub(r, simd.mul(n, simd.splat(LN_2_LOW)));
    let mut power = simd.splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        power = simd.add(simd.mul(power, r), simd.splat(*coefficient));
    }
    simd.select_ge(x, above, simd.scale(power, n), simd.splat(0.0))
}

struct Sums<'a> {
    weights: &'a [f32],
    sums: &'a mut [f32],
}

impl Job for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (run, sum) in self.weights.chunks(RUN).zip(self.sums) {
            let mut sums = [simd.splat(0.0); PARTS_MAX];
            let (whole, rest) = run.as_chunks::<LANES>();
            for weights in whole {
                for (part, sum) in sums[..parts::<S>()].iter_mut().enumerate() {
                    *sum = simd.add(*sum, simd.load_part(&weights[part * S::LANES..]));
                }
            }
            let mut lanes = [0.0; LANES];
            for (lanes, sum) in lanes.chunks_mut(S::LANES).zip(sums) {
                simd.store_part(lanes, sum);
            }
            *sum = finish(&lanes, rest);
        }
    }
}

struct Winner<'a>(Race<'a>);

impl Job for Winner<'_> {
    type Output = TokenId;

    /// The race is plain Rust. Here it is compiled for the instruction set.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> TokenId {
        self.0.winner()
    }
}

#[cfg(test)]
mod tests;
