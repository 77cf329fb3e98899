//! The activations inside recurrent blocks.

use motet_formats::simd::Simd;

/// `x * sigmoid(x)` (Elfwing, Uchibe and Doya 2017).
#[inline(always)]
pub(super) fn silu<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let exponential = simd.exp(simd.sub(simd.splat(0.0), x));
    simd.div(x, simd.add(simd.splat(1.0), exponential))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`, and `x` itself where the two are equal in `f32`.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_equal_their_definitions() {
        for x in (-400..400).map(|i| i as f32 / 4.0) {
            let wide = f64::from(x);
            let pairs = [
                (sigmoid(x), 1.0 / (1.0 + (-wide).exp())),
                (softplus(x), wide.exp().ln_1p()),
            ];
            for (found, expected) in pairs {
                let error = (f64::from(found) - expected).abs();
                assert!(
                    error <= 1e-6 * expected + 1e-38,
                    "{x}: {found} for {expected}"
                );
            }
        }
    }

    #[test]
    fn extreme_inputs_saturate() {
        assert_eq!([sigmoid(-1e30), sigmoid(1e30)], [0.0, 1.0]);
        assert_eq!([softplus(-1e30), softplus(1e30)], [0.0, 1e30]);
    }
}
