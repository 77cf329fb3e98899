//! Activations in a graph, compared with MLX's own operations.

use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, nn, ops};
use motet_kernels::Activation;
use motet_mlx::kernel_ops as kernels;

use super::{assert_near, check_rejected, numbers, stream};

#[test]
fn gated_activations_equal_the_composition() {
    let Some(stream) = stream() else { return };
    let clamped = Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 2.0,
    };
    for shape in [&[1, 2][..], &[1, 3072], &[7, 46], &[2, 3, 26], &[40, 3072]] {
        let gate_up = numbers(shape, 4.0, 1);
        let halves = gate_up.split_equal(2, -1).unwrap();
        let [gate, up] = [&halves[0], &halves[1]];
        let run = |activation| kernels::gated(&gate_up, activation, &stream).unwrap();
        let expected = nn::silu(gate).unwrap() * up;
        assert_near(&run(Activation::Silu), &expected, 1e-6);
        let expected = nn::gelu_approximate(gate).unwrap() * up;
        assert_near(&run(Activation::GeluTanh), &expected, 3e-6);
        let [most, least] = [2.0, -2.0].map(Array::from_f32);
        let gate = ops::minimum(gate, &most).unwrap();
        let up = ops::maximum(ops::minimum(up, &most).unwrap(), &least).unwrap();
        let sigmoid = ops::sigmoid(&gate * 1.702).unwrap();
        assert_near(&run(clamped), &((up + 1.0) * gate * sigmoid), 3e-6);
    }
}

#[test]
fn output_gates_equal_the_composition() {
    let Some(stream) = stream() else { return };
    for (rows, width, first, after) in [(1, 1, 0, 0), (3, 17, 5, 0), (40, 1024, 2048, 3)] {
        let input = numbers(&[rows, width], 3.0, 1);
        let packed = numbers(&[rows, first + width + after], 5.0, 2);
        let gate = packed.index((.., first..first + width));
        let expected = &input * ops::sigmoid(gate).unwrap();
        let output = kernels::sigmoid_mul(&input, &packed, first as usize, &stream).unwrap();
        assert_near(&output, &expected, 1e-6);
        let too_far = (first + after) as usize + 1;
        let error = kernels::sigmoid_mul(&input, &packed, too_far, &stream);
        check_rejected(error, "sigmoid_mul");
        let fewer = kernels::sigmoid_mul(&input, &numbers(&[rows + 1, 9999], 1.0, 3), 0, &stream);
        check_rejected(fewer, "sigmoid_mul");
    }
}

#[test]
fn softcaps_equal_the_composition() {
    let Some(stream) = stream() else { return };
    for shape in [&[1, 1][..], &[16, 5003]] {
        let logits = numbers(shape, 80.0, 1);
        let expected = ops::tanh(&logits / 30.0).unwrap() * 30.0;
        let output = kernels::softcap(&logits, 30.0, &stream).unwrap();
        assert_near(&output, &expected, 1e-6);
    }
    let logits = numbers(&[1, 4], 1.0, 1);
    for cap in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        check_rejected(kernels::softcap(&logits, cap, &stream), "softcap");
    }
}
