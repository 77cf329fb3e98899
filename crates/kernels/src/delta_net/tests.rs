//! The gated delta rule against a double-precision reference.

use proptest::prelude::*;

use super::super::tests::{Recurrent, Sequences, numbers};
use super::*;

const TOLERANCE: f64 = 4e-6;

/// A mistake of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Trap {
    #[default]
    None,
    /// The epsilon is added to the mean of the squares.
    EpsilonOnMean,
    /// Neighbouring value heads belong to different key heads.
    HeadsTiled,
    /// The state before the span is not used.
    Forgotten,
    /// Queries are not divided by the root of their length.
    Unscaled,
    /// The value is compared with the state before its decay.
    RecalledEarly,
    /// The output is read before the state is updated.
    OutputEarly,
    /// The exponential of the rate is left out.
    DecayIsRate,
    /// `beta` is not squashed.
    RawBeta,
}

/// A delta net that owns its parameters.
struct Owned {
    heads: [usize; 2],
    dims: [usize; 2],
    decay_rates: Vec<f32>,
    time_step_bias: Vec<f32>,
}

impl Owned {
    /// `heads` and `dims` of keys and values.
    fn new(heads: [usize; 2], dims: [usize; 2]) -> Owned {
        let rates = numbers(heads[1], 3);
        Owned {
            heads,
            dims,
            decay_rates: rates.iter().map(|x| -(x * 2.0).exp()).collect(),
            time_step_bias: numbers(heads[1], 4),
        }
    }

    fn net(&self) -> DeltaNet<'_> {
        DeltaNet {
            key_heads: self.heads[0],
            value_heads: self.heads[1],
            key_dim: self.dims[0],
            value_dim: self.dims[1],
            decay_rates: &self.decay_rates,
            time_step_bias: &self.time_step_bias,
        }
    }

    /// One token of one value head, as in the paper's equation (10).
    fn token(&self, head: usize, rows: [&[f64]; 3], state: &mut [f64], trap: Trap) -> Vec<f64> {
        let [qkv, decay, beta] = rows;
        let ([key_heads, value_heads], [dk, dv]) = (self.heads, self.dims);
        let key_head = match trap {
            Trap::HeadsTiled => head % key_heads,
            _ => head / (value_heads / key_heads),
        };
        let unit = |row: &[f64]| -> Vec<f64> {
            let squares: f64 = row.iter().map(|x| x * x).sum();
            let epsilon = match trap {
                Trap::EpsilonOnMean => 1e-6 * dk as f64,
                _ => 1e-6,
            };
            row.iter().map(|x| x / (squares + epsilon).sqrt()).collect()
        };
        let scale = if trap == Trap::Unscaled {
            1.0
        } else {
            (dk as f64).sqrt()
        };
        let query = unit(&qkv[key_head * dk..][..dk]);
        let key = unit(&qkv[(key_heads + key_head) * dk..][..dk]);
        let value = &qkv[2 * key_heads * dk + head * dv..][..dv];
        let step = (decay[head] + f64::from(self.time_step_bias[head])).exp();
        let rate = f64::from(self.decay_rates[head]) * step.ln_1p();
        let decay = if trap == Trap::DecayIsRate {
            rate
        } else {
            rate.exp()
        };
        let beta = match trap {
            Trap::RawBeta => beta[head],
            _ => 1.0 / (1.0 + (-beta[head]).exp()),
        };
        let read = |state: &[f64], row: &[f64], j: usize| -> f64 {
            (0..dk).map(|i| state[i * dv + j] * row[i]).sum()
        };
        let early: Vec<f64> = (0..dv).map(|j| read(state, &key, j)).collect();
        state.iter_mut().for_each(|x| *x *= decay);
        let before: Vec<f64> = (0..dv).map(|j| read(state, &query, j) / scale).collect();
        for j in 0..dv {
            let recalled = match trap {
                Trap::RecalledEarly => early[j],
                _ => read(state, &key, j),
            };
            let delta = beta * (value[j] - recalled);
            for i in 0..dk {
                state[i * dv + j] += key[i] * delta;
            }
        }
        if trap == Trap::OutputEarly {
            return before;
        }
        (0..dv).map(|j| read(state, &query, j) / scale).collect()
    }
}

impl Recurrent for Owned {
    type Trap = Trap;

    fn input_widths(&self) -> Vec<usize> {
        vec![self.net().input_width(), self.heads[1], self.heads[1]]
    }

    fn output_width(&self) -> usize {
        self.net().output_width()
    }

    fn state_len(&self) -> usize {
        self.net().state_len()
    }

