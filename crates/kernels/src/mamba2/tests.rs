//! Mamba 2 against a double-precision reference.

use proptest::prelude::*;

use super::super::tests::{Recurrent, Sequences, numbers};
use super::*;

const TOLERANCE: f64 = 4e-6;

/// A mistake of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Trap {
    #[default]
    None,
    /// Neighbouring heads belong to different groups.
    GroupsTiled,
    /// The state before the span is not used.
    Forgotten,
    /// The time step is not a factor of the input.
    InputUnscaled,
    /// The input that passes by the state is scaled by the time step, too.
    SkipScaled,
    /// The limits of the time step are ignored.
    Unlimited,
    /// The bias is added after softplus.
    LateBias,
    /// `B` and `C` are swapped.
    Swapped,
    /// The output is read before the state is updated.
    OutputEarly,
}

/// A layer that owns its parameters.
struct Owned {
    heads: usize,
    head_dim: usize,
    groups: usize,
    state_size: usize,
    decay_rates: Vec<f32>,
    skip: Vec<f32>,
    time_step_bias: Vec<f32>,
    limits: (f32, f32),
}

impl Owned {
    fn new([heads, head_dim]: [usize; 2], groups: usize, state_size: usize) -> Owned {
        let rates = numbers(heads, 3);
        Owned {
            heads,
            head_dim,
            groups,
            state_size,
            decay_rates: rates.iter().map(|x| -(x * 2.0).exp()).collect(),
            skip: numbers(heads, 4),
            time_step_bias: numbers(heads, 5),
            limits: (0.0, f32::INFINITY),
        }
    }

    fn mamba(&self) -> Mamba2<'_> {
        Mamba2 {
            heads: self.heads,
            head_dim: self.head_dim,
            groups: self.groups,
            state_size: self.state_size,
            decay_rates: &self.decay_rates,
            skip: &self.skip,
            time_step_bias: &self.time_step_bias,
            time_step_limits: self.limits,
        }
    }

    /// One token of one head.
    fn token(&self, head: usize, row: &[f64], raw: f64, state: &mut [f64], trap: Trap) -> Vec<f64> {
        let (dim, size) = (self.head_dim, self.state_size);
        let group = match trap {
            Trap::GroupsTiled => head % self.groups,
            _ => head / (self.heads / self.groups),
        };
        let softplus = |x: f64| if x > 30.0 { x } else { x.exp().ln_1p() };
        let bias = f64::from(self.time_step_bias[head]);
        let mut step = match trap {
            Trap::LateBias => softplus(raw) + bias,
            _ => softplus(raw + bias),
        };
        if trap != Trap::Unlimited {
            step = step.clamp(self.limits.0.into(), self.limits.1.into());
        }
        let decay = (f64::from(self.decay_rates[head]) * step).exp();
        let x = &row[head * dim..][..dim];
        let shared = &row[self.heads * dim..];
        let mut b = &shared[group * size..][..size];
        let mut c = &shared[(self.groups + group) * size..][..size];
        if trap == Trap::Swapped {
            (b, c) = (c, b);
        }
        let read = |state: &[f64], p: usize| -> f64 {
            (0..size).map(|n| state[p * size + n] * c[n]).sum()
        };
        let early: Vec<f64> = (0..dim).map(|p| read(state, p)).collect();
        let into = if trap == Trap::InputUnscaled {
            1.0
        } else {
            step
        };
        for p in 0..dim {
            for n in 0..size {
                let number = &mut state[p * size + n];
                *number = *number * decay + into * x[p] * b[n];
            }
        }
        let by = if trap == Trap::SkipScaled { step } else { 1.0 };
        let skip = f64::from(self.skip[head]) * by;
        let output = |p: usize| match trap {
            Trap::OutputEarly => early[p] + skip * x[p],
            _ => read(state, p) + skip * x[p],
        };
        (0..dim).map(output).collect()
    }
}

impl Recurrent for Owned {
    type Trap = Trap;

    fn input_widths(&self) -> Vec<usize> {
        vec![self.mamba().input_width(), self.heads]
    }

    fn output_width(&self) -> usize {
        self.mamba().output_width()
    }

    fn state_len(&self) -> usize {
        self.mamba().state_len()
    }

