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
use motet_model::sampling::rows::{BLOCK, LANES, RUN, RowOperations, RowReader, finish};
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

    fn sums(&self, weights: &[f32], threshold: f32, sums: &mut [f32]) {
        let job = Sums {
            weights,
            threshold,
            sums,
        };
        dispatch_on(self.0, job);
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
    threshold: f32,
    sums: &'a mut [f32],
}

impl Job for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (threshold, nothing) = (simd.splat(self.threshold), simd.splat(0.0));
        for (run, sum) in self.weights.chunks(RUN).zip(self.sums) {
            let mut sums = [nothing; PARTS_MAX];
            let (whole, rest) = run.as_chunks::<LANES>();
            for weights in whole {
                for (part, sum) in sums[..parts::<S>()].iter_mut().enumerate() {
                    let weights = simd.load_part(&weights[part * S::LANES..]);
                    let counted = simd.select_ge(weights, threshold, weights, nothing);
                    *sum = simd.add(*sum, counted);
                }
            }
            let mut lanes = [0.0; LANES];
            for (lanes, sum) in lanes.chunks_mut(S::LANES).zip(sums) {
                simd.store_part(lanes, sum);
            }
            *sum = finish(&lanes, rest, self.threshold);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use motet_model::sampling::Sampler;
    use motet_model::sampling::rows::ScalarOperations;
    use motet_protocol::{Sampling, SamplingSpec, TokenSampling};

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|number| number.to_bits()).collect()
    }

    /// Logits of a few levels and of many, some excluded, and some NaN.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            12 => -40.0_f32..40.0,
            4 => (-3_i8..4).prop_map(f32::from),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(f32::NAN),
        ];
        let part = prop::collection::vec(logit, 1..70);
        (part, 1_usize..60, 0_usize..40).prop_map(|(part, times, drop)| {
            let logits = (0..part.len() * times).map(|i| {
                let times = (i / part.len()) as f32;
                part[i % part.len()] + (0.7 * times).sin()
            });
            // Rows of any length.
            let logits: Vec<f32> = logits.collect();
            logits[drop.min(logits.len() - 1)..].to_vec()
        })
    }

    /// The passes against double precision, and to the last bit against the plain ones.
    fn check_row_operations(logits: &[f32], temperature: f32, threshold: f32) {
        let mut maxima = vec![0.0; logits.len().div_ceil(BLOCK)];
        ScalarOperations.maxima(logits, &mut maxima);
        for (block, found) in logits.chunks(BLOCK).zip(&maxima) {
            let numbers = block.iter().filter(|number| !number.is_nan());
            assert_eq!(numbers.copied().fold(f32::NEG_INFINITY, f32::max), *found);
        }
        let top = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut weights = vec![0.0; logits.len()];
        ScalarOperations.weigh(logits, top, temperature, &mut weights);
        for (logit, weight) in logits.iter().zip(&weights) {
            let exponent = f64::from((logit - top) / temperature);
            let exact = if exponent > -87.0 {
                exponent.exp()
            } else {
                0.0
            };
            let error = (f64::from(*weight) - exact).abs();
            assert!(error <= 4e-7 * exact, "{weight} for {exact}");
        }
        let mut sums = vec![0.0; weights.len().div_ceil(RUN)];
        ScalarOperations.sums(&weights, threshold, &mut sums);
        for (run, sum) in weights.chunks(RUN).zip(&sums) {
            let counted = run.iter().filter(|weight| **weight >= threshold);
            let exact: f64 = counted.map(|weight| f64::from(*weight)).sum();
            assert!(
                (f64::from(*sum) - exact).abs() <= 1e-5 * exact,
                "{sum} for {exact}"
            );
        }
        for &set in InstructionSet::available() {
            let vectors = Vectors(set);
            let mut found = vec![f32::NAN; maxima.len()];
            vectors.maxima(logits, &mut found);
            assert_eq!(found, maxima, "{set:?}");
            let mut found = vec![f32::NAN; weights.len()];
            vectors.weigh(logits, top, temperature, &mut found);
            assert_eq!(bits(&found), bits(&weights), "{set:?}");
            let mut found = vec![f32::NAN; sums.len()];
            vectors.sums(&weights, threshold, &mut found);
            assert_eq!(bits(&found), bits(&sums), "{set:?}");
        }
    }

    fn sampling() -> impl Strategy<Value = Sampling> {
        let temperature = prop_oneof![Just(0.0_f32), Just(1.0), 0.1_f32..3.0];
        let top_k = prop_oneof![Just(0_u32), 1_u32..300];
        let top_p = prop_oneof![Just(1.0_f32), 0.05_f32..1.0];
        let min_p = prop_oneof![Just(0.0_f32), 0.0_f32..0.5];
        let repetition = prop_oneof![Just(1.0_f32), 0.8_f32..1.5];
        (temperature, top_k, top_p, min_p, repetition, any::<u64>()).prop_map(
            |(temperature, top_k, top_p, min_p, repetition_penalty, seed)| Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                seed,
                ..Sampling::GREEDY
            },
        )
    }

    fn sample_inputs(sampling: Sampling, logprobs: Option<usize>, index: u64) -> SampleInputs {
        let spec = SamplingSpec {
            logprobs,
            ..SamplingSpec::default()
        };
        let mut sampler = Sampler::new(Arc::new(spec), sampling, &[0, 3, 3], &[]);
        let sample_inputs = sampler.sample_inputs(TokenSampling { sampling, index });
        sample_inputs.expect("sampling without a grammar succeeds")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn row_operations_equal_the_references(
            logits in logits(),
            temperature in prop_oneof![Just(1.0_f32), 0.05_f32..3.0],
            threshold in prop_oneof![Just(0.0_f32), 0.0_f32..1.0],
        ) {
            check_row_operations(&logits, temperature, threshold);
        }

        /// Tokens do not depend on the instruction set, the number of threads or the other
        /// rows.
        #[test]
        fn sampled_tokens_match_the_definition(
            logits in logits(),
            rows_to_sample in prop::collection::vec(
                (sampling(), prop::option::of(0_usize..21), 0_u64..99, 0_u32..3),
                1..6,
            ),
        ) {
            let vocab = logits.len();
            let turned = |by: usize| [&logits[by % vocab..], &logits[..by % vocab]].concat();
            let rows: Vec<Vec<f32>> = [0, 7, 100].map(turned).to_vec();
            let rows_to_sample: Vec<(u32, SampleInputs)> = rows_to_sample
                .iter()
                .map(|(sampling, logprobs, index, row)| (*row, sample_inputs(*sampling, *logprobs, *index)))
                .collect();
            let from = |(row, sample_inputs): &(u32, SampleInputs)| sample_inputs.from_logits(&rows[*row as usize]);
            // Compared as text, because log probabilities may be NaN.
            let seen = |sampled: &[Sampled]| format!("{sampled:?}");
            let expected: Vec<Sampled> = rows_to_sample.iter().map(from).collect();
            for threads in [1, 3] {
                let found = sample_rows_on(&Pool::new(threads), &rows.concat(), vocab, &rows_to_sample);
                prop_assert_eq!(seen(&found), seen(&expected));
            }
            for &set in InstructionSet::available() {
                let mut reader = RowReader::new(Vectors(set));
                let rows_to_sample = rows_to_sample.iter();
                let found = rows_to_sample.map(|(row, sample_inputs)| sample_inputs.sample_with(&mut reader, &rows[*row as usize]));
                prop_assert_eq!(seen(&found.collect::<Vec<_>>()), seen(&expected), "{:?}", set);
            }
        }
    }

    #[test]
    fn scored_rows_match_the_definition() {
        let vocab = 301;
        let logits: Vec<f32> = (0..7 * vocab)
            .map(|i| (0.37 * i as f32).sin() * 9.0)
            .collect();
        let targets: Vec<(u32, usize)> = (0..7).map(|row| (43 * row, row as usize % 4)).collect();
        let found = score_rows(&logits, vocab, &targets);
        let rows = logits.chunks(vocab).zip(&targets);
        let expected = rows.map(|(row, (token, top))| {
            motet_model::sampling::logprobs_of(row, *token, *top).expect("in the vocabulary")
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn extreme_rows_match_the_definition() {
        let (none, all) = (f32::NEG_INFINITY, f32::INFINITY);
        let rows = [
            vec![0.0],
            vec![none; 70],
            vec![f32::NAN; 70],
            vec![all, 0.0, all, none],
            vec![f32::MAX, f32::MIN, 0.0, -0.0],
        ];
        let warm = Sampling {
            temperature: 1e-30,
            ..Sampling::GREEDY
        };
        let top_k = Sampling { top_k: 2, ..warm };
        let top_p = Sampling { top_p: 0.5, ..warm };
        for row in &rows {
            for sampling in [Sampling::GREEDY, warm, top_k, top_p] {
                let sample_inputs = sample_inputs(sampling, Some(3), 1);
                let expected = format!("{:?}", sample_inputs.from_logits(row));
                for &set in InstructionSet::available() {
                    let found = sample_inputs.sample_with(&mut RowReader::new(Vectors(set)), row);
                    assert_eq!(format!("{found:?}"), expected, "{set:?}: {row:?}");
                }
            }
        }
    }
}
