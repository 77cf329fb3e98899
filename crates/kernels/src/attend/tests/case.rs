//! A step with random numbers.

use half::{bf16, f16};
use motet_model::FloatKind;

use super::super::super::pool::Pool;
use super::super::super::simd::{InstructionSet, Number};
use super::super::*;

pub(super) const ORDERS: [Order; 2] = [Order::PerStep, Order::PerSequence];

/// A type of cached keys and values.
pub(super) trait CachedNumber: Number + PartialEq {
    const KIND: FloatKind;
    /// Relative error that rounding may cause in a number.
    const ROUNDING: f32;
    fn of(x: f32) -> Self;
    fn wide(self) -> f32;
}

impl CachedNumber for f32 {
    const KIND: FloatKind = FloatKind::F32;
    const ROUNDING: f32 = 0.0;

    fn of(x: f32) -> f32 {
        x
    }

    fn wide(self) -> f32 {
        self
    }
}

impl CachedNumber for bf16 {
    const KIND: FloatKind = FloatKind::Bf16;
    const ROUNDING: f32 = 1.0 / 256.0;

    fn of(x: f32) -> bf16 {
        bf16::from_f32(x)
    }

    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl CachedNumber for f16 {
    const KIND: FloatKind = FloatKind::F16;
    const ROUNDING: f32 = 1.0 / 2_048.0;

    fn of(x: f32) -> f16 {
        f16::from_f32(x.clamp(-65_504.0, 65_504.0))
    }

    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// Keys and values of some tokens, `[kv heads, capacity, dim]` each.
#[derive(Clone, PartialEq)]
pub(super) struct Buffer<N> {
    pub(super) keys: Vec<N>,
    pub(super) values: Vec<N>,
    pub(super) capacity: usize,
}

impl<N: CachedNumber> Buffer<N> {
    pub(super) fn new(heads: Heads, capacity: usize, seed: u64) -> Buffer<N> {
        let count = heads.kv * capacity * heads.dim;
        let cached_numbers = |seed| numbers(count, seed).into_iter().map(N::of).collect();
        Buffer {
            keys: cached_numbers(seed),
            values: cached_numbers(seed + 1),
            capacity,
        }
    }

    pub(super) fn read(&self) -> Cache<'_, N> {
        Cache {
            keys: &self.keys,
            values: &self.values,
            capacity: self.capacity,
        }
    }

    pub(super) fn write(&mut self) -> CacheMut<'_, N> {
        CacheMut {
            keys: &mut self.keys,
            values: &mut self.values,
            capacity: self.capacity,
        }
    }

    /// The same numbers in another type.
    pub(super) fn converted<M: CachedNumber>(&self) -> Buffer<M> {
        let cached_numbers = |of: &[N]| of.iter().map(|x| M::of(x.wide())).collect();
        Buffer {
            keys: cached_numbers(&self.keys),
            values: cached_numbers(&self.values),
            capacity: self.capacity,
        }
    }

    pub(super) fn row(&self, of: &[N], heads: Heads, kv_head: usize, token: usize) -> Vec<f64> {
        let from = (kv_head * self.capacity + token) * heads.dim;
        of[from..from + heads.dim]
            .iter()
            .map(|x| f64::from(x.wide()))
            .collect()
    }
}

/// Numbers without a pattern, from -1 to 1.
pub(super) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A step with everything that it needs.
pub(super) struct Case<N> {
    pub(super) attention: Attention,
    pub(super) spans: Vec<SpanRange>,
    pub(super) packed: Vec<f32>,
    /// Weights of the queries' and of the keys' norms, and sinks; empty where there are none.
    pub(super) query_norm: Vec<f32>,
    pub(super) key_norm: Vec<f32>,
    pub(super) sinks: Vec<f32>,
    pub(super) segments: Vec<Buffer<N>>,
    pub(super) tails: Vec<Buffer<N>>,
}

impl<N: CachedNumber> Case<N> {
    /// Spans whose paths are made of segments of `lengths`.
    pub(super) fn new(
        mut attention: Attention,
        lengths: &[usize],
        spans: &[(&[usize], usize, usize)],
    ) -> Case<N> {
        attention.cached = N::KIND;
        let heads = attention.heads;
        let spans: Vec<SpanRange> = spans
            .iter()
            .map(|&(path, tokens, rows)| {
                let mut start = 0;
                let part = |&segment: &usize| {
                    start += lengths[segment];
                    let tokens = lengths[segment];
                    PartRange {
                        segment,
                        start: start - tokens,
                        tokens,
                    }
                };
                let path = path.iter().map(part).collect();
                SpanRange {
                    rows,
                    path,
                    tail: TailRange { start, tokens },
                }
            })
            .collect();
        let rows = spans.iter().map(|span| span.rows).sum::<usize>();
        let segment =
            |(i, &tokens): (usize, &usize)| Buffer::new(heads, tokens + i % 3, 10 + i as u64);
        let tail = |(i, span): (usize, &SpanRange)| {
            Buffer::new(heads, span.tail.tokens + span.rows + i % 2, 100 + i as u64)
        };
        let affine = |count, seed, [middle, width]: [f32; 2]| -> Vec<f32> {
            let numbers = numbers(count, seed).into_iter();
            numbers.map(|x| middle + width * x).collect()
        };
        let [of_queries, of_keys] = match attention.extras.qk_norm {
            QkNorm::None => [0; 2],
            QkNorm::PerHead { .. } => [heads.dim; 2],
            QkNorm::WholeRow { .. } => [heads.query, heads.kv].map(|count| count * heads.dim),
        };
        let sinks = if attention.extras.sinks {
            heads.query
        } else {
            0
        };
        Case {
            packed: affine(rows * attention.row_width(), 1, [0.0, 3.0]),
            query_norm: affine(of_queries, 2, [1.0, 0.7]),
            key_norm: affine(of_keys, 3, [1.0, 0.7]),
            sinks: affine(sinks, 4, [1.0, 5.0]),
            segments: lengths.iter().enumerate().map(segment).collect(),
            tails: spans.iter().enumerate().map(tail).collect(),
            attention,
            spans,
        }
    }

    pub(super) fn layer(&self) -> LayerInputs<'_> {
        fn given(numbers: &[f32]) -> Option<&[f32]> {
            (!numbers.is_empty()).then_some(numbers)
        }
        LayerInputs {
            packed: &self.packed,
            query_norm: given(&self.query_norm),
            key_norm: given(&self.key_norm),
            sinks: given(&self.sinks),
        }
    }

    /// Output and tails, as `attend` computes them.
    pub(super) fn run(
        &self,
        order: Order,
        set: InstructionSet,
        threads: usize,
    ) -> (Vec<f32>, Vec<Buffer<N>>) {
        let attention = self.attention.clone();
        let plan = AttendPlan::for_machine(attention, &self.spans, order, set, threads);
        let mut tails = self.tails.clone();
        let mut output = vec![f32::NAN; plan.query_numbers()];
        let mut views: Vec<CacheMut<'_, N>> = tails.iter_mut().map(Buffer::write).collect();
        let segments: Vec<Cache<'_, N>> = self.segments[..plan.segments()]
            .iter()
            .map(Buffer::read)
            .collect();
        attend(
            &Pool::new(threads),
            &plan,
            self.layer(),
            &segments,
            &mut views,
            &mut output,
        );
        (output, tails)
    }
}
