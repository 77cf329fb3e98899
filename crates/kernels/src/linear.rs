//! Projections: matrix products with weights as checkpoints store them.
//!
//! With few rows, a product is as fast as its weights arrive from memory. BLAS libraries are
//! made for many rows: at 1 to 16 rows OpenBLAS was measured to read weights at a third of the
//! memory's speed or less. Here every weight is read once, in order, and prefetched. At some
//! 100 rows the two are equal.
//!
//! Quantised weights are decoded in registers where the rows are few. With more rows, some rows
//! of the weights at a time are decoded into scratch memory. Both give the same bits.

use std::ops::Range;

use super::pool::Pool;
use super::products::{SUMS_MAX, sums};
use super::scratch::{self, Scratch};
use super::simd::{InstructionSet, Job, Simd, dispatch_on};
use super::split::Split;
use super::weights::{Matrix, Rows, Visitor};

/// Minimum numbers of the weights that one thread takes at a time.
const CHUNK: usize = 32 << 10;

/// Chunks for each thread: enough to even out, few enough that each is long. Prefetching works
/// only within a chunk.
const CHUNKS_PER_THREAD: usize = 4;

/// Rows of the weights that are multiplied with all rows of the input before the next ones.
/// They stay in the second level of cache meanwhile.
const GROUP: usize = 16;

/// Numbers of decoded weights that stay in the second level of cache.
const DECODED: usize = 64 << 10;

/// Each row of `output` (`[rows, n]`) becomes the dot products of that row of `input` (`[rows,
/// width]`) with all `n` rows of `weight`, plus `bias` (`[n]`). The matrices of `weight` are
/// stacked: the rows of the first are the first columns of the output. They may be stored in
/// different ways. A row's result is the same to the last bit regardless of the other rows and
/// their number.
///
/// # Panics
///
/// When there is no matrix, their widths differ, or the lengths do not fit.
pub fn linear(
    pool: &Pool,
    input: &[f32],
    weight: &[Rows<'_>],
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let width = weight.first().expect("at least one matrix").width();
    let widths_fit = weight.iter().all(|part| part.width() == width);
    assert!(widths_fit, "stacked matrices with different widths");
    let n: usize = weight.iter().map(Rows::rows).sum();
    let rows = input.len() / width;
    assert_eq!(rows * width, input.len(), "numbers of the input");
    assert_eq!(rows * n, output.len(), "numbers of the output");
    assert!(bias.is_none_or(|bias| bias.len() == n));
    let chunk = chunk_rows(pool, n, width);
    let count = |part: &Rows<'_>| part.rows().div_ceil(chunk);
    let output = Split::new(output);
    pool.run(weight.iter().map(count).sum(), |index| {
        let (part, columns, first) = chunk_at(weight, chunk, index);
        let end = first + columns.len();
        let part = Part {
            input,
            weight: part.slice(columns),
            bias: bias.map(|bias| &bias[first..end]),
            output: &output,
            first,
            n,
        };
        part.compute(InstructionSet::best());
    });
}

/// Maximum rows of the weights in a chunk, for `n` rows in all.
pub(super) fn chunk_rows(pool: &Pool, n: usize, width: usize) -> usize {
    let even = n.div_ceil(CHUNKS_PER_THREAD * pool.threads());
    even.max(CHUNK / width).next_multiple_of(GROUP)
}

/// The matrix that the chunk with this index is in, the chunk's rows, and the column of the
/// output that the first of them is. No chunk has more than `chunk` rows, and those of a matrix
/// are about equal.
pub(super) fn chunk_at<'a>(
    weight: &[Rows<'a>],
    chunk: usize,
    mut index: usize,
) -> (Rows<'a>, Range<usize>, usize) {
    let mut first = 0;
    for part in weight {
        let rows = part.rows();
        let count = rows.div_ceil(chunk);
        if index < count {
            let even = rows.div_ceil(count).next_multiple_of(GROUP);
            let start = rows.min(index * even);
            return (*part, start..rows.min(start + even), first + start);
        }
        index -= count;
        first += rows;
    }
    unreachable!("the index is below the number of chunks")
}

/// Some rows of the weights, which are some columns of the output.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) input: &'a [f32],
    pub(super) weight: Rows<'a>,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) output: &'a Split<'a, f32>,
    /// The first of its columns, and the number of all columns.
    pub(super) first: usize,
    pub(super) n: usize,
}

