//! What a step costs, learned from the steps that were run.
//!
//! A step's time is taken for a sum of three parts: one for every step (weights are
//! read), one for every token (it goes through all layers), and one for every cached
//! token that a token attends to. The parts are fitted to what steps have taken, by
//! least squares of the relative error, over the latest steps of each size, newer ones
//! more: many decode steps in a row do not make it forget what a prompt costs.

use std::time::Duration;

/// Sizes that are told apart: powers of two.
const SIZES: usize = 16;
/// Steps of each size that are remembered.
const STEPS_PER_SIZE: usize = 4;
/// Steps after which what a step has taken counts half, beside newer ones.
const STEPS_TO_FADE: f64 = 32.0;
/// Parts that a cost is the sum of.
const PARTS: usize = 3;
/// What decides between parts that the steps so far do not tell apart. While all are of
/// one size their time is put down to their tokens, and not to the base: then prompts are
/// cut, and steps of another size are seen. Put down to the base, prompts would never be
/// cut, for the sake of steps that cost as much without them.
const SMOOTHING: [f64; PARTS] = [1e-3, 1e-6, 1e-6];

/// How much a step has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepLoad {
    /// Tokens that it evaluates.
    pub tokens: usize,
    /// Cached tokens that these attend to, summed over all of them.
    pub attended: f64,
}

/// What a step costs, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Every step.
    pub base: f64,
    /// Every token that it evaluates.
    pub per_token: f64,
    /// Every cached token that one of these attends to.
    pub per_attended: f64,
}

/// Learns what steps cost.
#[derive(Clone, Debug, Default)]
pub struct CostModel {
    steps: [[Option<Observed>; STEPS_PER_SIZE]; SIZES],
    observed: usize,
    fitted: StepCost,
}

#[derive(Clone, Copy, Debug)]
struct Observed {
    load: StepLoad,
    seconds: f64,
    /// Its number.
    number: usize,
}

impl StepLoad {
    /// The load of evaluating `tokens` tokens after `cached` others.
    #[must_use]
    pub fn span(tokens: usize, cached: usize) -> Self {
        let rows = tokens as f64;
        Self {
            tokens,
            attended: rows * (cached as f64 + (rows + 1.0) / 2.0),
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            attended: self.attended + other.attended,
        }
    }
}

impl StepCost {
    /// Seconds that a step of this load takes.
    #[must_use]
    pub fn of(&self, load: StepLoad) -> f64 {
        self.base + self.marginal(load)
    }

    /// Seconds that this load adds to a step.
    #[must_use]
    pub fn marginal(&self, load: StepLoad) -> f64 {
        self.per_token * load.tokens as f64 + self.per_attended * load.attended
    }

    /// The most tokens after `cached` others that add no more than `seconds` to a step.
    #[must_use]
    pub fn tokens_within(&self, seconds: f64, cached: usize) -> usize {
        if seconds <= 0.0 {
            return 0;
        }
        // half * c^2 + linear * c = seconds, solved without cancellation.
        let half = self.per_attended / 2.0;
        let linear = self.per_token + self.per_attended * (cached as f64 + 0.5);
        let root = (linear * linear + 4.0 * half * seconds).sqrt();
        // More than any step: costs nothing that was ever measured.
        (2.0 * seconds / (linear + root)).min(usize::MAX as f64) as usize
    }
}

impl CostModel {
    /// What is known; `None` before the first step.
    #[must_use]
    pub fn cost(&self) -> Option<StepCost> {
        (self.observed > 0).then_some(self.fitted)
    }

    /// Tokens of the largest step that is remembered; 0 before the first.
    #[must_use]
    pub fn tokens_seen(&self) -> usize {
        let steps = self.steps.iter().flatten().flatten();
        steps.map(|step| step.load.tokens).max().unwrap_or(0)
    }

    /// A step of this load has taken so long.
    pub fn observe(&mut self, load: StepLoad, took: Duration) {
        if load.tokens == 0 {
            return;
        }
        let size = (load.tokens.ilog2() as usize).min(SIZES - 1);
        let row = &mut self.steps[size];
        row.rotate_right(1);
        row[0] = Some(Observed {
            load,
            seconds: took.as_secs_f64().max(1e-9),
            number: self.observed,
        });
        self.observed += 1;
        self.fitted = self.fit();
    }

    /// Least squares of the relative error. A part that would be negative is nothing,
    /// and the others are fitted without it.
    fn fit(&self) -> StepCost {
        let mut used = [true; PARTS];
        loop {
            let parts = self.solve(used);
            match (0..PARTS).find(|part| parts[*part] < 0.0) {
                Some(part) => used[part] = false,
                None => {
                    return StepCost {
                        base: parts[0],
                        per_token: parts[1],
                        per_attended: parts[2],
                    };
                }
            }
        }
    }

