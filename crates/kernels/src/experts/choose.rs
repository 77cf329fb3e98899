//! The choice of each row's experts.

use std::cmp::Ordering;

use super::super::pool::Pool;

/// Rows that one thread takes at a time.
const ROWS: usize = 16;

/// How a router's logits become the shares of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// A softmax over all experts, of which the largest are chosen (Shazeer et al. 2017). Their
    /// shares are divided by their sum if `normalised`.
    SoftmaxAll {
        /// Whether the shares sum to 1.
        normalised: bool,
    },
    /// The largest logits are chosen, and a softmax over these gives the shares.
    SoftmaxChosen,
}

/// The experts that rows have chosen, with their shares.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Experts of each row.
    pub(super) per_row: usize,
    /// `[rows, per_row]`: the chosen experts, the one with the largest share first.
    pub(super) experts: Vec<u32>,
    /// `[rows, per_row]`: the share of each in the row's output.
    pub(super) shares: Vec<f32>,
}

impl Choice {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.experts.len() / self.per_row
    }

    /// The experts of a row with their shares, the largest share first.
    pub fn of_row(&self, row: usize) -> impl Iterator<Item = (usize, f32)> {
        let range = row * self.per_row..(row + 1) * self.per_row;
        let experts = self.experts[range.clone()].iter();
        let pairs = experts.zip(&self.shares[range]);
        pairs.map(|(expert, share)| (*expert as usize, *share))
    }
}

/// Chooses `per_row` experts for each row of the router's `logits` (`[rows, experts]`).
///
/// Among equal logits the one with the lower index is chosen first. Experts are always chosen by
/// their logits: shares can be so small that they are equal.
/// A NaN counts as the smallest logit. A row's choice does not depend on other rows.
///
/// # Panics
///
/// When the lengths do not fit, or `per_row` is 0 or more than `experts`.
#[must_use]
pub fn choose(
    pool: &Pool,
    routing: Routing,
    logits: &[f32],
    experts: usize,
    per_row: usize,
) -> Choice {
    assert!(
        (1..=experts).contains(&per_row),
        "{per_row} of {experts} experts"
    );
    assert_eq!(logits.len() % experts, 0, "[rows, experts]");
    let count = logits.len() / experts * per_row;
    let mut choice = Choice {
        per_row,
        experts: vec![0; count],
        shares: vec![0.0; count],
    };
    // Experts and shares side by side, because the pool cuts slices of one type only.
    let mut pairs = vec![(0, 0.0); count];
    pool.for_each_chunk([&mut pairs], [ROWS * per_row], |index, [pairs]| {
        let rows = logits[index * ROWS * experts..].chunks_exact(experts);
        for (logits, chosen) in rows.zip(pairs.chunks_exact_mut(per_row)) {
            largest(logits, chosen);
            share(routing, logits, chosen);
        }
    });
    for (index, (expert, share)) in pairs.into_iter().enumerate() {
        choice.experts[index] = expert;
        choice.shares[index] = share;
    }
    choice
}

/// The largest logits with their indices, the largest first.
fn largest(logits: &[f32], chosen: &mut [(u32, f32)]) {
    let mut found = 0;
    for (index, logit) in logits.iter().enumerate() {
        let logit = number(*logit);
        // Behind all that are as large.
        let mut at = found;
        while at > 0 && chosen[at - 1].1.partial_cmp(&logit) == Some(Ordering::Less) {
            at -= 1;
        }
        if at == chosen.len() {
            continue;
        }
        found = chosen.len().min(found + 1);
        chosen[at..found].rotate_right(1);
        chosen[at] = (index as u32, logit);
    }
}

/// The logit, or the smallest one for NaN.
fn number(logit: f32) -> f32 {
    if logit.is_nan() {
        f32::NEG_INFINITY
    } else {
        logit
    }
}

