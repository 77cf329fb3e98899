//! The cost of a small step by its number of rows, as measured.
//!
//! A step's duration is no straight line of its rows: kernels work on tiles of two, four or eight
//! of them, so that the next row may be free, or cost as much as four. Draft rows are added one by
//! one, and need the cost of each number. The measured durations correct those that
//! [`StepCost`] predicts.

use std::time::Duration;

use super::step_cost::{StepCost, StepLoad};

/// Most rows whose cost is measured. Larger steps are predicted.
pub const ROWS_MAX: usize = 32;
/// Most measurements of a number of rows that count.
const MEASUREMENTS_MAX: f64 = 8.0;
/// Steps after which a measurement counts half as much.
const STEPS_TO_HALVE: f64 = 256.0;
/// Share of a measurement that also counts for the next larger and the next smaller number of
/// rows, of that for the next, and so on.
const NEIGHBOUR: f64 = 1.0 / 16.0;
/// Rows on each side that count: those further away would hardly.
const NEIGHBOURS: usize = 3;
/// The prediction counts as much as this part of a measurement.
const PREDICTION: f64 = 0.25;

/// The measured durations of small steps, by their number of rows.
#[derive(Clone, Debug)]
pub struct RowCosts {
    rows: [Measured; ROWS_MAX],
    steps: u64,
    /// Time that the device waits for the next step after one with drafts, in seconds.
    idle_after_drafts: f64,
}

/// The mean duration of the latest steps with one number of rows, as a multiple of the predicted
/// one.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    factor: f64,
    /// Measurements in the mean, at most [`MEASUREMENTS_MAX`].
    count: f64,
    /// Number of the latest step in it.
    step: u64,
}

/// The cost of small steps, for one plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowCost {
    /// Duration of a step with so many rows, less one, as a multiple of the predicted one.
    pub factors: [f64; ROWS_MAX],
    /// Seconds that a step with drafts delays the next one.
    pub idle_after_drafts: f64,
}

impl RowCosts {
    /// Records the duration of a step that `cost` predicts otherwise.
    pub fn observe(&mut self, load: StepLoad, took: Duration, cost: &StepCost) {
        let predicted = cost.of(load);
        let Some(measured) = load
            .tokens
            .checked_sub(1)
            .and_then(|row| self.rows.get_mut(row))
        else {
            return;
        };
        if predicted <= 0.0 {
            return;
        }
        self.steps += 1;
        // No draft is verified while waiting costs too much, and so no wait is measured.
        self.idle_after_drafts *= (-1.0 / STEPS_TO_HALVE).exp2();
        let count = measured.faded(self.steps) + 1.0;
        let factor = took.as_secs_f64() / predicted;
        *measured = Measured {
            factor: measured.factor + (factor - measured.factor) / count,
            count: count.min(MEASUREMENTS_MAX),
            step: self.steps,
        };
    }

    /// Records how long the device waited, after a step with drafts, for one that took this long. A
    /// longer wait than that had other reasons.
    pub fn observe_idle(&mut self, idle: Duration, took: Duration) {
        let idle = idle.min(took).as_secs_f64();
        self.idle_after_drafts += (idle - self.idle_after_drafts) / MEASUREMENTS_MAX;
    }

    /// Returns the cost of small steps now.
    #[must_use]
    pub fn now(&self) -> RowCost {
        let faded = self.rows.map(|measured| measured.faded(self.steps));
        let factor = |row: usize| {
            let (mut sum, mut weights) = (PREDICTION, PREDICTION);
            let counted = self.rows.iter().zip(faded).enumerate();
            let counted = counted.take(row + NEIGHBOURS + 1);
            for (other, (measured, faded)) in counted.skip(row.saturating_sub(NEIGHBOURS)) {
                let weight = faded * NEIGHBOUR.powi(row.abs_diff(other) as i32);
                sum += weight * measured.factor;
                weights += weight;
            }
            sum / weights
        };
        RowCost {
            factors: std::array::from_fn(factor),
            idle_after_drafts: self.idle_after_drafts,
        }
    }
}

impl Measured {
    /// Returns how many measurements it still counts as, at this step.
    fn faded(&self, step: u64) -> f64 {
        self.count * (-((step - self.step) as f64) / STEPS_TO_HALVE).exp2()
    }
}

impl RowCost {
    /// The cost of small steps where none is measured.
    pub const PREDICTED: Self = Self {
        factors: [1.0; ROWS_MAX],
        idle_after_drafts: 0.0,
    };

    /// Returns the seconds that a step of this load takes.
    #[must_use]
    pub fn of(&self, load: StepLoad, cost: &StepCost) -> f64 {
        let row = load.tokens.saturating_sub(1).min(ROWS_MAX - 1);
        cost.of(load) * self.factors[row]
    }
}

impl Default for RowCosts {
    fn default() -> Self {
        Self {
            rows: [Measured::default(); ROWS_MAX],
            steps: 0,
            idle_after_drafts: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: StepCost = StepCost {
        base: 10e-3,
        per_token: 1e-3,
        per_attended: 0.0,
    };

    fn observe(costs: &mut RowCosts, rows: usize, factor: f64) {
        let load = StepLoad::span(rows, 0);
        costs.observe(load, Duration::from_secs_f64(factor * COST.of(load)), &COST);
    }

    fn factor(costs: &RowCosts, rows: usize) -> f64 {
        let load = StepLoad::span(rows, 0);
        costs.now().of(load, &COST) / COST.of(load)
    }

    #[test]
    fn measured_rows_replace_the_prediction() {
        let mut costs = RowCosts::default();
        assert_eq!(costs.now(), RowCost::PREDICTED);
        for _ in 0..8 {
            observe(&mut costs, 4, 2.0);
            observe(&mut costs, 5, 3.0);
        }
        assert!((factor(&costs, 4) - 2.0).abs() < 0.1);
        assert!((factor(&costs, 5) - 3.0).abs() < 0.2);
        assert!(factor(&costs, 3) > 1.5, "the next number is like it");
        assert!((factor(&costs, 20) - 1.0).abs() < 0.1);
        assert_eq!(
            factor(&costs, ROWS_MAX + 1),
            factor(&costs, ROWS_MAX),
            "larger steps are as the largest"
        );
    }

    #[test]
    fn a_long_wait_makes_drafts_dear_for_a_while_only() {
        let mut costs = RowCosts::default();
        let step = Duration::from_millis(10);
        costs.observe_idle(Duration::from_secs(9), step);
        let idle = costs.now().idle_after_drafts;
        assert!(idle > 0.0 && idle < step.as_secs_f64() / 4.0, "{idle}");
        for _ in 0..2048 {
            observe(&mut costs, 1, 1.0);
        }
        assert!(costs.now().idle_after_drafts < idle / 100.0);
    }

    #[test]
    fn old_measurements_fade() {
        let mut costs = RowCosts::default();
        observe(&mut costs, 4, 5.0);
        for _ in 0..4096 {
            observe(&mut costs, 30, 1.0);
        }
        assert!((factor(&costs, 4) - 1.0).abs() < 0.1);
        for _ in 0..8 {
            observe(&mut costs, 4, 0.5);
        }
        assert!((factor(&costs, 4) - 0.5).abs() < 0.05);
    }
}