    fn solve(&self, used: [bool; PARTS]) -> [f64; PARTS] {
        let mut matrix = [[0.0; PARTS + 1]; PARTS];
        for step in self.steps.iter().flatten().flatten() {
            let features = [1.0, step.load.tokens as f64, step.load.attended];
            let age = (self.observed - step.number) as f64 / STEPS_TO_FADE;
            let weight = 1.0 / (step.seconds * (1.0 + age).sqrt());
            let relative = features.map(|feature| feature * weight);
            for row in 0..PARTS {
                for column in 0..PARTS {
                    matrix[row][column] += relative[row] * relative[column];
                }
                matrix[row][PARTS] += relative[row] * step.seconds * weight;
            }
        }
        for (part, row) in matrix.iter_mut().enumerate() {
            if used[part] {
                row[part] *= 1.0 + SMOOTHING[part];
            } else {
                *row = [0.0; PARTS + 1];
                row[part] = 1.0;
            }
        }
        eliminate(matrix)
    }
}

/// Solves a symmetric positive system, the right side in the last column.
fn eliminate(mut matrix: [[f64; PARTS + 1]; PARTS]) -> [f64; PARTS] {
    for pivot in 0..PARTS {
        let pivot_row = matrix[pivot];
        let scale = pivot_row[pivot];
        if scale <= 0.0 {
            continue;
        }
        for (index, row) in matrix.iter_mut().enumerate() {
            if index != pivot {
                let factor = row[pivot] / scale;
                for (number, by) in row.iter_mut().zip(pivot_row) {
                    *number -= factor * by;
                }
            }
        }
    }
    std::array::from_fn(|part| match matrix[part][part] {
        scale if scale > 0.0 => matrix[part][PARTS] / scale,
        _ => 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn learn(truth: StepCost, loads: &[(usize, usize)]) -> StepCost {
        let mut model = CostModel::default();
        assert_eq!(model.cost(), None);
        for (tokens, cached) in loads {
            let load = StepLoad::span(*tokens, *cached);
            model.observe(load, Duration::from_secs_f64(truth.of(load)));
        }
        model.cost().expect("steps were seen")
    }

    const TRUTH: StepCost = StepCost {
        base: 5e-3,
        per_token: 1e-4,
        per_attended: 2e-8,
    };

    #[test]
    fn parts_are_told_apart() {
        let found = learn(
            TRUTH,
            &[(1, 100), (4, 900), (16, 50), (200, 0), (256, 4000), (2, 0)],
        );
        for (found, truth) in [
            (found.base, TRUTH.base),
            (found.per_token, TRUTH.per_token),
            (found.per_attended, TRUTH.per_attended),
        ] {
            assert!((found / truth - 1.0).abs() < 1e-2, "{found}, not {truth}");
        }
    }

    #[test]
    fn what_steps_of_one_size_take_is_put_down_to_their_tokens() {
        let found = learn(TRUTH, &[(256, 0); 20]);
        let alone = found.of(StepLoad::span(1, 0));
        assert!(alone < 0.01 * TRUTH.of(StepLoad::span(256, 0)), "{alone}");
    }

    #[test]
    fn decode_alone_is_not_forgotten_and_does_not_make_forget() {
        let mut loads = vec![(256, 0), (128, 512)];
        loads.extend((0..1000).map(|step| (4, 100 + step)));
        let found = learn(TRUTH, &loads);
        let load = StepLoad::span(200, 300);
        assert!((found.of(load) / TRUTH.of(load) - 1.0).abs() < 0.05);
    }

    proptest! {
        #[test]
        fn what_fits_fits_and_one_more_does_not(
            base in 0.0f64..1.0,
            per_token in 1e-6f64..1e-2,
            per_attended in 0.0f64..1e-6,
            seconds in 0.0f64..2.0,
            cached in 0usize..10_000,
        ) {
            let cost = StepCost { base, per_token, per_attended };
            let tokens = cost.tokens_within(seconds, cached);
            let takes = |tokens| cost.marginal(StepLoad::span(tokens, cached));
            prop_assert!(takes(tokens) <= seconds * (1.0 + 1e-9));
            prop_assert!(takes(tokens + 1) >= seconds * (1.0 - 1e-9));
        }

        #[test]
        fn nothing_costs_less_than_nothing(
            steps in proptest::collection::vec((1usize..600, 0usize..5000, 1e-5f64..1.0), 1..40),
        ) {
            let mut model = CostModel::default();
            for (tokens, cached, seconds) in steps {
                let load = StepLoad::span(tokens, cached);
                model.observe(load, Duration::from_secs_f64(seconds));
                let cost = model.cost().expect("steps were seen");
                prop_assert!(cost.base >= 0.0 && cost.per_token >= 0.0 && cost.per_attended >= 0.0);
                prop_assert!(cost.of(load).is_finite());
            }
        }
    }
}
