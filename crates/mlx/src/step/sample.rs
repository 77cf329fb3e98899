//! Sampling tokens on the device, all rows of a step in one graph.
//!
//! Gives the results of [`sampling`](motet_model::sampling). On the CPU they are exactly those, by
//! its own code over a kernel's passes. Elsewhere they are composed of operations, and a token
//! may differ where two of them arrive within rounding of each other. Each row costs only what its
//! settings need: a greedy row an argmax, a row without top-k and top-p no sorting, a row with
//! top-k a sort of that many logits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{argmax_axis, take_axis, topk_axis};
use mlx_rs::{Array, Dtype, Stream, ops};

use crate::device::bridge::{Kernel, View, ViewMut, apply};
use crate::device::ops::{bitwise_xor, concatenate, right_shift};
use crate::device::profile::Made;
use crate::error::MlxError;
use motet_model::sampling::{Noise, SampleInputs, Sampled};
use motet_protocol::{Sampling, TokenLogprobs, TokenSampling};

/// Tokens of all samples, still on the device.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// `[samples]`, unsigned 32-bit.
    pub(crate) tokens: Array,
    /// Index in `tokens` of each sample's token.
    pub(crate) token_indices: Vec<usize>,
    logprobs: Logprobs,
}

/// Log probabilities of the samples that request them.
#[derive(Debug)]
enum Logprobs {
    NotRequested,
    /// The kernel records them, in the order of the samples.
    Noted(Arc<Mutex<Vec<Option<TokenLogprobs>>>>),
    /// The host computes them from the logits: each sample's row, and its inputs.
    FromLogits(Array, Vec<(u32, SampleInputs)>),
}

impl Tokens {
    /// Waits for the tokens and reads them, in the order of the samples.
    pub(crate) fn read(self) -> Result<Vec<Sampled>, MlxError> {
        let tokens = self.tokens.try_as_slice::<u32>()?;
        let tokens: Vec<u32> = self
            .token_indices
            .iter()
            .map(|token_index| tokens[*token_index])
            .collect();
        let logprobs = match self.logprobs {
            Logprobs::NotRequested => vec![None; tokens.len()],
            Logprobs::Noted(noted) => std::mem::take(&mut *lock(&noted)),
            Logprobs::FromLogits(logits, requests) => {
                let vocab = logits.dim(1) as usize;
                let logits = logits.try_as_slice::<f32>()?;
                let logprobs = requests.iter().zip(&tokens).map(|((row, inputs), token)| {
                    let row = &logits[*row as usize * vocab..][..vocab];
                    inputs.logprobs_from(row, *token)
                });
                logprobs.collect()
            }
        };
        let sampled = tokens.into_iter().zip(logprobs);
        Ok(sampled
            .map(|(token, logprobs)| Sampled { token, logprobs })
            .collect())
    }
}

impl Made for Tokens {
    fn arrays(&self) -> Vec<&Array> {
        vec![&self.tokens]
    }
}

