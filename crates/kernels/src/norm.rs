//! Root-mean-square normalisation (Zhang and Sennrich 2019), alone and together
//! with the residual sum before it.

use motet_formats::simd::{Job, Simd, dispatch};

use super::pool::Pool;

/// Numbers that one thread takes at a time, enough that the cost of dispatching is negligible.
const CHUNK: usize = 32 << 10;

/// How a row is normalised.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Numbers in a row.
    pub width: usize,
    /// Factor of each number; `None` means all ones.
    pub weight: Option<&'a [f32]>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// Writes each row of `input`, normalised, to `output`.
///
/// # Panics
///
/// When the lengths do not fit each other.
pub fn rms_norm(pool: &Pool, norm: Norm<'_>, input: &[f32], output: &mut [f32]) {
    let rows = norm.rows_per_chunk(input, output);
    pool.for_each_chunk([output], [rows * norm.width], |index, [output]| {
        let input = &input[index * rows * norm.width..][..output.len()];
        dispatch(Plain {
            norm,
            input,
            output,
        });
    });
}

/// Writes each row of `input + delta` to `sum`, and that row normalised to `output`.
///
/// # Panics
///
/// When the lengths do not fit each other.
pub fn add_rms_norm(
    pool: &Pool,
    norm: Norm<'_>,
    input: &[f32],
    delta: &[f32],
    sum: &mut [f32],
    output: &mut [f32],
) {
    assert_eq!(input.len(), delta.len());
    assert_eq!(input.len(), sum.len());
    let rows = norm.rows_per_chunk(input, output);
    let length = rows * norm.width;
    pool.for_each_chunk([sum, output], [length; 2], |index, [sum, output]| {
        let here = index * length..index * length + output.len();
        let (input, delta) = (&input[here.clone()], &delta[here]);
        dispatch(Added {
            norm,
            input,
            delta,
            sum,
            output,
        });
    });
}

impl Norm<'_> {
    fn rows_per_chunk(&self, input: &[f32], output: &[f32]) -> usize {
        assert!(self.width > 0, "rows have a width");
        assert_eq!(input.len(), output.len());
        assert_eq!(input.len() % self.width, 0);
        if let Some(weight) = self.weight {
            assert_eq!(weight.len(), self.width);
        }
        (CHUNK / self.width).max(1)
    }
}

struct Plain<'a> {
    norm: Norm<'a>,
    input: &'a [f32],
    output: &'a mut [f32],
}

impl Job for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.norm.width;
        let rows = self.input.chunks_exact(width);
        for (input, output) in rows.zip(self.output.chunks_exact_mut(width)) {
            let factor = inverse_root_mean_square(simd, input, self.norm.epsilon);
            scale(simd, self.norm.weight, factor, input, output);
        }
    }
}

struct Added<'a> {
    norm: Norm<'a>,
    input: &'a [f32],
    delta: &'a [f32],
    sum: &'a mut [f32],
    output: &'a mut [f32],
}

impl Job for Added<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.norm.width;
        let rows = self
            .input
            .chunks_exact(width)
            .zip(self.delta.chunks_exact(width));
        let outputs = self
            .sum
            .chunks_exact_mut(width)
            .zip(self.output.chunks_exact_mut(width));
        for ((input, delta), (sum, output)) in rows.zip(outputs) {
            let mut squares = [simd.splat(0.0); 4];
            let parts = input.chunks(S::LANES).zip(delta.chunks(S::LANES));
            for (i, ((x, delta), sum)) in parts.zip(sum.chunks_mut(S::LANES)).enumerate() {
                let x = simd.add(simd.load_part(x), simd.load_part(delta));
                squares[i % 4] = simd.mul_add(x, x, squares[i % 4]);
                simd.store_part(sum, x);
            }
            let factor = factor(simd, width, self.norm.epsilon, squares);
            scale(simd, self.norm.weight, factor, sum, output);
        }
    }
}

/// The factor of each number in `row`: the inverse of the square root of the mean square.
#[inline(always)]
pub(crate) fn inverse_root_mean_square<S: Simd>(simd: S, row: &[f32], epsilon: f32) -> f32 {
    let mut squares = [simd.splat(0.0); 4];
    for (i, x) in row.chunks(S::LANES).enumerate() {
        let x = simd.load_part(x);
        squares[i % 4] = simd.mul_add(x, x, squares[i % 4]);
    }
    factor(simd, row.len(), epsilon, squares)
}