    fn run(
        &self,
        set: InstructionSet,
        pool: &Pool,
        inputs: &[Columns<'_>],
        spans: &mut [SpanState<'_>],
        output: &mut [f32],
    ) {
        let &[qkv, decay, beta] = inputs else {
            unreachable!("three inputs")
        };
        let rows = DeltaRows { qkv, decay, beta };
        run_on(set, pool, &self.net(), rows, spans, output);
    }

    fn reference(&self, inputs: &[&[f32]], state: &mut [f64], trap: Trap) -> Vec<f64> {
        if trap == Trap::Forgotten {
            state.fill(0.0);
        }
        let widths = self.input_widths();
        let each = self.dims[0] * self.dims[1];
        let mut output = Vec::new();
        for token in 0..inputs[0].len() / widths[0] {
            let rows: Vec<Vec<f64>> = inputs
                .iter()
                .zip(&widths)
                .map(|(input, width)| {
                    let row = &input[token * width..][..*width];
                    row.iter().map(|x| f64::from(*x)).collect()
                })
                .collect();
            let rows = [&rows[0][..], &rows[1][..], &rows[2][..]];
            for (head, state) in state.chunks_mut(each).enumerate() {
                output.extend(self.token(head, rows, state, trap));
            }
        }
        output
    }
}

const MAGNITUDES: [f32; 3] = [1.0, 3.0, 3.0];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn equals_the_reference(
        key_heads in 1_usize..4,
        per_key in 1_usize..4,
        key_dim in 1_usize..40,
        sixteens in 1_usize..10,
        tokens in proptest::collection::vec(0_usize..9, 1..4),
        seed in 0_u64..1000,
    ) {
        let kernel = Owned::new([key_heads, key_heads * per_key], [key_dim, 16 * sixteens]);
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
    // With one head, three threads share its columns.
    for (heads, dims) in [
        ([2, 4], [16, 16]),
        ([1, 1], [16, 208]),
        ([1, 3], [128, 128]),
    ] {
        let kernel = Owned::new(heads, dims);
        Sequences::new(&kernel, &[9, 1, 17, 0], &MAGNITUDES, 5).assert_same_bits();
        Sequences::new(&kernel, &[12], &MAGNITUDES, 5).assert_same_bits();
    }
}

#[test]
fn mistakes_are_noticed() {
    let kernel = Owned::new([2, 4], [16, 16]);
    let mut sequences = Sequences::new(&kernel, &[12], &MAGNITUDES, 1);
    sequences.states[0] = numbers(kernel.state_len(), 8);
    sequences.assert_near(TOLERANCE);
    for trap in [
        Trap::HeadsTiled,
        Trap::Forgotten,
        Trap::Unscaled,
        Trap::RecalledEarly,
        Trap::OutputEarly,
        Trap::DecayIsRate,
        Trap::RawBeta,
    ] {
        sequences.assert_notices(TOLERANCE, trap);
    }
}

/// The epsilon shows only where queries and keys are small.
#[test]
fn epsilon_is_added_to_the_sum() {
    let kernel = Owned::new([2, 4], [16, 16]);
    let mut sequences = Sequences::new(&kernel, &[12], &MAGNITUDES, 1);
    let width = kernel.input_widths()[0];
    for row in sequences.inputs[0][0].chunks_mut(width) {
        row[..2 * 2 * 16].iter_mut().for_each(|x| *x *= 1e-3);
    }
    sequences.assert_near(TOLERANCE);
    sequences.assert_notices(TOLERANCE, Trap::EpsilonOnMean);
}

#[test]
fn long_sequences_stay_near() {
    let kernel = Owned::new([1, 2], [32, 32]);
    Sequences::new(&kernel, &[2000], &MAGNITUDES, 2).assert_near(4.0 * TOLERANCE);
    // Almost nothing decays and each value is replaced as a whole.
    let mut kernel = Owned::new([1, 2], [32, 32]);
    kernel.decay_rates.fill(-1e-4);
    let mut sequences = Sequences::new(&kernel, &[2000], &[1.0, 1.0, 0.0], 2);
    sequences.inputs[0][2].fill(20.0);
    sequences.assert_near(10.0 * TOLERANCE);
}

#[test]
fn extreme_gates_do_not_become_nan() {
    let mut kernel = Owned::new([1, 2], [16, 16]);
    for rate in [-1e-30, -1.0, -1e30] {
        kernel.decay_rates.fill(rate);
        for magnitude in [1e-30, 100.0, 1e4, 1e30] {
            let magnitudes = [1.0, magnitude, magnitude];
            let sequences = Sequences::new(&kernel, &[50], &magnitudes, 3);
            for &set in InstructionSet::available() {
                let mut sequences = sequences.clone();
                let output = sequences.cut(set, &Pool::new(1), 0, &[50]);
                assert!(output.iter().all(|x| x.is_finite()), "{rate}, {magnitude}");
            }
        }
    }
    // Queries, keys and values of zero.
    let mut sequences = Sequences::new(&kernel, &[3], &[0.0, 1.0, 1.0], 3);
    let output = sequences.cut(InstructionSet::best(), &Pool::new(1), 0, &[3]);
    assert!(output.iter().all(|x| *x == 0.0));
}

#[test]
#[should_panic(expected = "3 value heads of 2 key heads")]
fn heads_that_do_not_divide_are_rejected() {
    let kernel = Owned::new([2, 3], [16, 16]);
    let none = Columns::all(&[], 1);
    let rows = DeltaRows {
        qkv: none,
        decay: none,
        beta: none,
    };
    delta_net(&Pool::new(1), &kernel.net(), rows, &mut [], &mut []);
}
