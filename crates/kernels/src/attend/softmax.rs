//! The running softmax of both inner kernels, and the product with the values.

use std::f32::consts::LOG2_E;

use motet_formats::simd::{InstructionSet, Job, Number, Simd, dispatch_on, tanh};

use crate::products::line;

/// Initial value of the largest score: lower than every score, but finite, so that differences
/// are numbers.
pub(super) const LOWEST: f32 = -1e30;

/// The score of a hidden key. Its weight is zero in the kernel for few queries, and at most
/// 2^-126 in the one for many.
pub(super) const HIDDEN: f32 = f32::NEG_INFINITY;

/// A query's sum of weights with that of its head's sink, which is a score without a value. It is
/// called once for a query, with the largest score and the sum of all keys.
#[inline(always)]
pub(super) fn with_sink(largest: f32, total: f32, sink: Option<f32>) -> f32 {
    match sink {
        None => total,
        // Where the sink is far above all scores this is infinite, and the output zero.
        Some(sink) => total + (sink * LOG2_E - largest).exp2(),
    }
}

/// The softcap of a plan's scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Softcap {
    pub(super) cap: f32,
    pub(super) set: InstructionSet,
}

impl Softcap {
    /// Turns fractions of the softcap into scores, which are exponents of two. Hidden keys stay
    /// hidden. `scores` has a row in each `stride` numbers, of which the first `len` count.
    ///
    /// It is a function of its own, because its constants would take registers of the loops around
    /// it also in models without a softcap.
    #[inline(never)]
    pub(super) fn apply(self, scores: &mut [f32], stride: usize, len: usize) {
        let cap = self.cap * LOG2_E;
        let job = CapScores {
            cap,
            scores,
            stride,
            len,
        };
        dispatch_on(self.set, job);
    }
}

struct CapScores<'a> {
    cap: f32,
    scores: &'a mut [f32],
    stride: usize,
    len: usize,
}

impl Job for CapScores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let [cap, lowest] = [self.cap, LOWEST].map(|number| simd.splat(number));
        for row in self.scores.chunks_exact_mut(self.stride) {
            for scores in row[..self.len].chunks_exact_mut(S::LANES) {
                let fraction = simd.load_part(scores);
                let score = simd.mul(cap, tanh(simd, fraction));
                let score = simd.select_ge(lowest, fraction, fraction, score);
                simd.store_part(scores, score);
            }
        }
    }
}

/// Index of weight `(key, query)` among the weights of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) key: usize,
    pub(super) query: usize,
}

/// Rows of `dim` numbers, one for each key of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueRows<'a, N> {
    pub(super) rows: &'a [N],
    pub(super) dim: usize,
    /// Rows that are needed next, which are prefetched meanwhile.
    pub(super) ahead: &'a [N],
}

