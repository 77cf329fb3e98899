//! The hyperbolic tangent.

use super::{Simd, polynomial};

/// Coefficients of `(tanh x - x) / x^3` in powers of `x^2`, for |x| < 0.625, highest power first
/// (Cephes' `tanhf`).
const TANH: [f32; 5] = [
    -5.704_988_7e-3,
    2.063_908_8e-2,
    -5.373_971_5e-2,
    1.333_144_2e-1,
    -3.333_328e-1,
];

/// Below this magnitude the polynomial is used. Above it nothing cancels in `1 - 2 / (e^2x + 1)`.
const SMALL: f32 = 0.625;

/// The hyperbolic tangent to within 3 units in the last place.
#[inline(always)]
pub fn tanh<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let [zero, one, two] = [0.0, 1.0, 2.0].map(|number| simd.splat(number));
    let minus = simd.sub(zero, x);
    let magnitude = simd.max(x, minus);
    let square = simd.mul(x, x);
    let small = simd.mul_add(simd.mul(polynomial(simd, &TANH, square), square), x, x);
    let exponential = simd.exp(simd.add(magnitude, magnitude));
    let large = simd.sub(one, simd.div(two, simd.add(exponential, one)));
    let large = simd.select_ge(x, zero, large, simd.sub(zero, large));
    simd.select_ge(magnitude, simd.splat(SMALL), large, small)
}

#[cfg(test)]
mod tests {
    use super::super::{InstructionSet, Job, dispatch_on};
    use super::*;

    struct Map<'a>(&'a [f32]);

    impl Job for Map<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<f32> {
            let mut output = vec![0.0; self.0.len()];
            for (from, to) in self.0.chunks(S::LANES).zip(output.chunks_mut(S::LANES)) {
                simd.store_part(to, tanh(simd, simd.load_part(from)));
            }
            output
        }
    }

    #[test]
    fn tangents_are_accurate() {
        let wide = (0..40_003).map(|i| 12.0 * (i as f32 / 20_001.0 - 1.0));
        let small = (0..4_000).map(|i| 2.0_f32.powf(-(i as f32) / 100.0));
        let near_the_seam = (0..4_000).map(|i| SMALL + (i as f32 - 2_000.0) * 1e-7);
        let input: Vec<f32> = wide.chain(small).chain(near_the_seam).collect();
        for &set in InstructionSet::available() {
            for (x, y) in input.iter().zip(dispatch_on(set, Map(&input))) {
                let expected = f64::from(*x).tanh();
                let error = (f64::from(y) - expected).abs();
                let bound = 3.0 * 2.0_f64.powi(-24) * expected.abs();
                assert!(error <= bound, "{set:?}: tanh({x}) = {y}, not {expected}");
            }
        }
    }

    #[test]
    fn tangents_of_the_extremes() {
        let input = [
            f32::NEG_INFINITY,
            f32::INFINITY,
            -1e30,
            1e30,
            -0.0,
            f32::NAN,
        ];
        for &set in InstructionSet::available() {
            let output = dispatch_on(set, Map(&input));
            assert_eq!(output[..5], [-1.0, 1.0, -1.0, 1.0, 0.0], "{set:?}");
            assert!(output[5].is_nan(), "{set:?}");
        }
    }
}
