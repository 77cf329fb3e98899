//! The cost of a step, learned from the steps that were run.
//!
//! A step's duration is modelled as a sum of three parts: one for every step (weights are
//! read), one for every token (it goes through all layers), and one for every cached token that
//! a token attends to. The parts are fitted to measured durations by least squares of the
//! relative error. The fit uses the latest steps of each size, and newer ones count more. Many
//! decode steps in a row therefore do not displace the cost of a prompt.

use std::time::Duration;

/// Number of size classes: powers of two.
const SIZES: usize = 16;
/// Steps of each size class that are remembered.
const STEPS_PER_SIZE: usize = 4;
/// Age, in steps, at which a measurement counts half as much as a new one.
const STEPS_TO_FADE: f64 = 32.0;
/// Number of parts of a cost.
const PARTS: usize = 3;
/// Regularization, which decides between parts that the steps so far do not separate. While all
/// steps have one size, their duration is attributed to tokens, not to the base. Prompts are
/// then cut, and steps of other sizes are measured. With the duration attributed to the base,
/// prompts would never be cut, since steps without them would seem to cost as much.
const SMOOTHING: [f64; PARTS] = [1e-3, 1e-6, 1e-6];

/// The load of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepLoad {
    /// Tokens that it evaluates.
    pub tokens: usize,
    /// Cached tokens that these attend to, summed over all of them.
    pub attended: f64,
}

/// The cost of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Cost of every step.
    pub base: f64,
    /// Cost of every token that it evaluates.
    pub per_token: f64,
    /// Cost of every cached token that one of these attends to.
    pub per_attended: f64,
}

/// Learns the cost of steps.
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
    /// Its number in the order of measurement.
    number: usize,
}

impl StepLoad {
    /// Returns the load of evaluating `tokens` tokens after `cached` others.
    #[must_use]
    pub fn span(tokens: usize, cached: usize) -> Self {
        let rows = tokens as f64;
        Self {
            tokens,
            attended: rows * (cached as f64 + (rows + 1.0) / 2.0),
        }
    }

    /// Returns the sum of both loads.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            attended: self.attended + other.attended,
        }
    }
}

impl StepCost {
    /// Returns the seconds that a step of this load takes.
    #[must_use]
    pub fn of(&self, load: StepLoad) -> f64 {
        self.base + self.marginal(load)
    }

    /// Returns the time that a step of this load takes; `None` if it is no `Duration`.
    #[must_use]
    pub fn time_of(self, load: StepLoad) -> Option<Duration> {
        Duration::try_from_secs_f64(self.of(load)).ok()
    }

    /// Returns the time per token when the load takes `steps` steps; `None` if a `Duration` cannot
    /// hold it.
    #[must_use]
    pub fn time_per_token(self, load: StepLoad, steps: usize) -> Option<Duration> {
        let seconds = self.base * steps as f64 + self.marginal(load);
        Duration::try_from_secs_f64(seconds / load.tokens as f64).ok()
    }

    /// Returns the seconds that this load adds to a step.
    #[must_use]
    pub fn marginal(&self, load: StepLoad) -> f64 {
        self.per_token * load.tokens as f64 + self.per_attended * load.attended
    }

    /// Returns the most tokens after `cached` others that add no more than `seconds` to a step.
    #[must_use]
    pub fn tokens_within(&self, seconds: f64, cached: usize) -> usize {
        if seconds <= 0.0 {
            return 0;
        }
        // half * c^2 + linear * c = seconds, solved without cancellation.
        let half = self.per_attended / 2.0;
        let linear = self.per_token + self.per_attended * (cached as f64 + 0.5);
        let root = (linear * linear + 4.0 * half * seconds).sqrt();
        // Infinite where tokens cost nothing; the bound is more than any step holds.
        (2.0 * seconds / (linear + root)).min(usize::MAX as f64) as usize
    }
}

impl CostModel {
    /// Returns the learned cost; `None` before the first step.
    #[must_use]
    pub fn cost(&self) -> Option<StepCost> {
        (self.observed > 0).then_some(self.fitted)
    }

