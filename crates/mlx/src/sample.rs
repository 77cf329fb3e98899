//! Drawing tokens on the device, all rows of a step in one graph.
//!
//! Follows [`sampling`](motet_model::sampling) to the letter: on the CPU by its
//! own code over a kernel's passes; elsewhere composed of operations. Rows pay for what they
//! ask only: a greedy row for the place of its maximum, a row without top-k
//! and top-p for no sorting, a row with top-k for sorting that many.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{argmax_axis, take_axis, topk_axis};
use mlx_rs::{Array, Dtype, Stream, ops};

use super::bridge::{Kernel, View, ViewMut, apply};
use super::ops::concatenate;
use super::profile::Made;
use crate::error::MlxError;
use motet_core::protocol::{Draw, Readout, Sampling, TokenLogprobs};
use motet_model::sampling::{Drawing, Drawn, logprobs_of};

/// Tokens of all draws, still on the device.
#[derive(Debug)]
pub(super) struct Tokens {
    /// `[draws]`, unsigned 32-bit.
    pub(super) tokens: Array,
    /// Where in `tokens` each draw's token is.
    pub(super) places: Vec<usize>,
    logprobs: Logprobs,
}

/// How likely tokens were, of draws that want to know.
#[derive(Debug)]
enum Logprobs {
    Unwanted,
    /// The kernel notes them, in the order of the draws.
    Noted(Arc<Mutex<Vec<Option<TokenLogprobs>>>>),
    /// The host reckons them from the logits: each draw's row, and how many alternatives
    /// it wants.
    FromLogits(Array, Vec<(u32, Option<usize>)>),
}

impl Tokens {
    /// Waits for the tokens and reads them, in the order of the draws.
    pub(super) fn read(self) -> Result<Vec<Readout>, MlxError> {
        let tokens = self.tokens.try_as_slice::<u32>()?;
        let tokens: Vec<u32> = self.places.iter().map(|place| tokens[*place]).collect();
        let logprobs = match self.logprobs {
            Logprobs::Unwanted => vec![None; tokens.len()],
            Logprobs::Noted(noted) => std::mem::take(&mut *lock(&noted)),
            Logprobs::FromLogits(logits, wanted) => {
                let vocab = logits.dim(1) as usize;
                let logits = logits.try_as_slice::<f32>()?;
                let logprobs = wanted.iter().zip(&tokens).map(|((row, top), token)| {
                    let row = &logits[*row as usize * vocab..][..vocab];
                    logprobs_of(row, *token, (*top)?)
                });
                logprobs.collect()
            }
        };
        let drawn = tokens.into_iter().zip(logprobs);
        Ok(drawn
            .map(|(token, logprobs)| Readout::from(Drawn { token, logprobs }))
            .collect())
    }
}

impl Made for Tokens {
    fn arrays(&self) -> Vec<&Array> {
        vec![&self.tokens]
    }
}

