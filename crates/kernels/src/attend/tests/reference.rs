//! Attention in double precision, from its definition.

use motet_formats::simd::InstructionSet;

use super::super::*;
use super::case::{Buffer, CachedNumber, Case, ORDERS};

/// The definition, with a mistake where a test asks for one.
#[derive(Clone)]
pub(super) struct Reference<'a, N> {
    pub(super) case: &'a Case<N>,
    pub(super) attention: Attention,
    pub(super) mistake: Option<Mistake>,
}

/// Something that a kernel could get wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mistake {
    NormAfterRotation,
    NormWithoutWeights,
    NormWithoutEpsilon,
    NormOfKeysWithTheWeightsOfQueries,
    ClipBeforeNorm,
    ClipWithoutValues,
    SinkTwice,
    SinkScaled,
    SinkOfTheKvHead,
    SinkAsExponentOfTwo,
    CapOfUnscaledScores,
    CapAsExponentOfTwo,
    CapAfterMask,
    PositionScaleOfTheNextPosition,
    PositionScaleNotInSteps,
    PositionScaleOfKeysToo,
    RowsWithoutTrailingColumns,
}

/// One cached token as a query sees it.
struct Seen {
    score: f64,
    value: Vec<f64>,
}

impl<N: CachedNumber> Reference<'_, N> {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        let width = if self.has(Mistake::RowsWithoutTrailingColumns) {
            self.attention.heads.packed()
        } else {
            self.attention.row_width()
        };
        self.case.packed.chunks_exact(width)
    }

    /// Head `index` of a row's queries, or keys, normalised, clipped and rotated.
    fn head(&self, all: &[f32], weights: &[f32], index: usize, position: usize) -> Vec<f64> {
        let dim = self.attention.heads.dim;
        let head = index * dim..(index + 1) * dim;
        let clip_first = self.has(Mistake::ClipBeforeNorm);
        let rotate_first = self.has(Mistake::NormAfterRotation);
        let wide = |numbers: &[f32]| -> Vec<f64> {
            let clipped = |x: &f32| self.clipped_if(clip_first, f64::from(*x));
            numbers.iter().map(clipped).collect()
        };
        let rotated_if = |rotate: bool, numbers: Vec<f64>| {
            if rotate {
                self.rotated(numbers, position)
            } else {
                numbers
            }
        };
        let own = rotated_if(rotate_first, wide(&all[head.clone()]));
        let plain = vec![1.0_f32; dim];
        let (epsilon, mean, weights) = match self.attention.extras.qk_norm {
            QkNorm::None => (0.0, 1.0, &plain[..]),
            QkNorm::PerHead { epsilon } => (epsilon, mean_square(&own), weights),
            QkNorm::WholeRow { epsilon } => (epsilon, mean_square(&wide(all)), &weights[head]),
        };
        let weights = if self.has(Mistake::NormWithoutWeights) {
            &plain
        } else {
            weights
        };
        let epsilon = if self.has(Mistake::NormWithoutEpsilon) {
            0.0
        } else {
            f64::from(epsilon)
        };
        let factor = (mean + epsilon).sqrt().recip();
        let normed = own.iter().zip(weights);
        let normed = normed.map(|(x, weight)| x * factor * f64::from(*weight));
        let normed = normed.map(|x| self.clipped_if(!clip_first, x)).collect();
        rotated_if(!rotate_first, normed)
    }

    fn clipped_if(&self, clip: bool, x: f64) -> f64 {
        match self.attention.extras.clip {
            Some(most) if clip => x.clamp(-f64::from(most), f64::from(most)),
            _ => x,
        }
    }

    fn rotated(&self, mut to: Vec<f64>, position: usize) -> Vec<f64> {
        let frequencies = &self.attention.rotary.inverse_frequencies;
        let magnitude = f64::from(self.attention.rotary.magnitude);
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            let (x, y) = (to[i], to[i + frequencies.len()]);
            to[i] = magnitude * (x * cos - y * sin);
            to[i + frequencies.len()] = magnitude * (y * cos + x * sin);
        }
        to
    }

    fn position_scale(&self, position: usize) -> f64 {
        let Some(PositionScale {
            beta,
            original_tokens,
        }) = self.attention.extras.position_scale
        else {
            return 1.0;
        };
        let position = position + usize::from(self.has(Mistake::PositionScaleOfTheNextPosition));
        let times = position as f64 / original_tokens as f64;
        let times = if self.has(Mistake::PositionScaleNotInSteps) {
            times
        } else {
            times.floor()
        };
        1.0 + f64::from(beta) * times.ln_1p()
    }

    /// The tails with the step's keys and values, not rounded.
    pub(super) fn appended(&self) -> Vec<Buffer<f32>> {
        let heads = self.attention.heads;
        let tails = self.case.tails.iter().map(|tail| tail.wide(heads));
        let mut tails: Vec<Buffer<f32>> = tails.collect();
        let clip_values = !self.has(Mistake::ClipWithoutValues);
        let weights = if self.has(Mistake::NormOfKeysWithTheWeightsOfQueries) {
            &self.case.query_norm
        } else {
            &self.case.key_norm
        };
        let mut rows = self.rows();
        for (span, tail) in self.case.spans.iter().zip(&mut tails) {
            for index in 0..span.rows {
                let rest = &rows.next().unwrap()[heads.query * heads.dim..];
                let (keys, values) = rest.split_at(heads.kv * heads.dim);
                let token = span.tail.tokens + index;
                let position = span.tail.start + token;
                let scale = if self.has(Mistake::PositionScaleOfKeysToo) {
                    self.position_scale(position)
                } else {
                    1.0
                };
                for kv_head in 0..heads.kv {
                    let at = (kv_head * tail.capacity + token) * heads.dim;
                    let key = self.head(keys, weights, kv_head, position);
                    let key = key.iter().map(|x| (x * scale) as f32);
                    let value = &values[kv_head * heads.dim..][..heads.dim];
                    let value = value.iter().map(|x| f64::from(*x));
                    let value = value.map(|x| self.clipped_if(clip_values, x) as f32);
                    for (i, (key, value)) in key.zip(value).enumerate() {
                        tail.keys[at + i] = key;
                        tail.values[at + i] = value;
                    }
                }
            }
        }
        tails
    }

    /// The output, one row after another, for the given tails.
    pub(super) fn attended(&self, tails: &[Buffer<N>]) -> Vec<f64> {
        let heads = self.attention.heads;
        let [segments, tails] = [&self.case.segments[..], tails].map(|all| {
            let wide = all.iter().map(|buffer| buffer.wide(heads));
            wide.collect::<Vec<Buffer<f32>>>()
        });
        let mut output = Vec::new();
        let mut rows = self.rows();
        for (span, tail) in self.case.spans.iter().zip(&tails) {
            for index in 0..span.rows {
                let queries = &rows.next().unwrap()[..heads.query * heads.dim];
                let position = span.tail.start + span.tail.tokens + index;
                for head in 0..heads.query {
                    let query = self.head(queries, &self.case.query_norm, head, position);
                    let scale = self.position_scale(position);
                    let query: Vec<f64> = query.iter().map(|x| x * scale).collect();
                    let kv_head = head / heads.per_kv();
                    let seen = self.seen(&segments, span, tail, kv_head, position, &query);
                    output.extend(self.weighed(&seen, head));
                }
            }
        }
        output
    }

    /// The tokens that a query sees.
    fn seen(
        &self,
        segments: &[Buffer<f32>],
        span: &SpanRange,
        tail: &Buffer<f32>,
        kv_head: usize,
        position: usize,
        query: &[f64],
    ) -> Vec<Seen> {
        let heads = self.attention.heads;
        let parts = span
            .path
            .iter()
            .map(|part| (&segments[part.segment], part.start, part.tokens));
        let own = (tail, span.tail.start, position + 1 - span.tail.start);
        let window = self.attention.window.unwrap_or(usize::MAX);
        let mut seen = Vec::new();
        for (buffer, start, tokens) in parts.chain([own]) {
            for token in 0..tokens {
                let numbers = |of| buffer.row(of, heads, kv_head, token).iter();
                let key = numbers(&buffer.keys).map(|x| f64::from(*x));
                let value = numbers(&buffer.values).map(|x| f64::from(*x)).collect();
                let score = self.capped(key.zip(query).map(|(k, q)| k * q).sum());
                if position - (start + token) < window {
                    seen.push(Seen { score, value });
                } else if let (true, Some(cap)) = (
                    self.has(Mistake::CapAfterMask),
                    self.attention.extras.softcap,
                ) {
                    let score = -f64::from(cap);
                    seen.push(Seen { score, value });
                }
            }
        }
        seen
    }

    /// The score of a product.
    fn capped(&self, product: f64) -> f64 {
        let scale = f64::from(self.attention.scale);
        let Some(cap) = self.attention.extras.softcap.map(f64::from) else {
            return product * scale;
        };
        if self.has(Mistake::CapOfUnscaledScores) {
            return scale * cap * (product / cap).tanh();
        }
        let cap = if self.has(Mistake::CapAsExponentOfTwo) {
            cap * std::f64::consts::LN_2
        } else {
            cap
        };
        cap * (product * scale / cap).tanh()
    }

    /// The weighted mean of the values.
    fn weighed(&self, seen: &[Seen], head: usize) -> Vec<f64> {
        let heads = self.attention.heads;
        let sink = self.attention.extras.sinks.then(|| {
            let of_kv = self.has(Mistake::SinkOfTheKvHead);
            let head = if of_kv { head / heads.per_kv() } else { head };
            let sink = f64::from(self.case.sinks[head]);
            match self.mistake {
                Some(Mistake::SinkScaled) => sink * f64::from(self.attention.scale),
                Some(Mistake::SinkAsExponentOfTwo) => sink * std::f64::consts::LN_2,
                _ => sink,
            }
        });
        let scores = seen.iter().map(|seen| seen.score).chain(sink);
        let largest = scores.clone().fold(f64::MIN, f64::max);
        let mut total: f64 = scores.map(|score| (score - largest).exp()).sum();
        if self.has(Mistake::SinkTwice) {
            total += sink.map_or(0.0, |sink| (sink - largest).exp());
        }
        let weighed = |i: usize| -> f64 {
            seen.iter()
                .map(|seen| (seen.score - largest).exp() * seen.value[i])
                .sum()
        };
        (0..heads.dim).map(|i| weighed(i) / total).collect()
    }
}