fn lock<T>(noted: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while the lock is held.
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The passes that a row needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cost {
    Greedy,
    /// Weights, times and an argmax.
    Unsorted,
    /// As `Unsorted`, plus a partial sort of the top k.
    SortedTop,
    /// Also sorting the vocabulary.
    SortedAll,
}

impl Cost {
    fn of(sampling: &Sampling) -> Self {
        if sampling.is_greedy() {
            Cost::Greedy
        } else if sampling.top_k > 0 {
            Cost::SortedTop
        } else if sampling.top_p < 1.0 {
            Cost::SortedAll
        } else {
            Cost::Unsorted
        }
    }
}

/// Samples one token for each of `samples`, from the given rows of `logits`, by this crate's
/// kernel if there is a stream for it. `samples` is not empty.
pub(crate) fn sample_tokens(
    logits: &Array,
    samples: Vec<(u32, SampleInputs)>,
    kernels: Option<&Stream>,
) -> Result<Tokens, Exception> {
    let needs_logprobs = samples
        .iter()
        .any(|(_, sample_inputs)| sample_inputs.logprobs().is_some());
    let Some(stream) = kernels else {
        let logprobs = if needs_logprobs {
            Logprobs::FromLogits(logits.clone(), samples.clone())
        } else {
            Logprobs::NotRequested
        };
        let (tokens, token_indices) = composed(logits, &samples)?;
        return Ok(Tokens {
            tokens,
            token_indices,
            logprobs,
        });
    };
    let count = samples.len();
    let noted = needs_logprobs.then(|| Arc::new(Mutex::new(Vec::new())));
    let kernel = SampleTokens {
        samples,
        noted: noted.clone(),
    };
    let tokens = apply(kernel, &[logits], &[&[count as i32]], stream)?.swap_remove(0);
    Ok(Tokens {
        tokens: tokens.as_dtype(Dtype::Uint32)?,
        token_indices: (0..count).collect(),
        logprobs: noted.map_or(Logprobs::NotRequested, Logprobs::Noted),
    })
}

/// [`SampleInputs::from_logits`] in the graph. Token ids pass through single precision, which
/// represents every whole number up to 2^24, more than any vocabulary.
struct SampleTokens {
    samples: Vec<(u32, SampleInputs)>,
    noted: Option<Arc<Mutex<Vec<Option<TokenLogprobs>>>>>,
}

impl Kernel for SampleTokens {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let logits = &inputs[0];
        let vocab = logits.shape[1];
        let sampled = motet_kernels::sample_rows(&logits.data, vocab, &self.samples);
        for (sampled, token) in sampled.iter().zip(&mut *outputs[0].data) {
            *token = sampled.token as f32;
        }
        if let Some(noted) = &self.noted {
            *lock(noted) = sampled
                .into_iter()
                .map(|sampled| sampled.logprobs)
                .collect();
        }
    }
}

/// The tokens, and the index of each sample's token among them.
fn composed(
    logits: &Array,
    inputs: &[(u32, SampleInputs)],
) -> Result<(Array, Vec<usize>), Exception> {
    let (logits, samples) = adjusted(logits, inputs)?;
    let (logits, samples) = (&logits, &samples[..]);
    let mut order: Vec<usize> = (0..samples.len()).collect();
    order.sort_by_key(|index| Cost::of(&samples[*index].1.sampling));
    let mut token_indices = vec![0; samples.len()];
    for (token_index, index) in order.iter().enumerate() {
        token_indices[*index] = token_index;
    }
    let groups = order
        .chunk_by(|a, b| Cost::of(&samples[*a].1.sampling) == Cost::of(&samples[*b].1.sampling));
    let tokens = groups
        .map(|group| {
            let group: Vec<(u32, TokenSampling)> =
                group.iter().map(|index| samples[*index]).collect();
            let logits = rows(logits, &group)?;
            match Cost::of(&group[0].1.sampling) {
                Cost::Greedy => argmax_axis(&logits, -1, false),
                cost => Group::new(&group).sample(&logits, cost),
            }
        })
        .collect::<Result<_, Exception>>()?;
    Ok((concatenate(tokens, 0)?, token_indices))
}

/// The logits followed by adjusted copies of rows, for samples that change their row. Each
/// sample comes with the row that it then uses.
fn adjusted(
    logits: &Array,
    inputs: &[(u32, SampleInputs)],
) -> Result<(Array, Vec<(u32, TokenSampling)>), Exception> {
    let (rows, vocab) = (logits.dim(0), logits.dim(1));
    let mut parts = vec![logits.clone()];
    let mut samples = Vec::with_capacity(inputs.len());
    for (row, sample_inputs) in inputs {
        let mut row = *row;
        if let Some(adjustments) = sample_inputs.adjustments(vocab as usize) {
            let vector = |numbers: &[f32]| Array::from_slice(numbers, &[1, vocab]);
            let repetition = vector(&adjustments.repetition);
            let from = row as i32;
            let raw = crate::device::ops::slice(logits, [from, 0], [from + 1, vocab])?
                .add(vector(&adjustments.bias))?;
            let above = raw.gt(Array::from_f32(0.0))?;
            let penalized =
                ops::select(above, raw.divide(&repetition)?, raw.multiply(&repetition)?)?;
            row = (rows as usize + parts.len() - 1) as u32;
            parts.push(penalized.add(vector(&adjustments.shift))?);
        }
        samples.push((row, *sample_inputs.token_sampling()));
    }
    Ok((concatenate(parts, 0)?, samples))
}

