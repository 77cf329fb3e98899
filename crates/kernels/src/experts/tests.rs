//! Experts against a double-precision reference.

use motet_formats::Format;
use proptest::prelude::*;

use super::super::tests::{distance, numbers};
use super::*;

const TOLERANCE: f64 = 2e-6;

/// A mistake of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trap {
    None,
    /// The last bias is added whatever the share.
    BiasOutsideShare,
    /// The first biases are added after the activation.
    LateBias,
    /// Gate and up are swapped.
    Swapped,
    /// Rows of gate and up alternate.
    Interleaved,
    /// All chosen experts count alike.
    EqualShares,
    /// Only the first chosen expert counts.
    FirstOnly,
}

/// Experts that own their weights, and rows for them.
struct Case {
    count: usize,
    hidden: usize,
    inner: usize,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
    biases: Option<[Vec<f32>; 3]>,
    activation: Activation,
    input: Vec<f32>,
    choice: Choice,
}

impl Case {
    fn new(
        [count, per_row]: [usize; 2],
        [hidden, inner]: [usize; 2],
        rows: usize,
        seed: u64,
    ) -> Case {
        let scaled = |count: usize, width: usize, seed| -> Vec<f32> {
            let scale = (width as f32).sqrt().recip();
            let numbers = numbers(count, seed);
            numbers.into_iter().map(|x| x * scale).collect()
        };
        let logits = numbers(rows * count, seed);
        let routing = Routing::SoftmaxAll { normalised: false };
        Case {
            count,
            hidden,
            inner,
            gate: scaled(count * inner * hidden, hidden, seed + 1),
            up: scaled(count * inner * hidden, hidden, seed + 4),
            down: scaled(count * hidden * inner, inner, seed + 2),
            biases: None,
            activation: Activation::Silu,
            input: numbers(rows * hidden, seed + 3)
                .iter()
                .map(|x| x * 4.0)
                .collect(),
            choice: choose(&Pool::new(1), routing, &logits, count, per_row),
        }
    }

    fn with_biases(mut self) -> Case {
        let lengths = [self.inner, self.inner, self.hidden];
        let mut seed = 50;
        self.biases = Some(lengths.map(|length| {
            seed += 1;
            numbers(self.count * length, seed)
        }));
        self
    }

    /// Each projection as one matrix.
    fn matrices(&self) -> [Vec<Rows<'_>>; 3] {
        [
            vec![Rows::from_f32(&self.gate, self.hidden)],
            vec![Rows::from_f32(&self.up, self.hidden)],
            vec![Rows::from_f32(&self.down, self.inner)],
        ]
    }

