//! The Rust kernels in MLX graphs, compared with the same computation by MLX's own operations.

mod activations;
mod attention;
mod experts;
mod in_place;
mod layer_inputs;
mod memory;
mod recurrent;
mod timings;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, Stream, fast, ops};
use motet_mlx::{bridge, kernel_ops as kernels};

/// Whether the bridge is available. Without it there is nothing to test.
fn stream() -> Option<Stream> {
    bridge::available().then(Stream::cpu)
}

/// Numbers without a pattern, from -`range` to `range`.
fn numbers(shape: &[i32], range: f32, seed: u64) -> Array {
    let count = shape.iter().product::<i32>();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let data: Vec<f32> = (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            range * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect();
    Array::from_slice(&data, shape)
}

fn assert_near(actual: &Array, expected: &Array, tolerance: f32) {
    assert_eq!(actual.shape(), expected.shape());
    actual.eval().unwrap();
    let expected = expected.contiguous().unwrap();
    expected.eval().unwrap();
    for (a, b) in actual
        .as_slice::<f32>()
        .iter()
        .zip(expected.as_slice::<f32>())
    {
        assert!(
            (a - b).abs() <= tolerance * (1.0 + b.abs()),
            "{a} instead of {b}"
        );
    }
}

/// All numbers of an array.
fn data(array: &Array) -> Vec<f32> {
    array.eval().unwrap();
    array.as_slice::<f32>().to_vec()
}

fn check_rejected(outcome: Result<Array, Exception>, why: &str) {
    let message = outcome.unwrap_err().what().to_owned();
    assert!(message.contains(why), "{message}");
}

#[test]
fn silu_mul_equals_the_composition() {
    let Some(stream) = stream() else { return };
    for shape in [&[1, 2][..], &[1, 3072], &[7, 46], &[2, 3, 26], &[40, 3072]] {
        let gate_up = numbers(shape, 8.0, 1);
        let halves = gate_up.split_equal(2, -1).unwrap();
        let expected = mlx_rs::nn::silu(&halves[0]).unwrap() * &halves[1];
        assert_near(
            &kernels::silu_mul(&gate_up, &stream).unwrap(),
            &expected,
            1e-6,
        );
    }
}

#[test]
fn linear_equals_the_composition() {
    let Some(stream) = stream() else { return };
    for (shape, n) in [
        (&[1, 16][..], 1),
        (&[1, 576], 960),
        (&[2, 5, 64], 33),
        (&[70, 96], 100),
    ] {
        let input = numbers(shape, 1.0, 1);
        let weight = numbers(&[n, shape[shape.len() - 1]], 1.0, 2);
        let bias = numbers(&[n], 1.0, 3);
        let expected = input.matmul(weight.t()).unwrap();
        let product = kernels::linear(&input, &weight, None, &stream).unwrap();
        assert_near(&product, &expected, 1e-5);
        let product = kernels::linear(&input, &weight, Some(&bias), &stream).unwrap();
        assert_near(&product, &(&expected + &bias), 1e-5);
    }
}

#[test]
fn norms_equal_the_compositions() {
    let Some(stream) = stream() else { return };
    for shape in [&[1, 1][..], &[1, 576], &[7, 45], &[2, 3, 64], &[129, 576]] {
        let [input, delta] = [numbers(shape, 3.0, 1), numbers(shape, 3.0, 2)];
        let weight = numbers(&shape[shape.len() - 1..], 1.0, 3);
        for weight in [None, Some(&weight)] {
            let plain = kernels::rms_norm(&input, weight, 1e-5, &stream).unwrap();
            assert_near(&plain, &fast::rms_norm(&input, weight, 1e-5).unwrap(), 1e-5);
            let (sum, normed) =
                kernels::add_rms_norm(&input, &delta, weight, 1e-5, &stream).unwrap();
            let expected = &input + &delta;
            assert_near(
                &normed,
                &fast::rms_norm(&expected, weight, 1e-5).unwrap(),
                1e-5,
            );
            assert_near(&sum, &expected, 0.0);
        }
    }
}

#[test]
fn strided_and_unevaluated_inputs_are_understood() {
    let Some(stream) = stream() else { return };
    let wide = numbers(&[6, 10, 8], 2.0, 4);
    let strided = wide
        .transpose_axes(&[1, 0, 2])
        .unwrap()
        .index((1..9, .., ..));
    let expected = fast::rms_norm(&strided, None, 1e-5).unwrap();
    assert_near(
        &kernels::rms_norm(&strided, None, 1e-5, &stream).unwrap(),
        &expected,
        1e-5,
    );
    let row = numbers(&[1, 8], 2.0, 5);
    let repeated = ops::broadcast_to(&row, &[5, 8]).unwrap();
    let expected = fast::rms_norm(&repeated, None, 1e-5).unwrap();
    assert_near(
        &kernels::rms_norm(&repeated, None, 1e-5, &stream).unwrap(),
        &expected,
        1e-5,
    );
}

#[test]
fn wrong_shapes_and_types_are_rejected() {
    let Some(stream) = stream() else { return };
    let odd = numbers(&[2, 3], 1.0, 1);
    check_rejected(kernels::silu_mul(&odd, &stream), "cannot halve [2, 3]");
    check_rejected(
        kernels::rms_norm(&odd, Some(&numbers(&[2], 1.0, 1)), 1e-5, &stream),
        "expected [3]",
    );
    let turned = numbers(&[3, 2], 1.0, 1);
    let sum = kernels::add_rms_norm(&odd, &turned, None, 1e-5, &stream).map(|(sum, _)| sum);
    check_rejected(sum, "[2, 3] and [3, 2] differ");
    for weight in [&[4, 32][..], &[4, 3], &[3]] {
        let weight = numbers(weight, 1.0, 1);
        check_rejected(kernels::linear(&odd, &weight, None, &stream), "linear");
    }
    let whole = Array::from_slice(&[1_i32, 2], &[1, 2]);
    check_rejected(kernels::silu_mul(&whole, &stream), "not float32");
}