fn mean_square(numbers: &[f64]) -> f64 {
    numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64
}

impl<N: CachedNumber> Case<N> {
    pub(super) fn reference(&self) -> Reference<'_, N> {
        Reference {
            case: self,
            attention: self.attention.clone(),
            mistake: None,
        }
    }

    pub(super) fn check(&self) {
        if let Err(why) = self.compare(&self.reference()) {
            panic!("{:?}, {:?}: {why}", N::KIND, self.attention.extras);
        }
    }

    /// Compares the kernels on every instruction set with a reference.
    pub(super) fn compare(&self, reference: &Reference<'_, N>) -> Result<(), String> {
        let appended = reference.appended();
        // Cached numbers depend on nothing but the instruction set.
        let mut known: Option<(Vec<Buffer<N>>, Vec<f64>)> = None;
        for &set in InstructionSet::available() {
            for (order, threads) in ORDERS
                .into_iter()
                .flat_map(|order| [1, 2, 5].map(|n| (order, n)))
            {
                let how = format!("{set:?}, {order:?}, {threads} threads");
                let (output, tails) = self.run(order, set, threads);
                let is_known = |known: &(Vec<Buffer<N>>, Vec<f64>)| known.0 == tails;
                if !known.as_ref().is_some_and(is_known) {
                    self.compare_tails(&tails, &appended)
                        .map_err(|why| format!("{how}, {why}"))?;
                    // Computed from the cached numbers, since a number between two may be
                    // rounded to either.
                    known = Some((tails.clone(), reference.attended(&tails)));
                }
                let (_, expected) = known
                    .as_ref()
                    .expect("the expected output was just computed");
                for (index, (y, expected)) in output.iter().zip(expected).enumerate() {
                    let error = (f64::from(*y) - expected).abs();
                    if error.is_nan() || error >= 1e-5 {
                        return Err(format!("{how}, {index}: {y}, not {expected}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares tails with the expected numbers. The rows that a step does not append are the same
    /// as before.
    fn compare_tails(&self, tails: &[Buffer<N>], appended: &[Buffer<f32>]) -> Result<(), String> {
        let heads = self.attention.heads;
        let before = self.spans.iter().zip(&self.tails);
        for ((span, before), (tail, expected)) in before.zip(tails.iter().zip(appended)) {
            let new = span.tail.tokens..span.tail.tokens + span.rows;
            for (kv_head, token) in (0..heads.kv).flat_map(|head| {
                let tokens = 0..tail.capacity;
                tokens.map(move |token| (head, token))
            }) {
                let [key, value] =
                    [&tail.keys, &tail.values].map(|of| tail.row(of, heads, kv_head, token));
                if !new.contains(&token) {
                    let before = [&before.keys, &before.values]
                        .map(|of| tail.row(of, heads, kv_head, token));
                    if [key, value] != before {
                        return Err(format!("token {token} has changed"));
                    }
                    continue;
                }
                let expected_value = expected.row(&expected.values, heads, kv_head, token);
                if value != N::row_of(expected_value) {
                    return Err("the values differ".into());
                }
                compare_keys(key, expected.row(&expected.keys, heads, kv_head, token))?;
            }
        }
        Ok(())
    }
}

fn compare_keys<N: CachedNumber>(keys: &[N], expected: &[f32]) -> Result<(), String> {
    let found = N::wide(keys, expected.len());
    for (index, (key, expected_key)) in found.iter().zip(expected).enumerate() {
        let error = (key - expected_key).abs();
        let rounding = N::rounding(expected, index);
        if error.is_nan() || error >= 2e-6 + 1e-6 * expected_key.abs() + rounding {
            return Err(format!("key {key}, not {expected_key}"));
        }
    }
    Ok(())
}