fn lock<T>(noted: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while the lock is held.
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a row must pay for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cost {
    Greedy,
    /// Exponentials and a sum.
    Unsorted,
    /// Also sorting as many logits as the largest top-k.
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

/// Draws one token for each of `draws`, from the given rows of `logits`, by this
/// crate's kernel where there is a stream for it. `draws` is not empty.
pub(super) fn draw(
    logits: &Array,
    draws: Vec<(u32, Drawing)>,
    kernels: Option<&Stream>,
) -> Result<Tokens, Exception> {
    let wants = draws.iter().any(|(_, draw)| draw.logprobs().is_some());
    let Some(stream) = kernels else {
        let logprobs = match wants {
            false => Logprobs::Unwanted,
            true => {
                let rows = draws.iter().map(|(row, draw)| (*row, draw.logprobs()));
                Logprobs::FromLogits(logits.clone(), rows.collect())
            }
        };
        let (tokens, places) = composed(logits, &draws)?;
        return Ok(Tokens {
            tokens,
            places,
            logprobs,
        });
    };
    let count = draws.len();
    let noted = wants.then(|| Arc::new(Mutex::new(Vec::new())));
    let kernel = DrawTokens {
        draws,
        noted: noted.clone(),
    };
    let tokens = apply(kernel, &[logits], &[&[count as i32]], stream)?.swap_remove(0);
    Ok(Tokens {
        tokens: tokens.as_dtype(Dtype::Uint32)?,
        places: (0..count).collect(),
        logprobs: noted.map_or(Logprobs::Unwanted, Logprobs::Noted),
    })
}

/// [`Drawing::from_logits`] in the graph. Token ids pass through single precision,
/// which has every whole number up to 2^24, more than any vocabulary.
struct DrawTokens {
    draws: Vec<(u32, Drawing)>,
    noted: Option<Arc<Mutex<Vec<Option<TokenLogprobs>>>>>,
}

impl Kernel for DrawTokens {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let logits = &inputs[0];
        let vocab = logits.shape[1];
        let drawn = motet_kernels::draw_rows(&logits.data, vocab, &self.draws);
        for (drawn, token) in drawn.iter().zip(&mut *outputs[0].data) {
            *token = drawn.token as f32;
        }
        if let Some(noted) = &self.noted {
            *lock(noted) = drawn.into_iter().map(|drawn| drawn.logprobs).collect();
        }
    }
}

/// The tokens, and where each draw's is among them.
fn composed(logits: &Array, drawings: &[(u32, Drawing)]) -> Result<(Array, Vec<usize>), Exception> {
    let (logits, draws) = adjusted(logits, drawings)?;
    let (logits, draws) = (&logits, &draws[..]);
    let mut order: Vec<usize> = (0..draws.len()).collect();
    order.sort_by_key(|draw| Cost::of(&draws[*draw].1.sampling));
    let mut places = vec![0; draws.len()];
    for (place, draw) in order.iter().enumerate() {
        places[*draw] = place;
    }
    let groups =
        order.chunk_by(|a, b| Cost::of(&draws[*a].1.sampling) == Cost::of(&draws[*b].1.sampling));
    let tokens = groups
        .map(|group| {
            let group: Vec<(u32, Draw)> = group.iter().map(|draw| draws[*draw]).collect();
            let logits = rows(logits, &group)?;
            match Cost::of(&group[0].1.sampling) {
                Cost::Greedy => argmax_axis(&logits, -1, false),
                cost => Group::new(&group).sample(&logits, cost),
            }
        })
        .collect::<Result<_, Exception>>()?;
    Ok((concatenate(tokens, 0)?, places))
}

/// Logits with the rows of draws that change them below the rest, and each draw with the
/// row that is its own then.
fn adjusted(
    logits: &Array,
    drawings: &[(u32, Drawing)],
) -> Result<(Array, Vec<(u32, Draw)>), Exception> {
    let (rows, vocab) = (logits.dim(0), logits.dim(1));
    let mut parts = vec![logits.clone()];
    let mut draws = Vec::with_capacity(drawings.len());
    for (row, drawing) in drawings {
        let mut row = *row;
        if let Some(adjustments) = drawing.adjustments(vocab as usize) {
            let vector = |numbers: &[f32]| Array::from_slice(numbers, &[1, vocab]);
            let repetition = vector(&adjustments.repetition);
            let from = row as i32;
            let raw = super::ops::slice(logits, [from, 0], [from + 1, vocab])?
                .add(vector(&adjustments.bias))?;
            let above = raw.gt(Array::from_f32(0.0))?;
            let penalized =
                ops::select(above, raw.divide(&repetition)?, raw.multiply(&repetition)?)?;
            row = (rows as usize + parts.len() - 1) as u32;
            parts.push(penalized.add(vector(&adjustments.shift))?);
        }
        draws.push((row, *drawing.draw()));
    }
    Ok((concatenate(parts, 0)?, draws))
}

/// The group's rows of `logits`; `logits` itself when that is all of it in order.
fn rows(logits: &Array, group: &[(u32, Draw)]) -> Result<Array, Exception> {
    let rows: Vec<u32> = group.iter().map(|(row, _)| *row).collect();
    if rows.len() == logits.dim(0) as usize && rows.is_sorted() {
        return Ok(logits.clone());
    }
    take_axis(logits, Array::from_slice(&rows, &[rows.len() as i32]), 0)
}

/// Parameters of rows that draw together, `[rows, 1]` each.
struct Group {
    temperature: Array,
    top_k: Array,
    top_k_max: usize,
    top_p: Array,
    min_p: Array,
    uniform: Array,
}

impl Group {
    fn new(draws: &[(u32, Draw)]) -> Self {
        let column = |of: fn(&Draw) -> f32| {
            Array::from_iter(
                draws.iter().map(|(_, draw)| of(draw)),
                &[draws.len() as i32, 1],
            )
        };
        let top_k = |draw: &Draw| draw.sampling.top_k;
        Self {
            temperature: column(|draw| draw.sampling.temperature),
            top_k: column(|draw| draw.sampling.top_k as f32),
            top_k_max: draws.iter().map(|(_, draw)| top_k(draw)).max().unwrap_or(0) as usize,
            // No limit lets through what rounding would not.
            top_p: column(|draw| match draw.sampling.top_p {
                limit if limit < 1.0 => limit,
                _ => f32::INFINITY,
            }),
            min_p: column(|draw| draw.sampling.min_p),
            uniform: column(Draw::uniform),
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
        let nothing = Array::from_f32(0.0);
        let taking_part = ops::select(weights.ge(&threshold)?, &weights, &nothing)?;
        let reached = taking_part.cumsum(-1, false, true)?;
        let total = super::ops::slice(&reached, [0, vocab - 1], [reached.dim(0), vocab])?;
        let below = reached.le(self.uniform.multiply(total)?)?;
        below
            .as_dtype(Dtype::Uint32)?
            .sum_axis(-1, false)?
            .as_dtype(Dtype::Uint32)
    }

    /// `exp((logits - top) / temperature)`.
    fn weights(&self, logits: &Array, top: &Array) -> Result<Array, Exception> {
        logits.subtract(top)?.divide(&self.temperature)?.exp()
    }

    /// The least weight that takes part, `[rows, 1]`, from weights among which are
    /// all that may.
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
    use motet_core::protocol::DrawSpec;
    use motet_model::sampling::{Drawer, sample_row, weights};

    /// Every token must be one that takes part, and its share of the distribution
    /// must hold the uniform number, up to rounding.
    fn check(logits: &[Vec<f32>], samplings: &[Sampling], index: u64) {
        let draws: Vec<(u32, Draw)> = (0..)
            .zip(samplings)
            .map(|(row, sampling)| (row, *sampling))
            .map(|(row, sampling)| (row, Draw { sampling, index }))
            .collect();
        let shape = [logits.len() as i32, logits[0].len() as i32];
        let array = Array::from_slice(&logits.concat(), &shape);
        let cpu = Stream::new_with_device(&Device::cpu());
        let drawings = draws.iter();
        let drawings = drawings.map(|(row, draw)| (*row, Drawing::plain(*draw)));
        let drawn = with_stream(&cpu, || draw(&array, drawings.collect(), None));
        let drawn = drawn.expect("a graph");
        let tokens = drawn.tokens.try_as_slice::<u32>().expect("tokens");
        for ((row, draw), place) in draws.iter().zip(&drawn.places) {
            let logits = &logits[*row as usize];
            let found = tokens[*place];
            assert!(
                found == sample_row(draw, logits) || is_within_rounding(draw, logits, found),
                "{draw:?}: {found}, not {}",
                sample_row(draw, logits)
            );
        }
    }

    fn is_within_rounding(draw: &Draw, logits: &[f32], found: u32) -> bool {
        let (weights, threshold) = weights(draw, logits);
        let taking_part = |weight: f32| f64::from(if weight < threshold { 0.0 } else { weight });
        let total: f64 = weights.iter().map(|weight| taking_part(*weight)).sum();
        let (before, at) = weights.split_at(found as usize);
        let below: f64 = before.iter().map(|weight| taking_part(*weight)).sum();
        let share = below / total..(below + taking_part(at[0])) / total;
        let uniform = f64::from(draw.uniform());
        !draw.sampling.is_greedy()
            && !share.is_empty()
            && (share.start - 1e-5..share.end + 1e-5).contains(&uniform)
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
        fn draws_are_the_reference_s(
            logits in prop::collection::vec(prop::collection::vec(-8.0f32..8.0, 40), 5),
            samplings in prop::collection::vec(sampling(), 5),
            index in 0u64..1000,
        ) {
            check(&logits, &samplings, index);
        }

        /// Few levels, so that filters end among equals.
        #[test]
        fn equals_are_let_through_together(
            logits in prop::collection::vec(prop::collection::vec(0i8..3, 40), 5),
            samplings in prop::collection::vec(sampling(), 5),
            index in 0u64..1000,
        ) {
            let row = |row: &Vec<i8>| row.iter().map(|level| f32::from(*level)).collect();
            check(&logits.iter().map(row).collect::<Vec<_>>(), &samplings, index);
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
        for index in 0..10 {
            check(&logits, &samplings, index);
        }
    }

    /// Changed rows beside plain ones, and probabilities, composed and by the host.
    #[test]
    fn more_than_plain_draws() {
        let logits =
            |row: u32| (0..300u32).map(move |id| ((id * 37 + row * 11) % 101) as f32 / 9.0);
        let spec = DrawSpec {
            bias: vec![(5, 20.0), (7, f32::NEG_INFINITY)],
            logprobs: Some(3),
            ..DrawSpec::default()
        };
        let penalties = Sampling {
            repetition_penalty: 1.5,
            presence_penalty: 0.5,
            ..Sampling::GREEDY
        };
        let drawing = |sampling: Sampling, spec: &DrawSpec| {
            let history: Vec<u32> = (0..60).collect();
            let mut drawer = Drawer::new(Arc::new(spec.clone()), sampling, &history, &[8, 8]);
            let draw = Draw { sampling, index: 2 };
            drawer.drawing(draw).expect("no grammar")
        };
        let greedy = Draw {
            sampling: Sampling::GREEDY,
            index: 0,
        };
        let drawings = vec![
            (0, Drawing::plain(greedy)),
            (1, drawing(Sampling::GREEDY, &spec)),
            (2, drawing(penalties, &DrawSpec::default())),
            (1, drawing(penalties, &spec)),
        ];
        let rows: Vec<Vec<f32>> = (0..3).map(|row| logits(row).collect()).collect();
        let array = Array::from_slice(&rows.concat(), &[3, 300]);
        let cpu = Stream::new_with_device(&Device::cpu());
        let expected: Vec<Readout> = drawings
            .iter()
            .map(|(row, drawing)| Readout::from(drawing.from_logits(&rows[*row as usize])))
            .collect();
        let kernels = crate::bridge::available().then_some(&cpu);
        for kernels in [None, kernels] {
            let drawn = with_stream(&cpu, || draw(&array, drawings.clone(), kernels));
            let found = drawn.expect("a graph").read().expect("tokens");
            assert_eq!(found, expected);
        }
    }
}