    fn run(
        &self,
        set: InstructionSet,
        pool: &Pool,
        inputs: &[Columns<'_>],
        spans: &mut [SpanState<'_>],
        output: &mut [f32],
    ) {
        let inputs = [inputs[0], inputs[1]];
        run_on(set, pool, &self.mamba(), inputs, spans, output);
    }

    fn reference(&self, inputs: &[&[f32]], state: &mut [f64], trap: Trap) -> Vec<f64> {
        if trap == Trap::Forgotten {
            state.fill(0.0);
        }
        let rows = inputs[0].chunks(self.mamba().input_width());
        let mut output = Vec::new();
        for (row, steps) in rows.zip(inputs[1].chunks(self.heads)) {
            let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let states = state.chunks_mut(self.head_dim * self.state_size);
            for (head, (state, step)) in states.zip(steps).enumerate() {
                output.extend(self.token(head, &row, f64::from(*step), state, trap));
            }
        }
        output
    }
}

const MAGNITUDES: [f32; 2] = [1.0, 3.0];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn equals_the_reference(
        groups in 1_usize..4,
        per_group in 1_usize..4,
        head_dim in 1_usize..40,
        sixteens in 1_usize..10,
        tokens in proptest::collection::vec(0_usize..9, 1..4),
        limited: bool,
        seed in 0_u64..1000,
    ) {
        let mut kernel = Owned::new([groups * per_group, head_dim], groups, 16 * sixteens);
        if limited {
            kernel.limits = (0.3, 1.5);
        }
        let mut sequences = Sequences::new(&kernel, &tokens, &MAGNITUDES, seed);
        sequences.assert_near(TOLERANCE);
        for (index, state) in sequences.states.iter_mut().enumerate() {
            *state = numbers(state.len(), seed + 100 + index as u64);
        }
        sequences.assert_near(TOLERANCE);
    }
}

#[test]
fn bits_do_not_depend_on_steps_batch_or_threads() {
    // With one head, three threads share its numbers.
    for (heads, groups, size) in [([4, 16], 2, 16), ([1, 100], 1, 32), ([3, 64], 1, 128)] {
        let kernel = Owned::new(heads, groups, size);
        Sequences::new(&kernel, &[9, 1, 17, 0], &MAGNITUDES, 5).assert_same_bits();
        Sequences::new(&kernel, &[12], &MAGNITUDES, 5).assert_same_bits();
    }
}

#[test]
fn mistakes_are_noticed() {
    let mut kernel = Owned::new([4, 16], 2, 16);
    kernel.limits = (0.3, 1.5);
    let mut sequences = Sequences::new(&kernel, &[12], &MAGNITUDES, 1);
    sequences.states[0] = numbers(kernel.state_len(), 8);
    sequences.assert_near(TOLERANCE);
    for trap in [
        Trap::GroupsTiled,
        Trap::Forgotten,
        Trap::InputUnscaled,
        Trap::SkipScaled,
        Trap::Unlimited,
        Trap::LateBias,
        Trap::Swapped,
        Trap::OutputEarly,
    ] {
        sequences.assert_notices(TOLERANCE, trap);
    }
}

#[test]
fn long_sequences_stay_near() {
    let mut kernel = Owned::new([2, 16], 1, 32);
    Sequences::new(&kernel, &[2000], &MAGNITUDES, 2).assert_near(4.0 * TOLERANCE);
    // Almost nothing decays.
    kernel.decay_rates.fill(-1e-3);
    Sequences::new(&kernel, &[2000], &MAGNITUDES, 2).assert_near(20.0 * TOLERANCE);
}

#[test]
fn extreme_time_steps_do_not_become_nan() {
    let mut kernel = Owned::new([2, 16], 1, 16);
    for rate in [-1e-30, -1.0, -1e30] {
        kernel.decay_rates.fill(rate);
        for magnitude in [1e-30, 100.0, 1e4, 1e20] {
            let sequences = Sequences::new(&kernel, &[50], &[1.0, magnitude], 3);
            for &set in InstructionSet::available() {
                let mut sequences = sequences.clone();
                let output = sequences.cut(set, &Pool::new(1), 0, &[50]);
                assert!(output.iter().all(|x| x.is_finite()), "{rate}, {magnitude}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "3 heads in 2 groups")]
fn groups_that_do_not_divide_are_rejected() {
    let kernel = Owned::new([3, 16], 2, 16);
    let none = Columns::all(&[], 1);
    mamba2(&Pool::new(1), &kernel.mamba(), none, none, &mut [], &mut []);
}
