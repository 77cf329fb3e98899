//! The checks that the tests of recurrent kernels have in common.

use std::ops::Range;

use motet_formats::simd::InstructionSet;

use super::pool::Pool;
use super::spans::{Columns, SpanState};

/// Numbers without a pattern, from -1 to 1.
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The largest difference, relative to numbers above 1.
pub(crate) fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0, |largest, (found, expected)| {
        let error = (f64::from(*found) - expected).abs() / (1.0 + expected.abs());
        // A NaN is the largest of all.
        if error <= largest { largest } else { error }
    })
}

/// A recurrent kernel with parameters.
pub(crate) trait Recurrent {
    /// The mistakes that its reference can make on purpose.
    type Trap: Copy + Default + std::fmt::Debug;

    /// Numbers in a row of each of its inputs.
    fn input_widths(&self) -> Vec<usize>;
    fn output_width(&self) -> usize;
    fn state_len(&self) -> usize;
    fn run(
        &self,
        set: InstructionSet,
        pool: &Pool,
        inputs: &[Columns<'_>],
        spans: &mut [SpanState<'_>],
        output: &mut [f32],
    );
    /// The output of one sequence in double precision. `state` becomes that after it.
    fn reference(&self, inputs: &[&[f32]], state: &mut [f64], trap: Self::Trap) -> Vec<f64>;
}

/// Sequences that go through a kernel.
pub(crate) struct Sequences<'a, K> {
    pub(crate) kernel: &'a K,
    /// The inputs of each sequence, each `[tokens, width]`.
    pub(crate) inputs: Vec<Vec<Vec<f32>>>,
    /// The state of each sequence.
    pub(crate) states: Vec<Vec<f32>>,
}

impl<K> Clone for Sequences<'_, K> {
    fn clone(&self) -> Self {
        Self {
            kernel: self.kernel,
            inputs: self.inputs.clone(),
            states: self.states.clone(),
        }
    }
}

impl<'a, K: Recurrent> Sequences<'a, K> {
    /// One sequence for each number of tokens, at its start, with inputs of these magnitudes.
    pub(crate) fn new(kernel: &'a K, tokens: &[usize], magnitudes: &[f32], seed: u64) -> Self {
        let widths = kernel.input_widths();
        let inputs = tokens.iter().enumerate().map(|(sequence, tokens)| {
            let each = widths.iter().zip(magnitudes).enumerate();
            let input = each.map(|(index, (width, magnitude))| {
                let seed = seed + 1 + (sequence * widths.len() + index) as u64;
                let numbers = numbers(tokens * width, seed);
                numbers.into_iter().map(|x| x * magnitude).collect()
            });
            input.collect()
        });
        Self {
            kernel,
            inputs: inputs.collect(),
            states: vec![vec![0.0; kernel.state_len()]; tokens.len()],
        }
    }

    pub(crate) fn tokens(&self, sequence: usize) -> usize {
        self.inputs[sequence][0].len() / self.kernel.input_widths()[0]
    }

    /// One step with these tokens of these sequences. Returns the output of each.
    pub(crate) fn step(
        &mut self,
        set: InstructionSet,
        pool: &Pool,
        spans: &[(usize, Range<usize>)],
    ) -> Vec<Vec<f32>> {
        // All inputs lie in one matrix, with columns between them that no kernel may read.
        let widths = self.kernel.input_widths();
        let stride = widths.iter().sum::<usize>() + 3 * widths.len();
        let mut matrix = Vec::new();
        for (sequence, tokens) in spans {
            for token in tokens.clone() {
                for (input, width) in self.inputs[*sequence].iter().zip(&widths) {
                    matrix.extend([f32::NAN; 3]);
                    matrix.extend(&input[token * width..(token + 1) * width]);
                }
            }
        }
        let mut first = 0;
        let columns = widths.iter().map(|width| {
            let at = first + 3;
            first = at + width;
            Columns {
                rows: &matrix,
                stride,
                first: at,
            }
        });
        let columns: Vec<_> = columns.collect();
        let mut states: Vec<Vec<f32>> = spans
            .iter()
            .map(|(sequence, _)| std::mem::take(&mut self.states[*sequence]))
            .collect();
        let rows = spans.iter().map(|(_, tokens)| tokens.len());
        let mut parts: Vec<_> = states
            .iter_mut()
            .zip(rows.clone())
            .map(|(state, rows)| SpanState { rows, state })
            .collect();
        let width = self.kernel.output_width();
        let mut output = vec![f32::NAN; rows.clone().sum::<usize>() * width];
        self.kernel
            .run(set, pool, &columns, &mut parts, &mut output);
        for ((sequence, _), state) in spans.iter().zip(states) {
            self.states[*sequence] = state;
        }
        let mut rest = output.as_slice();
        let take = |rows: usize| {
            let (own, others) = rest.split_at(rows * width);
            rest = others;
            own.to_vec()
        };
        rows.map(take).collect()
    }