    fn experts<'a>(&'a self, [gate, up, down]: &'a [Vec<Rows<'a>>; 3]) -> Experts<'a> {
        Experts {
            count: self.count,
            hidden: self.hidden,
            inner: self.inner,
            gate,
            up,
            down,
            biases: self
                .biases
                .as_ref()
                .map(|[gate, up, down]| ExpertBiases { gate, up, down }),
            activation: self.activation,
            arithmetic: Arithmetic::Exact,
        }
    }

    fn run(&self, set: InstructionSet, threads: usize) -> Vec<f32> {
        self.run_as(&self.experts(&self.matrices()), set, threads)
    }

    fn run_as(&self, experts: &Experts<'_>, set: InstructionSet, threads: usize) -> Vec<f32> {
        let mut output = vec![f32::NAN; self.input.len()];
        let pool = Pool::new(threads);
        run_on(set, &pool, experts, &self.input, &self.choice, &mut output);
        output
    }

    fn reference(&self, trap: Trap) -> Vec<f64> {
        let mut output = Vec::new();
        for (row, x) in self.input.chunks(self.hidden).enumerate() {
            let mut sum = vec![0.0; self.hidden];
            for (rank, (expert, share)) in self.choice.of_row(row).enumerate() {
                let share = match trap {
                    Trap::EqualShares => 1.0 / self.choice.per_row as f64,
                    Trap::FirstOnly if rank > 0 => 0.0,
                    _ => f64::from(share),
                };
                let [inside, outside] = self.one(expert, x, trap);
                for (sum, (inside, outside)) in sum.iter_mut().zip(inside.iter().zip(outside)) {
                    *sum += share * inside + outside;
                }
            }
            output.extend(sum);
        }
        output
    }

    fn gated(&self, gate: f64, up: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match self.activation {
            Activation::Silu => gate * sigmoid(gate) * up,
            Activation::GeluTanh => {
                let inside =
                    (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
                0.5 * gate * (1.0 + inside.tanh()) * up
            }
            Activation::ClampedSwiglu { alpha, limit } => {
                let [alpha, limit] = [alpha, limit].map(f64::from);
                let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
                (up + 1.0) * gate * sigmoid(alpha * gate)
            }
        }
    }

    /// An expert's output, and what is added whatever its share.
    fn one(&self, expert: usize, x: &[f32], trap: Trap) -> [Vec<f64>; 2] {
        let (hidden, inner) = (self.hidden, self.inner);
        let dot = |weight: &[f32], x: &[f64]| -> f64 {
            weight.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
        };
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let bias = |which: usize, length: usize, index: usize| -> f64 {
            let biases = self.biases.as_ref();
            biases.map_or(0.0, |biases| biases[which][expert * length + index].into())
        };
        let own = expert * inner * hidden..(expert + 1) * inner * hidden;
        let weights = [&self.gate[own.clone()], &self.up[own]].concat();
        let first = |row: usize| dot(&weights[row * hidden..][..hidden], &x);
        let between = |index: usize| {
            let [gate, up] = match trap {
                Trap::Swapped => [inner + index, index],
                Trap::Interleaved => [2 * index, 2 * index + 1],
                _ => [index, inner + index],
            };
            let biases = [bias(0, inner, index), bias(1, inner, index)];
            let early = if trap == Trap::LateBias {
                [0.0; 2]
            } else {
                biases
            };
            let [gate, up] = [first(gate) + early[0], first(up) + early[1]];
            let late = if trap == Trap::LateBias {
                biases[0] + biases[1]
            } else {
                0.0
            };
            self.gated(gate, up) + late
        };
        let between: Vec<f64> = (0..inner).map(between).collect();
        let weights = &self.down[expert * hidden * inner..];
        let row = |row: usize| dot(&weights[row * inner..][..inner], &between);
        let down = |row| bias(2, hidden, row);
        if trap == Trap::BiasOutsideShare {
            return [
                (0..hidden).map(row).collect(),
                (0..hidden).map(down).collect(),
            ];
        }
        let whole = (0..hidden).map(|index| row(index) + down(index));
        [whole.collect(), vec![0.0; hidden]]
    }
}

fn activations() -> impl Strategy<Value = Activation> {
    let clamped = Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 1.5,
    };
    prop_oneof![
        Just(Activation::Silu),
        Just(Activation::GeluTanh),
        Just(clamped)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn equals_the_reference(
        count in 1_usize..9,
        share in 0.0_f64..1.0,
        hidden in 1_usize..7,
        inner in 1_usize..7,
        rows in 0_usize..14,
        biased: bool,
        activation in activations(),
        threads in 1_usize..4,
        seed in 0_u64..1000,
    ) {
        let per_row = (1 + (share * count as f64) as usize).min(count);
        let mut case = Case::new([count, per_row], [16 * hidden, 16 * inner], rows, seed);
        case.activation = activation;
        if biased {
            case = case.with_biases();
        }
        let expected = case.reference(Trap::None);
        for &set in InstructionSet::available() {
            let error = distance(&case.run(set, threads), &expected);
            prop_assert!(error <= TOLERANCE, "{set:?}: {error}");
        }
    }
}

#[test]
fn mistakes_are_noticed() {
    let case = Case::new([4, 2], [32, 48], 5, 1).with_biases();
    let found = case.run(InstructionSet::best(), 1);
    assert!(distance(&found, &case.reference(Trap::None)) <= TOLERANCE);
    for trap in [
        Trap::BiasOutsideShare,
        Trap::LateBias,
        Trap::Swapped,
        Trap::Interleaved,
        Trap::EqualShares,
        Trap::FirstOnly,
    ] {
        let error = distance(&found, &case.reference(trap));
        assert!(error > 100.0 * TOLERANCE, "{trap:?}: only {error}");
    }
}

#[test]
fn bits_do_not_depend_on_other_rows_or_threads() {
    // With many columns the weights of one expert are several parts.
    for (count, widths, rows) in [
        ([5, 3], [64, 48], 23),
        ([2, 2], [512, 272], 9),
        ([3, 2], [592, 80], 60),
    ] {
        let case = Case::new(count, widths, rows, 7).with_biases();
        let matrices = case.matrices();
        for &set in InstructionSet::available() {
            let together = case.run(set, 1);
            assert_eq!(case.run(set, 3), together, "{set:?}");
            for row in 0..rows {
                let here = row * case.hidden..(row + 1) * case.hidden;
                let pairs = row * count[1]..(row + 1) * count[1];
                let alone = Choice {
                    per_row: count[1],
                    experts: case.choice.experts[pairs.clone()].to_vec(),
                    shares: case.choice.shares[pairs].to_vec(),
                };
                let mut output = vec![f32::NAN; case.hidden];
                let (pool, input) = (Pool::new(1), &case.input[here.clone()]);
                let experts = case.experts(&matrices);
                run_on(set, &pool, &experts, input, &alone, &mut output);
                assert_eq!(output, together[here], "{set:?}, row {row}");
            }
        }
    }
}

