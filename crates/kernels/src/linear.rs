//! Projections: matrix products with weights as checkpoints store them.
//!
//! With few rows, a product is as fast as its weights arrive from memory. BLAS libraries are
//! made for many rows: at 1 to 16 rows OpenBLAS was measured to read weights at a third of the
//! memory's speed or less. Here every weight is read once, in order, and prefetched. At some
//! 100 rows the two are equal.

use std::ops::Range;

use super::pool::Pool;
use super::products::{SUMS_MAX, along, along_fewer, sums};
use super::simd::{Job, Simd, dispatch};
use super::split::Split;

/// Minimum numbers of the weights that one thread takes at a time.
const CHUNK: usize = 32 << 10;

/// Chunks for each thread: enough to even out, few enough that each is long. Prefetching works
/// only within a chunk.
const CHUNKS_PER_THREAD: usize = 4;

/// Rows of the weights that are multiplied with all rows of the input before the next ones.
/// They stay in the second level of cache meanwhile.
const GROUP: usize = 16;

/// Each row of `output` (`[rows, n]`) becomes the dot products of that row of `input` (`[rows,
/// width]`) with all `n` rows of `weight` (`[n, width]`), plus `bias` (`[n]`). A row's result
/// is the same to the last bit regardless of the other rows and their number.
///
/// # Panics
///
/// When the lengths do not fit, or `width` is not a multiple of 16.
pub fn linear(
    pool: &Pool,
    input: &[f32],
    weight: &[f32],
    width: usize,
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    assert!(width > 0 && width.is_multiple_of(16), "{width} columns");
    let (rows, n) = (input.len() / width, weight.len() / width);
    assert_eq!([rows * width, n * width], [input.len(), weight.len()]);
    assert_eq!(rows * n, output.len());
    assert!(bias.is_none_or(|bias| bias.len() == n));
    let even = n.div_ceil(CHUNKS_PER_THREAD * pool.threads());
    let chunk = even.max(CHUNK / width).next_multiple_of(GROUP);
    let output = Split::new(output);
    pool.run(n.div_ceil(chunk), |index| {
        let first = index * chunk;
        let part = Part {
            input,
            weight: &weight[first * width..n.min(first + chunk) * width],
            width,
            bias: bias.map(|bias| &bias[first..]),
            output: &output,
            first,
            n,
        };
        dispatch(part);
    });
}

/// Some rows of the weights, which are some columns of the output.
pub(super) struct Part<'a> {
    pub(super) input: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) width: usize,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) output: &'a Split<'a, f32>,
    /// The first of its columns, and the number of all columns.
    pub(super) first: usize,
    pub(super) n: usize,
}

impl Job for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.input.len() / self.width;
        let n = self.weight.len() / self.width;
        for first in (0..n).step_by(GROUP) {
            let columns = first..n.min(first + GROUP);
            let fours = rows - rows % 4;
            match sums::<S>() {
                16 => self.tiles::<S, 4, 4>(simd, 0..fours, columns.clone()),
                _ => self.tiles::<S, 2, 4>(simd, 0..fours, columns.clone()),
            }
            let twos = rows - rows % 2;
            match sums::<S>() {
                16 => self.tiles::<S, 8, 2>(simd, fours..twos, columns.clone()),
                _ => self.tiles::<S, 4, 2>(simd, fours..twos, columns.clone()),
            }
            match sums::<S>() {
                16 => self.tiles::<S, 16, 1>(simd, twos..rows, columns),
                _ => self.tiles::<S, 8, 1>(simd, twos..rows, columns),
            }
        }
    }
}

impl Part<'_> {
    /// Some columns of some rows, `M` rows and `R` columns at a time.
    #[inline(always)]
    fn tiles<S: Simd, const R: usize, const M: usize>(
        &self,
        simd: S,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let width = self.width;
        if rows.is_empty() {
            return;
        }
        // The weights of the next tile are prefetched meanwhile, a share with each pass over
        // this tile.
        let share = R.div_ceil(rows.len() / M);
        let mut column = columns.start;
        while column + R <= columns.end {
            let weight = &self.weight[column * width..];
            let mut next = weight[R * width..].chunks(share * width).take(R / share);
            for row in rows.clone().step_by(M) {
                let input = &self.input[row * width..(row + M) * width];
                let ahead = next.next().unwrap_or(&[]);
                let products = along::<S, _, R, M>(simd, weight, input, width, ahead);
                self.put::<R, M>(row, column, &products);
            }
            column += R;
        }
        for column in column..columns.end {
            let weight = &self.weight[column * width..][..width];
            for row in rows.clone() {
                let input = &self.input[row * width..][..width];
                self.put::<1, 1>(row, column, &along_fewer(simd, weight, input, width));
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
        for m in 0..M {
            let from = (row + m) * self.n + self.first + column;
            // SAFETY: only this part computes these columns.
            let output = unsafe { self.output.part(from..from + R) };
            for (r, output) in output.iter_mut().enumerate() {
                *output = products[r * M + m] + self.bias.map_or(0.0, |bias| bias[column + r]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::simd::{InstructionSet, dispatch_on};
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
                let (input, weight) = (&input[..], &weight[..]);
                dispatch_on(set, Part { input, weight, width, bias, output: all, first: 0, n });
                for (y, expected) in output.iter().zip(&expected) {
                    let error = (f64::from(*y) - expected).abs();
                    prop_assert!(error < 2e-5, "{set:?}: {y} for {expected}");
                }
            }
            output.fill(f32::NAN);
            linear(&Pool::new(threads), &input, &weight, width, bias, &mut output);
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
                weight: &weight,
                width,
                bias: None,
                output: &Split::new(&mut output),
                first: 0,
                n,
            };
            dispatch_on(set, part);
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
        linear(&Pool::new(1), &input, &weight, 64, None, &mut one);
        linear(&Pool::new(3), &input, &weight, 64, None, &mut three);
        assert_eq!(one, three);
    }
}
