//! A step with random numbers.

use half::{bf16, f16};
use motet_formats::simd::InstructionSet;
use motet_model::CacheKind;

use super::super::super::pool::Pool;
use super::super::*;
use crate::cached_int8::Int8;

pub(super) const ORDERS: [Order; 2] = [Order::PerStep, Order::PerSequence];

/// A type of cached keys and values, with a conversion of its own, number by number.
pub(super) trait CachedNumber: CacheNumber + PartialEq {
    const KIND: CacheKind;
    /// A row of these numbers.
    fn row_of(numbers: &[f32]) -> Vec<Self>;
    /// The `dim` numbers of a row.
    fn wide(row: &[Self], dim: usize) -> Vec<f32>;
    /// The error that rounding may cause in a number of a row.
    fn rounding(row: &[f32], index: usize) -> f32;
}

impl CachedNumber for f32 {
    const KIND: CacheKind = CacheKind::F32;

    fn row_of(numbers: &[f32]) -> Vec<f32> {
        numbers.to_vec()
    }

    fn wide(row: &[f32], _: usize) -> Vec<f32> {
        row.to_vec()
    }

    fn rounding(_: &[f32], _: usize) -> f32 {
        0.0
    }
}

impl CachedNumber for bf16 {
    const KIND: CacheKind = CacheKind::Bf16;

    fn row_of(numbers: &[f32]) -> Vec<bf16> {
        numbers.iter().map(|x| bf16::from_f32(*x)).collect()
    }

    fn wide(row: &[bf16], _: usize) -> Vec<f32> {
        row.iter().map(|x| x.to_f32()).collect()
    }

    fn rounding(row: &[f32], index: usize) -> f32 {
        row[index].abs() / 256.0
    }
}

impl CachedNumber for f16 {
    const KIND: CacheKind = CacheKind::F16;

    fn row_of(numbers: &[f32]) -> Vec<f16> {
        let clamped = numbers.iter().map(|x| x.clamp(-65_504.0, 65_504.0));
        clamped.map(f16::from_f32).collect()
    }

    fn wide(row: &[f16], _: usize) -> Vec<f32> {
        row.iter().map(|x| x.to_f32()).collect()
    }

    fn rounding(row: &[f32], index: usize) -> f32 {
        row[index].abs() / 2_048.0
    }
}

impl CachedNumber for Int8 {
    const KIND: CacheKind = CacheKind::Int8;

    fn row_of(numbers: &[f32]) -> Vec<Int8> {
        let mut row = Vec::new();
        for group in numbers.chunks(32) {
            let scale = scale_of(group);
            row.extend(scale.to_bits().to_le_bytes().map(Int8));
            let code = |x: &f32| (x / scale.to_f32()).round_ties_even() as i8;
            row.extend(group.iter().map(|x| Int8(code(x) as u8)));
        }
        row.resize(row.len().next_multiple_of(4), Int8(0));
        row
    }

    fn wide(row: &[Int8], dim: usize) -> Vec<f32> {
        let groups = row.chunks(34).flat_map(|group| {
            let (scale, codes) = group.split_at(2);
            let scale = bf16::from_le_bytes([scale[0].0, scale[1].0]).to_f32();
            codes
                .iter()
                .map(move |code| f32::from(code.0 as i8) * scale)
        });
        groups.take(dim).collect()
    }

    /// Half a step, and as much again of the largest number as the scale is rounded up.
    fn rounding(row: &[f32], index: usize) -> f32 {
        let group = row.chunks(32).nth(index / 32).expect("the number's group");
        let largest = group
            .iter()
            .fold(0.0_f32, |largest, x| largest.max(x.abs()));
        largest * (1.0 + 1.0 / 128.0) / 254.0
    }
}

/// The smallest scale by which all codes of a group are at most 127.
fn scale_of(group: &[f32]) -> bf16 {
    if group.iter().any(|x| !x.is_finite()) {
        return bf16::NAN;
    }
    let largest = group
        .iter()
        .fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let exact = largest / 127.0;
    let nearest = bf16::from_f32(exact);
    if nearest.to_f32() < exact {
        bf16::from_bits(nearest.to_bits() + 1)
    } else {
        nearest
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
        let rows = |seed| {
            let numbers = numbers(count, seed);
            numbers.chunks(heads.dim).flat_map(N::row_of).collect()
        };
        Buffer {
            keys: rows(seed),
            values: rows(seed + 1),
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

    /// The same numbers in `f32`.
    pub(super) fn wide(&self, heads: Heads) -> Buffer<f32> {
        let wide = |of: &[N]| {
            let rows = of.chunks(N::row_len(heads.dim));
            rows.flat_map(|row| N::wide(row, heads.dim)).collect()
        };
        Buffer {
            keys: wide(&self.keys),
            values: wide(&self.values),
            capacity: self.capacity,
        }
    }

    /// The row of keys, or of values, of one head of a token.
    pub(super) fn row<'a>(
        &self,
        of: &'a [N],
        heads: Heads,
        kv_head: usize,
        token: usize,
    ) -> &'a [N] {
        let len = N::row_len(heads.dim);
        &of[(kv_head * self.capacity + token) * len..][..len]
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