/// The group's rows of `logits`, or `logits` itself when they are all of it in order.
fn rows(logits: &Array, group: &[(u32, TokenSampling)]) -> Result<Array, Exception> {
    let rows: Vec<u32> = group.iter().map(|(row, _)| *row).collect();
    if rows.len() == logits.dim(0) as usize && rows.is_sorted() {
        return Ok(logits.clone());
    }
    take_axis(logits, Array::from_slice(&rows, &[rows.len() as i32]), 0)
}

/// Parameters of rows that are sampled together, `[rows, 1]` each.
struct Group {
    temperature: Array,
    top_k: Array,
    top_k_max: usize,
    top_p: Array,
    min_p: Array,
    noise: Vec<Noise>,
}

impl Group {
    fn new(samples: &[(u32, TokenSampling)]) -> Self {
        let column = |of: fn(&TokenSampling) -> f32| {
            Array::from_iter(
                samples.iter().map(|(_, token_sampling)| of(token_sampling)),
                &[samples.len() as i32, 1],
            )
        };
        let top_k = |token_sampling: &TokenSampling| token_sampling.sampling.top_k;
        Self {
            temperature: column(|token_sampling| token_sampling.sampling.temperature),
            top_k: column(|token_sampling| token_sampling.sampling.top_k as f32),
            top_k_max: samples
                .iter()
                .map(|(_, token_sampling)| top_k(token_sampling))
                .max()
                .unwrap_or(0) as usize,
            // Without a limit, rounding must not exclude any token.
            top_p: column(|token_sampling| match token_sampling.sampling.top_p {
                limit if limit < 1.0 => limit,
                _ => f32::INFINITY,
            }),
            min_p: column(|token_sampling| token_sampling.sampling.min_p),
            noise: samples
                .iter()
                .map(|(_, token_sampling)| Noise::of(token_sampling))
                .collect(),
        }
    }

    fn sample(&self, logits: &Array, cost: Cost) -> Result<Array, Exception> {
        let top = logits.max_axis(-1, true)?;
        let weights = self.weights(logits, &top)?;
        let vocab = logits.dim(1);
        let threshold = match cost {
            Cost::SortedTop if self.top_k_max < vocab as usize => {
                let candidates = topk_axis(logits, self.top_k_max as i32, -1)?;
                self.threshold(&self.weights(&candidates, &top)?, Some(&self.top_k))?
            }
            Cost::SortedTop => self.threshold(&weights, Some(&self.top_k))?,
            Cost::SortedAll => self.threshold(&weights, None)?,
            Cost::Greedy | Cost::Unsorted => self.min_p.clone(),
        };
        let scores = weights.divide(self.exponentials(vocab)?)?;
        let eligible = weights.ge(&threshold)?;
        argmax_axis(
            ops::select(eligible, scores, Array::from_f32(-1.0))?,
            -1,
            false,
        )
    }

    /// [`Noise::exponential`] of each row and token, in single precision.
    fn exponentials(&self, vocab: i32) -> Result<Array, Exception> {
        /// The bits number this share of the numbers between 0 and 1.
        const PART: f32 = 1.0 / (1_u64 << 32) as f32;
        let rows = self.noise.len() as i32;
        let keys = |key: usize| {
            let keys = self.noise.iter().map(|noise| noise.keys[key]);
            Array::from_iter(keys, &[rows, 1])
        };
        let number = |number: u32| Array::from_slice(&[number], &[1, 1]);
        let fold = |x: Array, shift: u32| bitwise_xor(&x, &right_shift(&x, &number(shift))?);
        let [one, two, three] = Noise::SHIFTS;
        let tokens = ops::arange::<_, u32>(None, vocab, None)?;
        let mut bits = fold(bitwise_xor(&tokens, &keys(0))?, one)?;
        bits = fold(bits.multiply(number(Noise::FACTORS[0]))?, two)?.add(keys(1))?;
        bits = fold(bits.multiply(number(Noise::FACTORS[1]))?, three)?;
        let part = bits.as_dtype(Dtype::Float32)?.add(Array::from_f32(0.5))?;
        // Rounding must not reach 1, whose time has no end.
        let below_one = Array::from_f32(1.0_f32.next_down());
        let part = ops::minimum(part.multiply(Array::from_f32(PART))?, below_one)?;
        part.negative()?.log1p()?.negative()
    }