impl Part<'_> {
    /// Computes these columns with one instruction set.
    pub(super) fn compute(&self, set: InstructionSet) {
        let rows = self.input.len() / self.weight.width();
        if rows <= self.weight.direct_rows(set) {
            self.weight.visit(ComputeOn { part: self, set });
        } else {
            scratch::for_weights(|memory| self.decode_and_compute(set, memory));
        }
    }

    /// Decodes some rows of the weights at a time into `memory`, for all rows of the input.
    fn decode_and_compute(&self, set: InstructionSet, memory: &mut Scratch) {
        let (n, width) = (self.weight.rows(), self.weight.width());
        let group = decoded_rows(set, width);
        let [decoded] = memory.take([group * width]);
        for first in (0..n).step_by(group) {
            let rows = first..n.min(first + group);
            let decoded = &mut decoded[..rows.len() * width];
            self.weight.slice(rows).decode_all(set, decoded);
            let part = Part {
                weight: Rows::from_f32(decoded, width),
                bias: self.bias.map(|bias| &bias[first..]),
                first: self.first + first,
                ..*self
            };
            part.compute(set);
        }
    }
}

/// Rows of the weights that are decoded at a time: at least a whole tile for one row of the input.
fn decoded_rows(set: InstructionSet, width: usize) -> usize {
    let tile = if set.lanes() == 8 { 8 } else { SUMS_MAX };
    (DECODED / width / tile * tile).clamp(tile, GROUP)
}

struct ComputeOn<'a> {
    part: &'a Part<'a>,
    set: InstructionSet,
}

impl Visitor for ComputeOn<'_> {
    type Output = ();

    fn visit<W: Matrix>(self, weights: W) {
        let part = self.part;
        dispatch_on(self.set, Tiles { part, weights });
    }
}

/// Products with weights that are decoded in registers, if at all.
struct Tiles<'a, W> {
    part: &'a Part<'a>,
    weights: W,
}

impl<W: Matrix> Job for Tiles<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if const { !W::HAS_PRODUCTS || W::IS_PACKED && !S::HAS_BYTES } {
            unreachable!("such weights are decoded into memory");
        } else {
            let n = self.part.weight.rows();
            for first in (0..n).step_by(GROUP) {
                self.all_rows(simd, first..n.min(first + GROUP));
            }
        }
    }
}

