//! Norms with gates against a double-precision reference.

use proptest::prelude::*;

use super::super::tests::{distance, numbers};
use super::*;

const TOLERANCE: f64 = 2e-6;

/// Rows to normalise, and how.
struct Case {
    width: usize,
    group: usize,
    weight: Vec<f32>,
    order: GateOrder,
    input: Vec<f32>,
    gate: Vec<f32>,
}

impl Case {
    fn new(rows: usize, [groups, group]: [usize; 2], order: GateOrder) -> Case {
        let width = groups * group;
        Case {
            width,
            group,
            weight: numbers(group, 1),
            order,
            input: numbers(rows * width, 2),
            gate: numbers(rows * width, 3).iter().map(|x| x * 8.0).collect(),
        }
    }

    fn norm(&self) -> GatedNorm<'_> {
        GatedNorm {
            group: self.group,
            weight: &self.weight,
            epsilon: 1e-5,
            order: self.order,
        }
    }

    fn run(&self, set: InstructionSet, threads: usize) -> Vec<f32> {
        // The gate lies among other columns.
        let fused = self.gate.chunks(self.width).flat_map(|gate| {
            let around = [[f32::NAN; 2]; 2];
            [&around[0][..], gate, &around[1]].concat()
        });
        let fused: Vec<f32> = fused.collect();
        let gate = Columns {
            rows: &fused,
            stride: self.width + 4,
            first: 2,
        };
        let mut output = vec![f32::NAN; self.input.len()];
        let pool = Pool::new(threads);
        run_on(
            set,
            &pool,
            self.norm(),
            &self.input,
            self.width,
            gate,
            &mut output,
        );
        output
    }

    fn reference(&self) -> Vec<f64> {
        let mut output = Vec::new();
        let groups = self
            .input
            .chunks(self.group)
            .zip(self.gate.chunks(self.group));
        for (input, gate) in groups {
            let silu: Vec<f64> = gate
                .iter()
                .map(|gate| f64::from(*gate))
                .map(|gate| gate / (1.0 + (-gate).exp()))
                .collect();
            let (before, after) = match self.order {
                GateOrder::NormFirst => (vec![1.0; self.group], silu),
                GateOrder::GateFirst => (silu, vec![1.0; self.group]),
            };
            let x: Vec<f64> = input
                .iter()
                .zip(before)
                .map(|(x, gate)| f64::from(*x) * gate)
                .collect();
            let squares: f64 = x.iter().map(|x| x * x).sum();
            let root = (squares / self.group as f64 + f64::from(1e-5_f32)).sqrt();
            for (i, (x, gate)) in x.iter().zip(after).enumerate() {
                let weight = self.weight[i % self.weight.len()];
                output.push(x / root * f64::from(weight) * gate);
            }
        }
        output
    }
}

fn orders() -> impl Strategy<Value = GateOrder> {
    prop_oneof![Just(GateOrder::NormFirst), Just(GateOrder::GateFirst)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn equals_the_reference(
        rows in 0_usize..5,
        groups in 1_usize..5,
        group in 1_usize..70,
        order in orders(),
    ) {
        let case = Case::new(rows, [groups, group], order);
        let expected = case.reference();
        for &set in InstructionSet::available() {
            let error = distance(&case.run(set, 1), &expected);
            prop_assert!(error <= TOLERANCE, "{set:?}: {error}");
        }
    }
}

#[test]
fn mistakes_are_noticed() {
    let case = Case::new(3, [4, 16], GateOrder::GateFirst);
    let found = case.run(InstructionSet::best(), 1);
    let order = GateOrder::NormFirst;
    let input = || (case.input.clone(), case.gate.clone(), case.weight.clone());
    let mutant = |group, order| {
        let (input, gate, weight) = input();
        let mutant = Case {
            width: case.width,
            group,
            weight,
            order,
            input,
            gate,
        };
        distance(&found, &mutant.reference())
    };
    assert!(mutant(16, GateOrder::GateFirst) <= TOLERANCE);
    // The order, and the whole row instead of its groups.
    assert!(mutant(16, order) > 100.0 * TOLERANCE);
    assert!(mutant(64, GateOrder::GateFirst) > 100.0 * TOLERANCE);
}

#[test]
fn threads_and_batches_leave_the_bits() {
    for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
        let case = Case::new(40, [8, 128], order);
        for &set in InstructionSet::available() {
            let together = case.run(set, 1);
            assert_eq!(case.run(set, 3), together);
            for row in 0..40 {
                let here = row * case.width..(row + 1) * case.width;
                let alone = Case {
                    weight: case.weight.clone(),
                    input: case.input[here.clone()].to_vec(),
                    gate: case.gate[here.clone()].to_vec(),
                    ..case
                };
                assert_eq!(alone.run(set, 1), together[here]);
            }
        }
    }
}

#[test]
fn extreme_gates_do_not_become_nan() {
    for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
        let mut case = Case::new(2, [2, 16], order);
        case.gate = case.gate.iter().map(|x| x * 1e15).collect();
        case.input[..16].fill(0.0);
        let output = case.run(InstructionSet::best(), 1);
        assert!(output.iter().all(|x| x.is_finite()));
    }
}