/// A checkpoint may have one tensor for each expert, each stored in its own way.
#[test]
fn stacked_matrices_may_have_different_storage() {
    let case = Case::new([6, 2], [64, 32], 9, 3).with_biases();
    let formats = [Format::Q4_0, Format::Q8_0, Format::Iq4Nl];
    // Every scale is 2^-8.
    let matrix = |expert: usize| {
        let (elements, bytes) = formats[expert % 3].block();
        let byte = |at: usize| match at % bytes {
            0 => 0,
            1 => 0x1C,
            _ => (at * 37 + expert) as u8,
        };
        let bytes = (0..64 * 32 / elements * bytes).map(byte);
        bytes.collect::<Vec<u8>>()
    };
    let experts: Vec<Vec<u8>> = (0..6).map(matrix).collect();
    let stacked = [64, 64, 32].map(|width| {
        let matrices = experts.iter().zip(formats.iter().cycle());
        let rows = matrices.map(|(bytes, format)| Rows::new(*format, bytes, width));
        rows.collect::<Vec<_>>()
    });
    let case = Case {
        gate: decoded(&stacked[0]),
        up: decoded(&stacked[1]),
        down: decoded(&stacked[2]),
        ..case
    };
    for &set in InstructionSet::available() {
        let found = case.run_as(&case.experts(&stacked), set, 2);
        assert_eq!(found, case.run(set, 1), "{set:?}");
    }
    check_fast(&case, &case.experts(&stacked));
}

/// Integer products give nearly the same, and each row gets what it gets alone.
fn check_fast(case: &Case, exact: &Experts<'_>) {
    let set = InstructionSet::best();
    let fast = Experts {
        arithmetic: Arithmetic::Fast,
        ..*exact
    };
    let expected = case.run_as(exact, set, 1);
    let found = case.run_as(&fast, set, 2);
    let largest = expected.iter().fold(0.0_f32, |most, y| most.max(y.abs()));
    let pairs = found.iter().zip(&expected);
    let error = pairs.fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
    let bounds = 1e-5 * largest..0.03 * largest;
    assert!(bounds.contains(&error), "{error} of {largest}");
    let per_row = case.choice.per_row;
    for row in 0..case.choice.rows() {
        let pairs = row * per_row..(row + 1) * per_row;
        let choice = Choice {
            per_row,
            experts: case.choice.experts[pairs.clone()].to_vec(),
            shares: case.choice.shares[pairs].to_vec(),
        };
        let row = row * case.hidden..(row + 1) * case.hidden;
        let mut alone = vec![f32::NAN; case.hidden];
        let input = &case.input[row.clone()];
        run_on(set, &Pool::new(1), &fast, input, &choice, &mut alone);
        assert_eq!(alone, found[row]);
    }
}

fn decoded(matrices: &[Rows<'_>]) -> Vec<f32> {
    let mut numbers = Vec::new();
    for matrix in matrices {
        for row in 0..matrix.rows() {
            let mut output = vec![0.0; matrix.width()];
            matrix.decode(row, &mut output);
            numbers.extend(output);
        }
    }
    numbers
}

#[test]
#[should_panic(expected = "an inner width of 24: multiples of 16 expected")]
fn odd_widths_are_rejected() {
    let case = Case {
        inner: 24,
        ..Case::new([2, 1], [16, 32], 1, 4)
    };
    let matrices =
        [&case.gate, &case.up, &case.down].map(|numbers| vec![Rows::from_f32(numbers, 16)]);
    let _ = case.run_as(&case.experts(&matrices), InstructionSet::best(), 1);
}

#[test]
#[should_panic(expected = "down: expected 3 matrices of [16, 32]")]
fn missing_experts_are_rejected() {
    let case = Case::new([2, 1], [16, 32], 1, 4);
    let enough = [0.0; 3 * 512];
    let matrices = case.matrices();
    let experts = Experts {
        count: 3,
        gate: &[Rows::from_f32(&enough, 16)],
        up: &[Rows::from_f32(&enough, 16)],
        ..case.experts(&matrices)
    };
    let _ = case.run_as(&experts, InstructionSet::best(), 1);
}
