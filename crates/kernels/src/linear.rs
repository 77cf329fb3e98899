//! Projections: matrix products with weights as checkpoints store them.
//!
//! With few rows, a product is as fast as its weights arrive from memory. BLAS libraries are
//! made for many rows: at 1 to 16 rows OpenBLAS was measured to read weights at a third of the
//! memory's speed or less. Here every weight is read once, in order, and prefetched.
//!
//! Weights are decoded in registers where the rows are few. With more rows, a few rows of the
//! weights at a time are decoded into scratch memory, and tiles of sums are shaped for the
//! registers (`many_rows.rs`). Both give the same bits.

mod many_rows;

use std::ops::Range;

use motet_formats::simd::{InstructionSet, Job, Simd, dispatch_on};

use super::pool::Pool;
use super::products::{SUMS_MAX, sums};
use super::scratch;
use super::split::Split;
use super::weights::{Matrix, Rows, Visitor};

/// Minimum numbers of the weights that one thread takes at a time.
const CHUNK: usize = 32 << 10;

/// Chunks for each thread: enough to even out, few enough that each is long. Prefetching works
/// only within a chunk.
const CHUNKS_PER_THREAD: usize = 4;

/// Rows of the weights that are multiplied with all rows of the input before the next ones.
/// They stay in the second level of cache meanwhile.
pub(super) const GROUP: usize = 16;

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
    let set = InstructionSet::best();
    let is_many = |part: &Rows<'_>| input.len() / part.width() > part.direct_rows(set);
    let are_many = weight.iter().any(is_many);
    let group = if are_many { many_rows::GROUP } else { GROUP };
    let compute = |part: &Part<'_>| part.compute(set);
    for_each_part(pool, input, weight, bias, output, group, compute);
}

/// Has `compute` write every part of a product, on the threads of the pool. Parts have multiples
/// of `group` columns.
///
/// # Panics
///
/// As for [`linear`].
pub(super) fn for_each_part(
    pool: &Pool,
    input: &[f32],
    weight: &[Rows<'_>],
    bias: Option<&[f32]>,
    output: &mut [f32],
    group: usize,
    compute: impl Fn(&Part<'_>) + Sync,
) {
    let width = weight.first().expect("at least one matrix").width();
    let widths_fit = weight.iter().all(|part| part.width() == width);
    assert!(widths_fit, "stacked matrices with different widths");
    let n: usize = weight.iter().map(Rows::rows).sum();
    let rows = input.len() / width;
    assert_eq!(rows * width, input.len(), "numbers of the input");
    assert_eq!(rows * n, output.len(), "numbers of the output");
    assert!(bias.is_none_or(|bias| bias.len() == n));
    let chunk = chunk_rows(pool, n, width, group);
    let count = |part: &Rows<'_>| part.rows().div_ceil(chunk);
    let output = Split::new(output);
    pool.run(weight.iter().map(count).sum(), |index| {
        let (part, columns, first) = chunk_at(weight, [chunk, group], index);
        let end = first + columns.len();
        compute(&Part {
            input,
            weight: part.slice(columns),
            bias: bias.map(|bias| &bias[first..end]),
            output: &output,
            first,
            n,
        });
    });
}

/// Maximum rows of the weights in a chunk, for `n` rows in all: a multiple of `group`.
fn chunk_rows(pool: &Pool, n: usize, width: usize, group: usize) -> usize {
    let even = n.div_ceil(CHUNKS_PER_THREAD * pool.threads());
    even.max(CHUNK / width).next_multiple_of(group)
}

/// The matrix that the chunk with this index is in, the chunk's rows, and the column of the
/// output that the first of them is. No chunk has more than `chunk` rows, and those of a matrix
/// are about equal, in multiples of `group`.
fn chunk_at<'a>(
    weight: &[Rows<'a>],
    [chunk, group]: [usize; 2],
    mut index: usize,
) -> (Rows<'a>, Range<usize>, usize) {
    let mut first = 0;
    for part in weight {
        let rows = part.rows();
        let count = rows.div_ceil(chunk);
        if index < count {
            let even = rows.div_ceil(count).next_multiple_of(group);
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
            scratch::for_weights(|memory| many_rows::compute(self, set, memory));
        }
    }
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
            rows in 1_usize..41,
            sixteens in 1_usize..6,
            n in 1_usize..60,
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

    /// A product with some rows of the input on one instruction set.
    fn product(
        set: InstructionSet,
        input: &[f32],
        weight: Rows<'_>,
        bias: Option<&[f32]>,
    ) -> Vec<f32> {
        let n = weight.rows();
        let mut output = vec![f32::NAN; input.len() / weight.width() * n];
        let part = Part {
            input,
            weight,
            bias,
            output: &Split::new(&mut output),
            first: 0,
            n,
        };
        part.compute(set);
        output
    }

    /// Widths of one span, of a short last span, and of several.
    #[test]
    fn rows_do_not_depend_on_each_other() {
        let seed = [1.0, -0.5, 0.25, 0.7, -0.3];
        let rows = 150;
        for (width, n) in [(16, 1), (112, 45), (592, 13), (1200, 26)] {
            let input = numbers(rows * width, &seed, 0);
            let weight = numbers(n * width, &seed, 1);
            let bias = numbers(n, &seed, 2);
            let weight = Rows::from_f32(&weight, width);
            for &set in InstructionSet::available() {
                let product = |input: &[f32]| product(set, input, weight, Some(&bias));
                let alone: Vec<f32> = input.chunks(width).flat_map(product).collect();
                for count in (1..=40).chain([64, 127, 129, rows]) {
                    let found = product(&input[..count * width]);
                    assert_eq!(
                        found,
                        alone[..count * n],
                        "{set:?}, {count} rows of {width}"
                    );
                }
            }
        }
    }

    #[test]
    fn threads_share_the_weights() {
        for rows in [3, 29] {
            let input = numbers(rows * 64, &[1.0, -0.5, 0.25], 0);
            let weight = numbers(2000 * 64, &[1.0, -0.5, 0.25], 1);
            let [mut one, mut three] = [vec![0.0; rows * 2000], vec![0.0; rows * 2000]];
            let weight = [Rows::from_f32(&weight, 64)];
            linear(&Pool::new(1), &input, &weight, None, &mut one);
            linear(&Pool::new(3), &input, &weight, None, &mut three);
            assert_eq!(one, three, "{rows} rows");
        }
    }
}
