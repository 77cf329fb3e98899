//! The operation of a mixture of experts, compared with the kernel that it calls.

use mlx_rs::Array;
use motet_kernels::experts::{self, Choice, Routing, choose};
use motet_kernels::gated::Activation;
use motet_kernels::pool::Pool;
use motet_kernels::{Arithmetic, Rows};
use motet_mlx::kernel_ops::experts::{self as expert_ops, ExpertOptions, ExpertWeights};

use super::{check_rejected, data, numbers, stream};

const ROWS: i32 = 8;

/// Experts with a hidden width of 32 and an inner width of 48.
struct Weights {
    gate: Array,
    up: Array,
    down: Array,
    biases: [Array; 3],
}

const OPTIONS: ExpertOptions = ExpertOptions {
    count: 3,
    per_row: 2,
    inner: 48,
    routing: Routing::SoftmaxAll { normalised: true },
    activation: Activation::Silu,
};

impl Weights {
    fn new() -> Weights {
        let biases = [[3, 48], [3, 48], [3, 32]];
        Weights {
            gate: numbers(&[3, 48, 32], 0.3, 1),
            up: numbers(&[3, 48, 32], 0.3, 4),
            down: numbers(&[3, 32, 48], 0.3, 2),
            biases: biases.map(|shape| numbers(&shape, 1.0, 3)),
        }
    }

    fn expected(&self, input: &Array, choice: &Choice) -> Vec<f32> {
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(data);
        let [gate_bias, up_bias, down_bias] = self.biases.each_ref().map(data);
        let layer = experts::Experts {
            count: 3,
            hidden: 32,
            inner: 48,
            gate: &[Rows::from_f32(&gate, 32)],
            up: &[Rows::from_f32(&up, 32)],
            down: &[Rows::from_f32(&down, 48)],
            biases: Some(experts::ExpertBiases {
                gate: &gate_bias,
                up: &up_bias,
                down: &down_bias,
            }),
            activation: Activation::Silu,
            arithmetic: Arithmetic::Exact,
        };
        let mut output = vec![f32::NAN; input.size()];
        experts::experts(Pool::global(), &layer, &data(input), choice, &mut output);
        output
    }
}

#[test]
fn experts_equal_their_kernel() {
    let Some(stream) = stream() else { return };
    let weights = Weights::new();
    let [input, logits] = [numbers(&[ROWS, 32], 2.0, 8), numbers(&[ROWS, 3], 2.0, 9)];
    let choice = choose(Pool::global(), OPTIONS.routing, &data(&logits), 3, 2);
    let expected = weights.expected(&input, &choice);
    let all = ExpertWeights {
        gate: &weights.gate,
        up: &weights.up,
        down: &weights.down,
        biases: Some(weights.biases.each_ref()),
    };
    let found = expert_ops::experts(OPTIONS, &input, &logits, all, &stream).unwrap();
    assert_eq!(data(&found), expected);
}

#[test]
fn wrong_weights_and_options_are_rejected() {
    let Some(stream) = stream() else { return };
    let weights = Weights::new();
    let [input, logits] = [numbers(&[2, 32], 2.0, 8), numbers(&[2, 3], 2.0, 9)];
    let run = |options: ExpertOptions, down: &Array| {
        let weights = ExpertWeights {
            gate: &weights.gate,
            up: &weights.up,
            down,
            biases: None,
        };
        expert_ops::experts(options, &input, &logits, weights, &stream)
    };
    run(OPTIONS, &weights.down).unwrap();
    check_rejected(
        run(OPTIONS, &weights.gate),
        "down is [3, 48, 32], expected [3, 32, 48]",
    );
    let many = ExpertOptions {
        per_row: 4,
        ..OPTIONS
    };
    check_rejected(run(many, &weights.down), "a row uses 4 of 3 experts");
    let odd = ExpertOptions {
        inner: 40,
        ..OPTIONS
    };
    check_rejected(
        run(odd, &weights.down),
        "an inner width of 40: multiples of 16",
    );
}