    /// `exp((logits - top) / temperature)`.
    fn weights(&self, logits: &Array, top: &Array) -> Result<Array, Exception> {
        logits.subtract(top)?.divide(&self.temperature)?.exp()
    }

    /// The least weight that takes part, `[rows, 1]`. `weights` includes all that may take
    /// part.
    fn threshold(&self, weights: &Array, top_k: Option<&Array>) -> Result<Array, Exception> {
        let nothing = Array::from_f32(0.0);
        let mut ranked = ops::sort_axis(weights.negative()?, -1)?.negative()?;
        let mut passed = ranked.ge(&nothing)?;
        if let Some(top_k) = top_k {
            let count = ranked.dim(1);
            let ranks = Array::from_iter((0..count).map(|rank| rank as f32), &[1, count]);
            passed = ranks.lt(top_k)?;
            ranked = ops::select(&passed, &ranked, &nothing)?;
        }
        let reached = ranked.cumsum(-1, false, true)?;
        let enough = self.top_p.multiply(ranked.sum_axis(-1, true)?)?;
        let in_nucleus = reached
            .subtract(&ranked)?
            .lt(enough)?
            .logical_and(&passed)?;
        let least =
            ops::select(in_nucleus, &ranked, Array::from_f32(f32::INFINITY))?.min_axis(-1, true)?;
        ops::maximum(least, &self.min_p)
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::{Device, with_stream};
    use proptest::prelude::*;

    use super::*;
    use motet_model::sampling::{Sampler, sample_row, weights};
    use motet_protocol::SamplingSpec;

    /// Checks that every sampled token takes part, and that it wins the race up to rounding.
    fn check(logits: &[Vec<f32>], samplings: &[Sampling], position: u64) {
        let samples: Vec<(u32, TokenSampling)> = (0..)
            .zip(samplings)
            .map(|(row, sampling)| (row, *sampling))
            .map(|(row, sampling)| (row, TokenSampling { sampling, position }))
            .collect();
        let shape = [logits.len() as i32, logits[0].len() as i32];
        let array = Array::from_slice(&logits.concat(), &shape);
        let cpu = Stream::new_with_device(&Device::cpu());
        let inputs = samples.iter();
        let inputs =
            inputs.map(|(row, token_sampling)| (*row, SampleInputs::plain(*token_sampling)));
        let sampled = with_stream(&cpu, || sample_tokens(&array, inputs.collect(), None));
        let sampled = sampled.expect("the graph is built");
        let tokens = sampled.tokens.try_as_slice::<u32>().expect("tokens");
        for ((row, token_sampling), token_index) in samples.iter().zip(&sampled.token_indices) {
            let logits = &logits[*row as usize];
            let found = tokens[*token_index];
            assert!(
                found == sample_row(token_sampling, logits)
                    || is_within_rounding(token_sampling, logits, found),
                "{token_sampling:?}: {found}, not {}",
                sample_row(token_sampling, logits)
            );
        }
    }

    fn is_within_rounding(token_sampling: &TokenSampling, logits: &[f32], found: u32) -> bool {
        let (weights, threshold) = weights(token_sampling, logits);
        let noise = Noise::of(token_sampling);
        let score = |token: u32| f64::from(weights[token as usize]) / noise.exponential(token);
        !token_sampling.sampling.is_greedy()
            && weights[found as usize] >= threshold
            && score(found) > (1.0 - 1e-5) * score(sample_row(token_sampling, logits))
    }

    fn sampling() -> impl Strategy<Value = Sampling> {
        let temperature = prop_oneof![Just(0.0f32), 0.1f32..2.0];
        let top_k = prop_oneof![Just(0u32), 1u32..60];
        let top_p = prop_oneof![Just(1.0f32), 0.05f32..1.0];
        let min_p = prop_oneof![Just(0.0f32), 0.0f32..0.5];
        (temperature, top_k, top_p, min_p, any::<u64>()).prop_map(
            |(temperature, top_k, top_p, min_p, seed)| Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                seed,
                ..Sampling::GREEDY
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn sampled_tokens_match_the_reference(
            logits in prop::collection::vec(prop::collection::vec(-8.0f32..8.0, 40), 5),
            samplings in prop::collection::vec(sampling(), 5),
            position in any::<u64>(),
        ) {
            check(&logits, &samplings, position);
        }

        /// Few levels, so that filters end among equal logits.
        #[test]
        fn equal_logits_pass_filters_together(
            logits in prop::collection::vec(prop::collection::vec(0i8..3, 40), 5),
            samplings in prop::collection::vec(sampling(), 5),
            position in any::<u64>(),
        ) {
            let row = |row: &Vec<i8>| row.iter().map(|level| f32::from(*level)).collect();
            check(&logits.iter().map(row).collect::<Vec<_>>(), &samplings, position);
        }
    }

    #[test]
    fn a_real_vocabulary() {
        let logits = |row: u32| {
            (0..49_152u32).map(move |id| {
                let mixed = (id ^ row).wrapping_mul(0x9E37_79B9) >> 8;
                12.0 * (mixed as f32 / (1 << 24) as f32).powi(8)
            })
        };
        let logits: Vec<Vec<f32>> = (0..4).map(|row| logits(row).collect()).collect();
        let warm = Sampling {
            temperature: 0.8,
            seed: 3,
            ..Sampling::GREEDY
        };
        let samplings = [
            Sampling::GREEDY,
            warm,
            Sampling {
                top_k: 40,
                top_p: 0.9,
                ..warm
            },
            Sampling {
                top_p: 0.95,
                min_p: 0.01,
                ..warm
            },
        ];
        for position in 0..10 {
            check(&logits, &samplings, position);
        }
    }

    /// Adjusted rows beside plain ones, and log probabilities, composed and on the host.
    #[test]
    fn adjusted_logits_and_logprobs_match_the_host() {
        let logits =
            |row: u32| (0..300u32).map(move |id| ((id * 37 + row * 11) % 101) as f32 / 9.0);
        let spec = SamplingSpec {
            bias: vec![(5, 20.0), (7, f32::NEG_INFINITY)],
            logprobs: Some(3),
            ..SamplingSpec::default()
        };
        let penalties = Sampling {
            repetition_penalty: 1.5,
            presence_penalty: 0.5,
            ..Sampling::GREEDY
        };
        let sample_inputs = |sampling: Sampling, spec: &SamplingSpec| {
            let history: Vec<u32> = (0..60).collect();
            let mut sampler = Sampler::new(Arc::new(spec.clone()), sampling, &history, &[8, 8]);
            let token_sampling = TokenSampling {
                sampling,
                position: 2,
            };
            sampler.sample_inputs(token_sampling).expect("no grammar")
        };
        let greedy = TokenSampling {
            sampling: Sampling::GREEDY,
            position: 0,
        };
        let inputs = vec![
            (0, SampleInputs::plain(greedy)),
            (1, sample_inputs(Sampling::GREEDY, &spec)),
            (2, sample_inputs(penalties, &SamplingSpec::default())),
            (1, sample_inputs(penalties, &spec)),
        ];
        let rows: Vec<Vec<f32>> = (0..3).map(|row| logits(row).collect()).collect();
        let array = Array::from_slice(&rows.concat(), &[3, 300]);
        let cpu = Stream::new_with_device(&Device::cpu());
        let expected: Vec<Sampled> = inputs
            .iter()
            .map(|(row, sample_inputs)| sample_inputs.from_logits(&rows[*row as usize]))
            .collect();
        let kernels = crate::device::bridge::available().then_some(&cpu);
        for kernels in [None, kernels] {
            let sampled = with_stream(&cpu, || sample_tokens(&array, inputs.clone(), kernels));
            let found = sampled
                .expect("the graph is built")
                .read()
                .expect("the tokens are computed");
            assert_eq!(found, expected);
        }
    }
}
