//! The least weight that passes top-k and top-p, found without sorting.
//!
//! The result of a filter does not depend on how it was searched for. Counts are whole numbers,
//! and a nucleus is summed up in shares that double precision adds without rounding, in any
//! order.

use super::rows::BLOCK;

/// The `count` largest weights; the least of them comes last. `maxima` are those of each
/// [`BLOCK`].
pub(super) fn likeliest(weights: &[f32], maxima: &[f32], count: usize) -> Vec<f32> {
    let enough = if count <= maxima.len() {
        // At least `count` blocks have a weight that is no less than this.
        largest(maxima, count)
    } else {
        0.0
    };
    let mut likeliest = at_least(weights, maxima, enough);
    likeliest.select_nth_unstable_by(count - 1, descending);
    likeliest.truncate(count);
    likeliest
}

/// The largest of the weights that, with all larger ones, reach `enough` of the `total` of all.
/// Returns 0 if none does, because the total was rounded.
pub(super) fn nucleus_of_all(weights: &[f32], maxima: &[f32], top_p: f32, total: f32) -> f32 {
    let enough = f64::from(top_p) * f64::from(total);
    // In most rows a few tokens hold nearly all of the weight.
    let few = largest(maxima, maxima.len().div_ceil(8));
    let likeliest = at_least(weights, maxima, few);
    if sum(&likeliest) >= enough {
        return nucleus(likeliest, enough);
    }
    // Each of the other tokens weighs less than the nucleus may leave out. Half of each one's
    // share is used, to be safe from rounding.
    let negligible = 0.5 * (1.0 - top_p) * total / weights.len() as f32;
    nucleus(at_least(weights, maxima, negligible), enough)
}

/// The sum of all shares, without rounding.
pub(super) fn sum(weights: &[f32]) -> f64 {
    weights.iter().map(|weight| share(*weight)).sum()
}

/// The largest of the weights that, with all larger ones, reach `enough`; 0 if none does. A radix
/// selection: first by the exponent and the first bits, then by the next bits among the weights
/// that share those, then by the last.
pub(super) fn nucleus(mut weights: Vec<f32>, enough: f64) -> f32 {
    const DIGIT: u32 = 11;
    let mut reached = 0.0;
    for shift in [19, 8, 0] {
        let digit = |weight: f32| (weight.to_bits() >> shift) as usize & ((1 << DIGIT) - 1);
        let mut sums = [0.0; 1 << DIGIT];
        for weight in &weights {
            sums[digit(*weight)] += share(*weight);
        }
        let mut found = None;
        for (value, sum) in sums.iter().enumerate().rev() {
            if *sum > 0.0 && reached + sum >= enough {
                found = Some(value);
                break;
            }
            reached += sum;
        }
        let Some(found) = found else { return 0.0 };
        weights.retain(|weight| digit(*weight) == found);
    }
    weights[0]
}

/// A weight as a multiple of 2^-34. Double precision holds every sum of 2^19 such numbers up to
/// 1.
fn share(weight: f32) -> f64 {
    // Adding it rounds smaller parts away.
    const ROUND: f64 = (1_u64 << 18) as f64 * 1.5;
    (f64::from(weight) + ROUND) - ROUND
}

/// The `count`-th largest of some numbers.
pub(super) fn largest(numbers: &[f32], count: usize) -> f32 {
    let mut numbers = numbers.to_vec();
    *numbers.select_nth_unstable_by(count - 1, descending).1
}

/// The weights that are not less than `enough`.
fn at_least(weights: &[f32], maxima: &[f32], enough: f32) -> Vec<f32> {
    let blocks = || {
        let blocks = weights.chunks(BLOCK).zip(maxima);
        blocks.filter(|(_, largest)| **largest >= enough)
    };
    let mut found = vec![0.0; blocks().count() * BLOCK];
    let mut count = 0;
    for (block, _) in blocks() {
        for weight in block {
            found[count] = *weight;
            count += usize::from(*weight >= enough);
        }
    }
    found.truncate(count);
    found
}

fn descending(a: &f32, b: &f32) -> std::cmp::Ordering {
    b.total_cmp(a)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sampling::rows::{RowOperations, ScalarOperations};

    fn sorted(weights: &[f32]) -> Vec<f32> {
        let mut sorted = weights.to_vec();
        sorted.sort_by(descending);
        sorted
    }

    fn maxima(weights: &[f32]) -> Vec<f32> {
        let mut maxima = vec![0.0; weights.len().div_ceil(BLOCK)];
        ScalarOperations.maxima(weights, &mut maxima);
        maxima
    }

    /// The nucleus by adding up in order.
    fn naive(sorted: &[f32], enough: f64) -> f32 {
        let mut reached = 0.0;
        let reaches = |weight: &&f32| {
            reached += share(**weight);
            reached >= enough
        };
        sorted.iter().find(reaches).copied().unwrap_or(0.0)
    }

    /// Steep and flat distributions, with equal weights.
    fn weights() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            -90.0_f32..0.0,
            -2.0_f32..0.0,
            (-9_i8..1).prop_map(f32::from)
        ];
        (prop::collection::vec(logit, 1..2000), 0.0_f32..3.0).prop_map(|(logits, steepness)| {
            let weights = logits.iter().map(|logit| (steepness * logit).exp());
            weights.chain([1.0]).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn thresholds_match_a_full_sort(
            weights in weights(),
            count in 1_usize..300,
            top_p in 0.001_f32..1.0,
        ) {
            let (sorted, maxima) = (sorted(&weights), maxima(&weights));
            let count = count.min(weights.len());
            let mut found = likeliest(&weights, &maxima, count);
            prop_assert_eq!(found[count - 1], sorted[count - 1]);
            found.sort_by(descending);
            prop_assert_eq!(&found[..], &sorted[..count]);
            let enough = f64::from(top_p) * sum(&found);
            prop_assert_eq!(nucleus(found, enough), naive(&sorted[..count], enough));
            let total = weights.iter().sum::<f32>();
            let found = nucleus_of_all(&weights, &maxima, top_p, total);
            let enough = f64::from(top_p) * f64::from(total);
            let reached: f64 = sorted.iter().map(|weight| f64::from(*weight)).sum();
            prop_assert!(
                found == naive(&sorted, enough) || found == 0.0 && reached - enough < 1e-3 * reached
            );
        }
    }

    /// The shares would have another sum in another order if they were rounded.
    #[test]
    fn sums_do_not_depend_on_the_order() {
        let weight = |i: u32| (-f64::from(i.wrapping_mul(0x9E37_79B9) >> 8) / 6e5).exp() as f32;
        let weights: Vec<f32> = (0..100_000).map(weight).collect();
        let (mut up, mut down) = (weights.clone(), weights.clone());
        up.sort_by(f32::total_cmp);
        down.sort_by(descending);
        assert_eq!(sum(&up), sum(&weights));
        assert_eq!(sum(&up), sum(&down));
        let exact: f64 = up.iter().map(|weight| f64::from(*weight)).sum();
        assert!((sum(&up) - exact).abs() < 1e-5 * exact);
    }
}
