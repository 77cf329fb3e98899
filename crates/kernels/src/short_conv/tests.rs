//! Convolutions against a double-precision reference.

use proptest::prelude::*;

use super::super::tests::{Recurrent, Sequences, numbers};
use super::*;

const TOLERANCE: f64 = 2e-6;

/// A mistake of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Trap {
    #[default]
    None,
    /// The first weight is of the present token.
    Reversed,
    /// The state before the span is not used.
    Forgotten,
    /// The newest token of the state is first.
    StateReversed,
    /// The bias is added after the activation or the gate.
    LateBias,
    /// `C` gates the input and `B` the output.
    GatesSwapped,
}

/// A convolution that owns its parameters.
struct Owned {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    kernel: usize,
    kind: ConvKind,
}

impl Owned {
    fn new(channels: usize, kernel: usize, biased: bool, kind: ConvKind) -> Owned {
        Owned {
            weight: numbers(channels * kernel, 3),
            bias: biased.then(|| numbers(channels, 4)),
            kernel,
            kind,
        }
    }

    fn conv(&self) -> ShortConv<'_> {
        ShortConv {
            weight: &self.weight,
            kernel: self.kernel,
            bias: self.bias.as_deref(),
            kind: self.kind,
        }
    }
}

impl Recurrent for Owned {
    type Trap = Trap;

    fn input_widths(&self) -> Vec<usize> {
        vec![self.conv().input_width()]
    }

    fn output_width(&self) -> usize {
        self.conv().channels()
    }

    fn state_len(&self) -> usize {
        self.conv().state_len()
    }

    fn run(
        &self,
        set: InstructionSet,
        pool: &Pool,
        inputs: &[Columns<'_>],
        spans: &mut [SpanState<'_>],
        output: &mut [f32],
    ) {
        run_on(set, pool, &self.conv(), inputs[0], spans, output);
    }

    fn reference(&self, inputs: &[&[f32]], state: &mut [f64], trap: Trap) -> Vec<f64> {
        let (channels, kernel) = (self.output_width(), self.kernel);
        let mut past: Vec<Vec<f64>> = state.chunks(channels).map(<[f64]>::to_vec).collect();
        match trap {
            Trap::Forgotten => past.iter_mut().for_each(|row| row.fill(0.0)),
            Trap::StateReversed => past.reverse(),
            _ => {}
        }
        let mut output = Vec::new();
        for row in inputs[0].chunks(self.conv().input_width()) {
            let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let third = |index: usize, channel: usize| row[index * channels + channel];
            let (before, after) = if trap == Trap::GatesSwapped {
                (1, 0)
            } else {
                (0, 1)
            };
            let input = |channel| match self.kind {
                ConvKind::Gated => third(before, channel) * third(2, channel),
                ConvKind::Silu => row[channel],
            };
            past.push((0..channels).map(input).collect());
            for channel in 0..channels {
                let weight = |tap: usize| f64::from(self.weight[tap * channels + channel]);
                let seen = past[past.len() - kernel..].iter().enumerate();
                let sum: f64 = seen
                    .map(|(tap, past)| match trap {
                        Trap::Reversed => weight(kernel - 1 - tap) * past[channel],
                        _ => weight(tap) * past[channel],
                    })
                    .sum();
                let bias = self.bias.as_ref().map_or(0.0, |bias| bias[channel].into());
                let (early, late) = if trap == Trap::LateBias {
                    (0.0, bias)
                } else {
                    (bias, 0.0)
                };
                let sum = sum + early;
                output.push(match self.kind {
                    ConvKind::Silu => sum / (1.0 + (-sum).exp()) + late,
                    ConvKind::Gated => third(after, channel) * sum + late,
                });
            }
        }
        let left = past.len() - (kernel - 1);
        state.copy_from_slice(&past[left..].concat());
        output
    }
}

fn kinds() -> impl Strategy<Value = ConvKind> {
    prop_oneof![Just(ConvKind::Silu), Just(ConvKind::Gated)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn equals_the_reference(
        channels in 1_usize..80,
        kernel in 2_usize..=KERNEL_MAX,
        biased: bool,
        kind in kinds(),
        tokens in proptest::collection::vec(0_usize..20, 1..4),
        seed in 0_u64..1000,
    ) {
        let kernel = Owned::new(channels, kernel, biased, kind);
        let mut sequences = Sequences::new(&kernel, &tokens, &[2.0], seed);
        sequences.assert_near(TOLERANCE);
        // From a state that is not zero.
        for (index, state) in sequences.states.iter_mut().enumerate() {
            *state = numbers(state.len(), seed + 100 + index as u64);
        }
        sequences.assert_near(TOLERANCE);
    }
}

#[test]
fn bits_do_not_depend_on_steps_batch_or_threads() {
    for kind in [ConvKind::Silu, ConvKind::Gated] {
        for (channels, kernel) in [(7, 2), (70, 4), (1040, 3)] {
            let kernel = Owned::new(channels, kernel, true, kind);
            Sequences::new(&kernel, &[9, 1, 30, 0], &[2.0], 5).assert_same_bits();
        }
    }
}

#[test]
fn mistakes_are_noticed() {
    for (kind, trap) in [
        (ConvKind::Silu, Trap::Reversed),
        (ConvKind::Silu, Trap::Forgotten),
        (ConvKind::Silu, Trap::StateReversed),
        (ConvKind::Silu, Trap::LateBias),
        (ConvKind::Gated, Trap::Reversed),
        (ConvKind::Gated, Trap::LateBias),
        (ConvKind::Gated, Trap::GatesSwapped),
    ] {
        let kernel = Owned::new(16, 4, true, kind);
        let mut sequences = Sequences::new(&kernel, &[5], &[1.0], 1);
        sequences.states[0] = numbers(kernel.state_len(), 8);
        sequences.assert_near(TOLERANCE);
        sequences.assert_notices(TOLERANCE, trap);
    }
}

#[test]
fn long_sequences_stay_near() {
    let kernel = Owned::new(16, 4, true, ConvKind::Silu);
    Sequences::new(&kernel, &[2000], &[2.0], 2).assert_near(TOLERANCE);
}

#[test]
fn extreme_inputs_do_not_become_nan() {
    let kernel = Owned::new(16, 4, true, ConvKind::Silu);
    let mut sequences = Sequences::new(&kernel, &[20], &[1e30], 2);
    let output = sequences.cut(InstructionSet::best(), &Pool::new(1), 0, &[20]);
    assert!(output.iter().all(|x| x.is_finite()));
}

#[test]
fn state_of_a_short_sequence_begins_with_zeros() {
    let kernel = Owned::new(3, 4, false, ConvKind::Silu);
    let mut sequences = Sequences::new(&kernel, &[1], &[1.0], 2);
    sequences.cut(InstructionSet::best(), &Pool::new(1), 0, &[1]);
    assert_eq!(sequences.states[0][..6], [0.0; 6]);
    assert_eq!(sequences.states[0][6..], sequences.inputs[0][0]);
}

#[test]
#[should_panic(expected = "a kernel of 9")]
fn large_kernels_are_rejected() {
    let kernel = Owned::new(1, 9, false, ConvKind::Silu);
    short_conv(
        &Pool::new(1),
        &kernel.conv(),
        Columns::all(&[], 1),
        &mut [],
        &mut [],
    );
}