    /// The outputs of one sequence that goes through steps of these numbers of tokens. Its state
    /// becomes that at the end.
    pub(crate) fn cut(
        &mut self,
        set: InstructionSet,
        pool: &Pool,
        sequence: usize,
        steps: &[usize],
    ) -> Vec<f32> {
        let mut from = 0;
        let mut step = |tokens: &usize| {
            let range = from..from + tokens;
            from = range.end;
            self.step(set, pool, &[(sequence, range)]).remove(0)
        };
        steps.iter().flat_map(&mut step).collect()
    }

    /// The distance of outputs and states from the reference, for one sequence in one step.
    pub(crate) fn error(&self, set: InstructionSet, sequence: usize, trap: K::Trap) -> f64 {
        let mut computed = self.clone();
        let tokens = self.tokens(sequence);
        let found = computed.cut(set, &Pool::new(1), sequence, &[tokens]);
        let inputs: Vec<&[f32]> = self.inputs[sequence].iter().map(Vec::as_slice).collect();
        let mut state: Vec<f64> = self.states[sequence]
            .iter()
            .map(|x| f64::from(*x))
            .collect();
        let expected = self.kernel.reference(&inputs, &mut state, trap);
        distance(&found, &expected).max(distance(&computed.states[sequence], &state))
    }

    /// Checks every sequence against the reference on all instruction sets.
    pub(crate) fn assert_near(&self, tolerance: f64) {
        for &set in InstructionSet::available() {
            for sequence in 0..self.inputs.len() {
                let error = self.error(set, sequence, K::Trap::default());
                assert!(error <= tolerance, "{set:?}, sequence {sequence}: {error}");
            }
        }
    }

    /// Checks that a mistake in the kernel would exceed the tolerance a hundred times.
    pub(crate) fn assert_notices(&self, tolerance: f64, trap: K::Trap) {
        let sequences = 0..self.inputs.len();
        let errors = sequences.map(|sequence| self.error(InstructionSet::best(), sequence, trap));
        let largest = errors.fold(0.0, f64::max);
        assert!(largest > 100.0 * tolerance, "{trap:?}: only {largest}");
    }

    /// Checks that outputs and states are the same to the last bit in one step or several, alone
    /// or with others, on one thread or three.
    pub(crate) fn assert_same_bits(&self) {
        let [one, three] = [1, 3].map(Pool::new);
        let all: Vec<_> = (0..self.inputs.len())
            .map(|sequence| (sequence, 0..self.tokens(sequence)))
            .collect();
        for &set in InstructionSet::available() {
            let mut batched = self.clone();
            let outputs = batched.step(set, &one, &all);
            let mut shared = self.clone();
            assert_eq!(shared.step(set, &three, &all), outputs, "{set:?}");
            assert_eq!(shared.states, batched.states, "{set:?}");
            for (sequence, expected) in outputs.iter().enumerate() {
                let tokens = self.tokens(sequence);
                let halves = (0..=tokens).map(|first| vec![first, tokens - first]);
                let single = vec![1; tokens];
                for steps in halves.chain([single]) {
                    let mut alone = self.clone();
                    let found = alone.cut(set, &one, sequence, &steps);
                    assert_eq!(&found, expected, "{set:?} in {steps:?}");
                    assert_eq!(alone.states[sequence], batched.states[sequence]);
                }
            }
        }
    }
}