/// For each query: `values` becomes `values * factor + weights · rows`. `values` has `dim` numbers for
/// each of `factors`.
#[inline(always)]
pub(super) fn weigh<S: Simd, N: Number>(
    simd: S,
    weights: &[f32],
    layout: Layout,
    value_rows: ValueRows<'_, N>,
    factors: &[f32],
    values: &mut [f32],
) {
    let ValueRows {
        rows,
        dim,
        mut ahead,
    } = value_rows;
    let row_len = N::row_len(dim);
    let (keys, queries) = (rows.len() / row_len, factors.len());
    if keys == 0 || queries == 0 {
        return;
    }
    assert!((keys - 1) * layout.key + (queries - 1) * layout.query < weights.len());
    assert!(values.len() >= queries * dim && dim.is_multiple_of(S::LANES));
    let mut query = 0;
    while query < queries {
        let left = queries - query;
        let mut column = 0;
        while column < dim {
            let vectors = (dim - column) / S::LANES;
            let tile = Tile {
                weights: weights[query * layout.query..].as_ptr(),
                layout,
                rows: rows.as_ptr(),
                row_len,
                column,
                keys,
                dim,
                factors: factors[query..].as_ptr(),
                ahead,
                values: values[query * dim + column..].as_mut_ptr(),
            };
            // SAFETY: with `query + MR <= queries` and `column + NV * LANES <= dim` the checks
            // above cover everything that a tile touches.
            column += S::LANES
                * unsafe {
                    match (left, vectors, S::REGISTERS) {
                        (4.., 4.., 32) => tile.run::<S, 4, 4>(simd),
                        (4.., 2.., _) => tile.run::<S, 4, 2>(simd),
                        (4.., _, _) => tile.run::<S, 4, 1>(simd),
                        (3, 4.., 32) => tile.run::<S, 3, 4>(simd),
                        (3, 2.., _) => tile.run::<S, 3, 2>(simd),
                        (3, _, _) => tile.run::<S, 3, 1>(simd),
                        (2, 4.., 32) => tile.run::<S, 2, 4>(simd),
                        (2, 2.., _) => tile.run::<S, 2, 2>(simd),
                        (2, _, _) => tile.run::<S, 2, 1>(simd),
                        (_, 4.., _) => tile.run::<S, 1, 4>(simd),
                        (_, 2.., _) => tile.run::<S, 1, 2>(simd),
                        (_, _, _) => tile.run::<S, 1, 1>(simd),
                    }
                };
        }
        query += left.min(4);
        ahead = &[];
    }
}

/// Some queries and some columns of the product.
struct Tile<'a, N> {
    weights: *const f32,
    layout: Layout,
    rows: *const N,
    /// Elements of a row.
    row_len: usize,
    /// The first column.
    column: usize,
    keys: usize,
    dim: usize,
    factors: *const f32,
    /// Rows to prefetch.
    ahead: &'a [N],
    values: *mut f32,
}

impl<N: Number> Tile<'_, N> {
    /// `MR` queries, `NV` vectors of columns. Returns `NV`.
    ///
    /// # Safety
    ///
    /// The pointers are valid for that many numbers, for all keys.
    #[inline(always)]
    unsafe fn run<S: Simd, const MR: usize, const NV: usize>(self, simd: S) -> usize {
        let mut sums = [[simd.splat(0.0); NV]; MR];
        // SAFETY: the caller's promise, for all reads and writes below.
        unsafe {
            for (query, sums) in sums.iter_mut().enumerate() {
                let factor = simd.splat(*self.factors.add(query));
                for (vector, sum) in sums.iter_mut().enumerate() {
                    let at = self.values.add(query * self.dim + vector * S::LANES);
                    *sum = simd.mul(simd.load(at), factor);
                }
            }
            let (mut row, mut weight) = (self.rows, self.weights);
            let mut ahead = self.ahead.as_ptr().wrapping_add(self.column);
            let keys_ahead = self.ahead.len() / self.row_len;
            for key in 0..self.keys {
                if key < keys_ahead {
                    for at in (0..NV * S::LANES).step_by(line::<N>()) {
                        simd.prefetch(ahead.wrapping_add(at).cast());
                    }
                    ahead = ahead.wrapping_add(self.row_len);
                }
                let mut numbers = [simd.splat(0.0); NV];
                for (vector, numbers) in numbers.iter_mut().enumerate() {
                    *numbers = N::load_at(simd, row, self.column + vector * S::LANES);
                }
                for (query, sums) in sums.iter_mut().enumerate() {
                    let weight = simd.splat(*weight.add(query * self.layout.query));
                    for (sum, numbers) in sums.iter_mut().zip(&numbers) {
                        *sum = simd.mul_add(weight, *numbers, *sum);
                    }
                }
                row = row.wrapping_add(self.row_len);
                weight = weight.wrapping_add(self.layout.key);
            }
            for (query, sums) in sums.iter().enumerate() {
                for (vector, sum) in sums.iter().enumerate() {
                    let at = self.values.add(query * self.dim + vector * S::LANES);
                    simd.store(at, *sum);
                }
            }
        }
        NV
    }
}