/// The factor of each number in a row of `width`.
#[inline(always)]
fn factor<S: Simd>(simd: S, width: usize, epsilon: f32, squares: [S::Vector; 4]) -> f32 {
    let [a, b, c, d] = squares;
    let total = simd.sum(simd.add(simd.add(a, b), simd.add(c, d)));
    1.0 / (total / width as f32 + epsilon).sqrt()
}

#[inline(always)]
fn scale<S: Simd>(simd: S, weight: Option<&[f32]>, factor: f32, input: &[f32], output: &mut [f32]) {
    let factor = simd.splat(factor);
    let parts = input.chunks(S::LANES).zip(output.chunks_mut(S::LANES));
    match weight {
        None => {
            for (x, output) in parts {
                simd.store_part(output, simd.mul(simd.load_part(x), factor));
            }
        }
        Some(weight) => {
            for ((x, output), weight) in parts.zip(weight.chunks(S::LANES)) {
                let y = simd.mul(simd.load_part(x), factor);
                simd.store_part(output, simd.mul(y, simd.load_part(weight)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use motet_formats::simd::{InstructionSet, dispatch_on};

    fn reference(norm: Norm<'_>, rows: &[f32]) -> Vec<f64> {
        let row = |row: &[f32]| {
            let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
            let factor = (squares / norm.width as f64 + f64::from(norm.epsilon))
                .sqrt()
                .recip();
            let weight = |i| norm.weight.map_or(1.0, |weight| f64::from(weight[i]));
            let each = |(i, x): (usize, &f32)| f64::from(*x) * factor * weight(i);
            row.iter().enumerate().map(each).collect::<Vec<_>>()
        };
        rows.chunks(norm.width).flat_map(row).collect()
    }

    fn assert_near(actual: &[f32], expected: &[f64], what: &str) {
        for (y, expected) in actual.iter().zip(expected) {
            let error = (f64::from(*y) - expected).abs();
            assert!(
                error <= 1e-6 * (1.0 + expected.abs()),
                "{what}: {y} for {expected}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn equals_the_reference(
            rows in 0_usize..5,
            width in 1_usize..150,
            weighted: bool,
            seed in proptest::collection::vec(-3.0_f32..3.0, 64),
        ) {
            let numbers = |shift: usize, n| -> Vec<f32> {
                (0..n).map(|i| seed[(i + shift) % 64] * (0.3 + (i / 64) as f32).sin()).collect()
            };
            let [input, delta] = [numbers(0, rows * width), numbers(5, rows * width)];
            let weight = numbers(9, width);
            let norm = Norm { width, weight: weighted.then_some(&weight), epsilon: 1e-5 };
            let expected_sum: Vec<f32> = input.iter().zip(&delta).map(|(x, d)| x + d).collect();
            let [plain, added] = [reference(norm, &input), reference(norm, &expected_sum)];
            for &set in InstructionSet::available() {
                let [mut sum, mut output] = [vec![f32::NAN; rows * width], vec![f32::NAN; rows * width]];
                dispatch_on(set, Plain { norm, input: &input, output: &mut output });
                assert_near(&output, &plain, "plain");
                let (sum, output) = (&mut sum, &mut output);
                dispatch_on(set, Added { norm, input: &input, delta: &delta, sum, output });
                assert_eq!(*sum, expected_sum);
                assert_near(output, &added, "added");
            }
        }
    }

    #[test]
    fn threads_share_the_rows() {
        let input: Vec<f32> = (0..301 * 576).map(|i| (i as f32).sin()).collect();
        let norm = Norm {
            width: 576,
            weight: None,
            epsilon: 1e-6,
        };
        let run = |threads| {
            let pool = Pool::new(threads);
            let [mut sum, mut output] = [vec![0.0; input.len()], vec![0.0; input.len()]];
            rms_norm(&pool, norm, &input, &mut output);
            let plain = output.clone();
            add_rms_norm(&pool, norm, &input, &input, &mut sum, &mut output);
            (plain, sum, output)
        };
        assert_eq!(run(1), run(3));
    }
}