/// Replaces the chosen logits by shares. All sums go from the first to the last.
fn share(routing: Routing, logits: &[f32], chosen: &mut [(u32, f32)]) {
    let highest = chosen[0].1;
    // Without this, infinite logits would give NaN.
    let power = |logit: f32| {
        if logit == highest {
            1.0
        } else {
            (logit - highest).exp()
        }
    };
    let all = match routing {
        Routing::SoftmaxAll { normalised: false } => logits
            .iter()
            .map(|logit| power(number(*logit)))
            .sum::<f32>(),
        // The sum over all experts cancels out.
        Routing::SoftmaxAll { normalised: true } | Routing::SoftmaxChosen => {
            chosen.iter().map(|(_, logit)| power(*logit)).sum()
        }
    };
    for (_, share) in chosen {
        *share = power(*share) / all;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::tests::numbers;
    use super::*;

    const ALL: Routing = Routing::SoftmaxAll { normalised: false };
    const NORMALISED: Routing = Routing::SoftmaxAll { normalised: true };

    /// The shares by the definition, in double precision, for a sorted choice.
    fn reference(routing: Routing, logits: &[f32], per_row: usize) -> Vec<(usize, f64)> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // A stable sort leaves the lower index first.
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let chosen = &order[..per_row];
        let softmax = |chosen: &[usize]| -> Vec<f64> {
            let powers: Vec<f64> = chosen.iter().map(|i| f64::from(logits[*i]).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.iter().map(|power| power / sum).collect()
        };
        let shares = match routing {
            Routing::SoftmaxChosen => softmax(chosen),
            Routing::SoftmaxAll { normalised } => {
                let all = softmax(&order);
                let sum: f64 = all[..per_row].iter().sum();
                let by = if normalised { sum } else { 1.0 };
                all[..per_row].iter().map(|share| share / by).collect()
            }
        };
        chosen.iter().copied().zip(shares).collect()
    }

    fn check(routing: Routing, logits: &[f32], experts: usize, per_row: usize) {
        let choice = choose(&Pool::new(1), routing, logits, experts, per_row);
        assert_eq!(choice.rows(), logits.len() / experts);
        for (row, logits) in logits.chunks(experts).enumerate() {
            let expected = reference(routing, logits, per_row);
            for ((expert, share), expected) in choice.of_row(row).zip(expected) {
                assert_eq!(expert, expected.0, "{logits:?}");
                let error = (f64::from(share) - expected.1).abs();
                assert!(error < 1e-6, "{share} for {}", expected.1);
            }
        }
    }

    proptest! {
        #[test]
        fn equals_the_definition(
            rows in 0_usize..5,
            experts in 1_usize..40,
            share in 0.0_f64..1.0,
            magnitude in 0.1_f32..10.0,
            whole: bool,
            seed in 0_u64..1000,
        ) {
            let per_row = 1 + (share * experts as f64) as usize;
            // Whole numbers are often equal.
            let logits = numbers(rows * experts, seed).into_iter().map(|x| x * magnitude);
            let logits: Vec<f32> = logits
                .map(|x| if whole { x.round() + 0.0 } else { x })
                .collect();
            for routing in [ALL, NORMALISED, Routing::SoftmaxChosen] {
                check(routing, &logits, experts, per_row.min(experts));
            }
        }
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        let choice = choose(&Pool::new(1), ALL, &[1.0, 2.0, 2.0, 1.0, 2.0], 5, 4);
        assert_eq!(choice.experts, [1, 2, 4, 0]);
    }

    #[test]
    fn division_by_the_sum_is_noticed() {
        let logits = numbers(64, 1);
        let shares = |routing| -> f32 {
            let choice = choose(&Pool::new(1), routing, &logits, 64, 8);
            choice.shares.iter().sum()
        };
        assert!((shares(NORMALISED) - 1.0).abs() < 1e-6);
        assert!(shares(ALL) < 0.5);
    }

    #[test]
    fn extreme_logits_give_shares() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        for routing in [ALL, NORMALISED, Routing::SoftmaxChosen] {
            for logits in [
                [3e38, -3e38, 0.0],
                [-infinity; 3],
                [infinity, infinity, 0.0],
                [nan, 1.0, nan],
                [nan; 3],
            ] {
                let choice = choose(&Pool::new(1), routing, &logits, 3, 2);
                let sum: f32 = choice.shares.iter().sum();
                assert!(sum.is_finite(), "{routing:?} of {logits:?}: {choice:?}");
                let [first, second] = [choice.experts[0], choice.experts[1]];
                assert_ne!(first, second);
            }
        }
    }

    #[test]
    fn threads_and_batches_leave_the_bits() {
        let logits = numbers(100 * 60, 3);
        for routing in [ALL, NORMALISED, Routing::SoftmaxChosen] {
            let one = choose(&Pool::new(1), routing, &logits, 60, 4);
            assert_eq!(choose(&Pool::new(3), routing, &logits, 60, 4), one);
            for (row, logits) in logits.chunks(60).enumerate() {
                let alone = choose(&Pool::new(1), routing, logits, 60, 4);
                assert!(alone.of_row(0).eq(one.of_row(row)));
            }
        }
    }

    #[test]
    #[should_panic(expected = "9 of 8 experts")]
    fn more_experts_than_there_are_are_rejected() {
        let _ = choose(&Pool::new(1), ALL, &[], 8, 9);
    }
}