    /// Returns the tokens of the largest step that is remembered; 0 before the first.
    #[must_use]
    pub fn tokens_seen(&self) -> usize {
        let steps = self.steps.iter().flatten().flatten();
        steps.map(|step| step.load.tokens).max().unwrap_or(0)
    }

    /// Records the duration of a step of this load.
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

    /// Fits the parts by least squares of the relative error. A negative part is set to 0, and
    /// the others are fitted without it.
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
    use crate::random_cases::check_cases;
    use crate::scheduler::policy::uniform;

    fn learn(actual: StepCost, loads: &[(usize, usize)]) -> StepCost {
        let mut model = CostModel::default();
        assert_eq!(model.cost(), None);
        for (tokens, cached) in loads {
            let load = StepLoad::span(*tokens, *cached);
            model.observe(load, Duration::from_secs_f64(actual.of(load)));
        }
        model.cost().expect("steps were seen")
    }

    const EXPECTED: StepCost = StepCost {
        base: 5e-3,
        per_token: 1e-4,
        per_attended: 2e-8,
    };

    #[test]
    fn cost_parts_are_separated() {
        let found = learn(
            EXPECTED,
            &[(1, 100), (4, 900), (16, 50), (200, 0), (256, 4000), (2, 0)],
        );
        for (found, actual) in [
            (found.base, EXPECTED.base),
            (found.per_token, EXPECTED.per_token),
            (found.per_attended, EXPECTED.per_attended),
        ] {
            assert!((found / actual - 1.0).abs() < 1e-2, "{found}, not {actual}");
        }
    }

    #[test]
    fn equal_steps_attribute_their_time_to_tokens() {
        let found = learn(EXPECTED, &[(256, 0); 20]);
        let alone = found.of(StepLoad::span(1, 0));
        assert!(
            alone < 0.01 * EXPECTED.of(StepLoad::span(256, 0)),
            "{alone}"
        );
    }

    #[test]
    fn decode_steps_do_not_displace_prefill_costs() {
        let mut loads = vec![(256, 0), (128, 512)];
        loads.extend((0..1000).map(|step| (4, 100 + step)));
        let found = learn(EXPECTED, &loads);
        let load = StepLoad::span(200, 300);
        assert!((found.of(load) / EXPECTED.of(load) - 1.0).abs() < 0.05);
    }

    #[test]
    fn tokens_within_is_the_largest_that_fits() {
        check_cases(10_000, 64, |random| {
            let cost = StepCost {
                base: uniform(random, 0.0..1.0)?,
                per_token: uniform(random, 1e-6..1e-2)?,
                per_attended: uniform(random, 0.0..1e-6)?,
            };
            let seconds = uniform(random, 0.0..2.0)?;
            let cached = random.int_in_range(0..=9_999)?;
            let tokens = cost.tokens_within(seconds, cached);
            let takes = |tokens| cost.marginal(StepLoad::span(tokens, cached));
            let inputs = format!("{seconds} s after {cached} tokens with {cost:?}");
            assert!(takes(tokens) <= seconds * (1.0 + 1e-9), "{inputs}");
            assert!(takes(tokens + 1) >= seconds * (1.0 - 1e-9), "{inputs}");
            Ok(())
        });
    }

    #[test]
    fn costs_are_never_negative() {
        check_cases(1_000, 512, |random| {
            let mut model = CostModel::default();
            for _ in 0..random.int_in_range(1..=39)? {
                let tokens = random.int_in_range(1..=599)?;
                let cached = random.int_in_range(0..=4_999)?;
                let seconds = uniform(random, 1e-5..1.0)?;
                let load = StepLoad::span(tokens, cached);
                model.observe(load, Duration::from_secs_f64(seconds));
                let cost = model.cost().expect("steps were seen");
                assert!(
                    cost.base >= 0.0 && cost.per_token >= 0.0 && cost.per_attended >= 0.0,
                    "{cost:?}"
                );
                assert!(cost.of(load).is_finite(), "{cost:?}");
            }
            Ok(())
        });
    }
}