impl<W: Matrix> Tiles<'_, W> {
    /// Some columns of all rows.
    #[inline(always)]
    fn all_rows<S: Simd>(&self, simd: S, columns: Range<usize>) {
        let rows = self.part.input.len() / self.weights.width();
        let fours = rows - rows % 4;
        let twos = rows - rows % 2;
        if const { sums::<S>() == 16 } {
            self.tiles::<S, 4, 4>(simd, 0..fours, columns.clone());
            self.tiles::<S, 8, 2>(simd, fours..twos, columns.clone());
            self.tiles::<S, 16, 1>(simd, twos..rows, columns);
        } else {
            self.tiles::<S, 2, 4>(simd, 0..fours, columns.clone());
            self.tiles::<S, 4, 2>(simd, fours..twos, columns.clone());
            self.tiles::<S, 8, 1>(simd, twos..rows, columns);
        }
    }

    /// Some columns of some rows, `M` rows and `R` columns at a time.
    #[inline(always)]
    fn tiles<S: Simd, const R: usize, const M: usize>(
        &self,
        simd: S,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let width = self.weights.width();
        if rows.is_empty() {
            return;
        }
        // The weights of the next tile are prefetched meanwhile, a share with each pass over
        // this tile.
        let share = R.div_ceil(rows.len() / M);
        let mut column = columns.start;
        while column + R <= columns.end {
            let mut ahead = column + R;
            for row in rows.clone().step_by(M) {
                let input = &self.part.input[row * width..(row + M) * width];
                let next = ahead.min(column + 2 * R)..(ahead + share).min(column + 2 * R);
                ahead = next.end;
                let products = self.weights.along::<S, R, M>(simd, column, input, next);
                self.put::<R, M>(row, column, &products);
            }
            column += R;
        }
        for column in column..columns.end {
            for row in rows.clone() {
                let input = &self.part.input[row * width..][..width];
                self.put::<1, 1>(row, column, &self.weights.along_one(simd, column, input));
            }
        }
    }

    #[inline(always)]
    fn put<const R: usize, const M: usize>(
        &self,
        row: usize,
        column: usize,
        products: &[f32; SUMS_MAX],
    ) {
        let Part { output, n, .. } = *self.part;
        for m in 0..M {
            let from = (row + m) * n + self.part.first + column;
            // SAFETY: only this part computes these columns.
            let output = unsafe { output.part(from..from + R) };
            for (r, output) in output.iter_mut().enumerate() {
                let bias = self.part.bias.map_or(0.0, |bias| bias[column + r]);
                *output = products[r * M + m] + bias;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reference(input: &[f32], weight: &[f32], width: usize, bias: Option<&[f32]>) -> Vec<f64> {
        let row = |x: &[f32]| {
            let dot = |w: &[f32]| -> f64 {
                x.iter()
                    .zip(w)
                    .map(|(x, w)| f64::from(*x) * f64::from(*w))
                    .sum()
            };
            let products = weight.chunks(width).map(dot).enumerate();
            let bias = |n| bias.map_or(0.0, |bias| f64::from(bias[n]));
            products
                .map(|(n, product)| product + bias(n))
                .collect::<Vec<_>>()
        };
        input.chunks(width).flat_map(row).collect()
    }

    fn numbers(count: usize, seed: &[f32], shift: usize) -> Vec<f32> {
        let number =
            |i: usize| seed[(i + shift) % seed.len()] * (0.3 + (i / seed.len()) as f32).sin();
        (0..count).map(number).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn equals_the_reference(
            rows in 1_usize..12,
            sixteens in 1_usize..6,
            n in 1_usize..40,
            biased: bool,
            threads in 1_usize..4,
            seed in proptest::collection::vec(-2.0_f32..2.0, 61),
        ) {
            let width = 16 * sixteens;
            let input = numbers(rows * width, &seed, 0);
            let weight = numbers(n * width, &seed, 7);
            let bias = numbers(n, &seed, 9);
            let bias = biased.then_some(&bias[..]);
            let expected = reference(&input, &weight, width, bias);
            let mut output = vec![f32::NAN; rows * n];
            for &set in InstructionSet::available() {
                output.fill(f32::NAN);
                let all = &Split::new(&mut output);
                let (input, weight) = (&input[..], Rows::from_f32(&weight, width));
                Part { input, weight, bias, output: all, first: 0, n }.compute(set);
                for (y, expected) in output.iter().zip(&expected) {
                    let error = (f64::from(*y) - expected).abs();
                    prop_assert!(error < 2e-5, "{set:?}: {y} for {expected}");
                }
            }
            output.fill(f32::NAN);
            let stacked = [Rows::from_f32(&weight, width)];
            linear(&Pool::new(threads), &input, &stacked, bias, &mut output);
            for (y, expected) in output.iter().zip(&expected) {
                let error = (f64::from(*y) - expected).abs();
                prop_assert!(error < 2e-5, "{threads} threads: {y} for {expected}");
            }
        }
    }

    #[test]
    fn rows_do_not_depend_on_each_other() {
        let seed = [1.0, -0.5, 0.25, 0.7, -0.3];
        let (width, n, rows) = (112, 45, 11);
        let input = numbers(rows * width, &seed, 0);
        let weight = numbers(n * width, &seed, 1);
        let product = |set, input: &[f32]| {
            let mut output = vec![f32::NAN; input.len() / width * n];
            let part = Part {
                input,
                weight: Rows::from_f32(&weight, width),
                bias: None,
                output: &Split::new(&mut output),
                first: 0,
                n,
            };
            part.compute(set);
            output
        };
        for &set in InstructionSet::available() {
            let together = product(set, &input);
            for (row, expected) in input.chunks(width).zip(together.chunks(n)) {
                assert_eq!(product(set, row), expected, "{set:?}");
            }
        }
    }

    #[test]
    fn threads_share_the_weights() {
        let input = numbers(3 * 64, &[1.0, -0.5, 0.25], 0);
        let weight = numbers(2000 * 64, &[1.0, -0.5, 0.25], 1);
        let [mut one, mut three] = [vec![0.0; 6000], vec![0.0; 6000]];
        let weight = [Rows::from_f32(&weight, 64)];
        linear(&Pool::new(1), &input, &weight, None, &mut one);
        linear(&Pool::new(3), &input, &weight, None, &mut three);
        assert_eq!(one, three);
    }
}
