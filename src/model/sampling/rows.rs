//! Sums, maxima and exponentials over a row, in vectors.

/// Independent sums or maxima, for the compiler to keep in vectors.
const LANES: usize = 16;

pub(super) fn maximum(numbers: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (runs, rest) = numbers.as_chunks::<LANES>();
    for run in runs {
        for (lane, number) in lanes.iter_mut().zip(run) {
            *lane = larger(*lane, *number);
        }
    }
    lanes.iter().chain(rest).copied().fold(lanes[0], larger)
}

/// The sum of the weights that reach `threshold`.
pub(super) fn sum_from(weights: &[f32], threshold: f32) -> f32 {
    let counted = |weight: f32| if weight >= threshold { weight } else { 0.0 };
    let mut lanes = [0.0; LANES];
    let (runs, rest) = weights.as_chunks::<LANES>();
    for run in runs {
        for (lane, weight) in lanes.iter_mut().zip(run) {
            *lane += counted(*weight);
        }
    }
    let rest = rest.iter().map(|weight| counted(*weight));
    lanes.into_iter().chain(rest).sum()
}

/// The exponential of a number up to 0, to a few units in the last place, in
/// operations that the compiler can do on vectors: Cody and Waite's reduction to
/// `2^n * e^r` with `|r| <= ln(2) / 2`, and Taylor's polynomial for the latter.
pub(super) fn exp(x: f32) -> f32 {
    /// Adding it rounds to a whole number, which stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let mut power = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = power * r + coefficient;
    }
    // Multiplies by 2^n: adds n to the exponent.
    let scaled = f32::from_bits(power.to_bits().wrapping_add(shifted.to_bits() << 23));
    // What is near underflow is nothing; so is the weight of a token ruled out.
    if x > -87.0 { scaled } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_exact_to_rounding() {
        for step in 0..=87_000 {
            let x = -step as f32 / 1000.0;
            let error = f64::from(exp(x)) / f64::from(x).exp() - 1.0;
            assert!(
                step == 87_000 || error.abs() < 3e-7,
                "exp({x}) is off by {error}"
            );
        }
        assert_eq!(
            [exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)],
            [1.0, 0.0, 0.0]
        );
    }
}
