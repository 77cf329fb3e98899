//! Gated activations against double precision.

use proptest::prelude::*;

use motet_formats::simd::{InstructionSet, dispatch_on};

use super::*;

const GPT_OSS: ClampedSwiglu = ClampedSwiglu {
    alpha: 1.702,
    limit: 7.0,
};

/// An activation in double precision.
trait Reference: Gate {
    fn activation(self) -> Activation;
    fn expected(self, gate: f64, up: f64) -> f64;
    /// Relative error that rounding may cause.
    fn bound(self, gate: f64) -> f64;
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Reference for Silu {
    fn activation(self) -> Activation {
        Activation::Silu
    }

    fn expected(self, gate: f64, up: f64) -> f64 {
        gate * sigmoid(gate) * up
    }

    fn bound(self, _: f64) -> f64 {
        1e-6
    }
}

impl Reference for GeluTanh {
    fn activation(self) -> Activation {
        Activation::GeluTanh
    }

    /// In the form of the models' own code.
    fn expected(self, gate: f64, up: f64) -> f64 {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
        // Below this the tangent of a double is -1 but for its last digits.
        if inner < -9.0 {
            gate * (2.0 * inner).exp() * up
        } else {
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
    }

    /// The exponent's own rounding counts as often as the exponent is large.
    fn bound(self, gate: f64) -> f64 {
        let exponent = 1.6 * (gate + 0.044_715 * gate.powi(3)).abs();
        5e-7 * (1.0 + exponent.min(88.0))
    }
}

impl Reference for ClampedSwiglu {
    fn activation(self) -> Activation {
        let ClampedSwiglu { alpha, limit } = self;
        Activation::ClampedSwiglu { alpha, limit }
    }

    fn expected(self, gate: f64, up: f64) -> f64 {
        let (alpha, limit) = (f64::from(self.alpha), f64::from(self.limit));
        let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
        (up + 1.0) * gate * sigmoid(alpha * gate)
    }

    fn bound(self, gate: f64) -> f64 {
        1e-6 * (1.0 + gate.abs())
    }
}

fn check<G: Reference + std::fmt::Debug>(gate: G, gate_up: &[f32], width: usize) {
    let rows = gate_up.len() / (2 * width);
    let mut output = vec![f32::NAN; rows * width];
    for &set in InstructionSet::available() {
        output.fill(f32::NAN);
        let job = Rows {
            gate,
            gate_up,
            width,
            output: &mut output,
        };
        dispatch_on(set, job);
        for (index, y) in output.iter().enumerate() {
            let at = index / width * 2 * width + index % width;
            let [x, up] = [gate_up[at], gate_up[at + width]].map(f64::from);
            let expected = gate.expected(x, up);
            let error = (f64::from(*y) - expected).abs();
            // Exponentials end at 2^127.
            let bound = gate.bound(x) * expected.abs() + 1e-34;
            assert!(
                error <= bound,
                "{gate:?}, {set:?}: {y} for {expected} of {x}, {up}"
            );
        }
    }
    let mut whole = vec![f32::NAN; rows * width];
    gated(&Pool::new(1), gate.activation(), gate_up, width, &mut whole);
    dispatch(Rows {
        gate,
        gate_up,
        width,
        output: &mut output,
    });
    assert_eq!(whole, output);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn equals_the_reference(
        rows in 0_usize..5,
        width in 1_usize..70,
        seed in proptest::collection::vec(-30.0_f32..30.0, 64),
    ) {
        let gate_up: Vec<f32> = (0..2 * rows * width)
            .map(|i| seed[i % 64] * (0.3 + (i / 64) as f32).sin())
            .collect();
        check(Silu, &gate_up, width);
        check(GeluTanh, &gate_up, width);
        check(GPT_OSS, &gate_up, width);
        let gentle: Vec<f32> = gate_up.iter().map(|x| 0.1 * x).collect();
        check(GeluTanh, &gentle, width);
        check(GPT_OSS, &gentle, width);
    }

    #[test]
    fn output_gates_equal_the_reference(
        rows in 0_usize..5,
        width in 1_usize..70,
        [before, after] in [0_usize..40, 0_usize..3],
        seed in proptest::collection::vec(-30.0_f32..30.0, 64),
    ) {
        let stride = before + width + after;
        let numbers = |count: usize, shift: usize| -> Vec<f32> {
            (0..count).map(|i| seed[(i + shift) % 64] * (0.3 + (i / 64) as f32).sin()).collect()
        };
        let (input, packed) = (numbers(rows * width, 3), numbers(rows * stride, 0));
        let gate = Columns { rows: &packed, stride, first: before };
        let mut output = vec![f32::NAN; rows * width];
        for &set in InstructionSet::available() {
            output.fill(f32::NAN);
            dispatch_on(set, Sigmoids { input: &input, gate, width, output: &mut output });
            for (index, y) in output.iter().enumerate() {
                let gate = packed[index / width * stride + before + index % width];
                let expected = f64::from(input[index]) * sigmoid(f64::from(gate));
                let error = (f64::from(*y) - expected).abs();
                prop_assert!(error <= 1e-6 * expected.abs(), "{set:?}: {y} for {expected}");
            }
        }
        let mut whole = vec![f32::NAN; rows * width];
        sigmoid_mul(&Pool::new(1), &input, gate, width, &mut whole);
        dispatch(Sigmoids { input: &input, gate, width, output: &mut output });
        prop_assert_eq!(whole, output);
    }

    #[test]
    fn softcaps_equal_the_reference(
        cap in 1.0_f32..60.0,
        input in proptest::collection::vec(-200.0_f32..200.0, 0..100),
    ) {
        let mut output = vec![f32::NAN; input.len()];
        for &set in InstructionSet::available() {
            output.fill(f32::NAN);
            dispatch_on(set, Softcap { cap, input: &input, output: &mut output });
            for (x, y) in input.iter().zip(&output) {
                let expected = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
                let error = (f64::from(*y) - expected).abs();
                prop_assert!(error <= 5e-7 * expected.abs(), "{set:?}: {y} for {expected}");
            }
        }
    }
}

#[test]
fn large_inputs_saturate() {
    let gate_up = [1e4, -1e4, f32::MAX, -f32::MAX, 2.0, 2.0, 1.0, 1.0];
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let mut output = [0.0; 4];
        gated(&Pool::new(1), activation, &gate_up, 4, &mut output);
        assert_eq!(output[0], 2e4);
        assert_eq!(output[2], f32::MAX);
        assert!(output[1].abs() < 1e-33 && output[3].abs() < 4.1);
    }
    let mut output = [0.0; 4];
    gated(
        &Pool::new(1),
        GPT_OSS.activation(),
        &gate_up,
        4,
        &mut output,
    );
    let most = 7.0 * sigmoid(1.702 * 7.0);
    assert!((f64::from(output[0]) - 3.0 * most).abs() < 1e-5);
    assert!((f64::from(output[2]) - 2.0 * most).abs() < 1e-5);
    assert!(output[1].abs() < 1e-33 && output[3].abs() < 8.1);
}

#[test]
fn nan_stays_nan() {
    for activation in [Activation::Silu, Activation::GeluTanh, GPT_OSS.activation()] {
        let mut output = [0.0; 2];
        let gate_up = [f32::NAN, 1.0, 1.0, f32::NAN];
        gated(&Pool::new(1), activation, &gate_up, 2, &mut output);
        assert!(output.iter().all(|x| x.is_nan()), "{activation:?}");
    }
    let mut output = [0.0; 1];
    softcap(&Pool::new(1), 30.0, &[f32::NAN], &mut output);
    assert!(output[0].is_nan());
}

#[test]
fn threads_share_the_rows() {
    let gate_up: Vec<f32> = (0..2 * 37 * 1000).map(|i| (i as f32).sin()).collect();
    let run = |threads| {
        let pool = Pool::new(threads);
        let mut all = [(); 5].map(|()| vec![0.0; 37_000]);
        let [silu, gelu, clamped, sigmoids, capped] = &mut all;
        gated(&pool, Activation::Silu, &gate_up, 1000, silu);
        gated(&pool, Activation::GeluTanh, &gate_up, 1000, gelu);
        gated(&pool, GPT_OSS.activation(), &gate_up, 1000, clamped);
        let gate = Columns {
            rows: &gate_up,
            stride: 2000,
            first: 900,
        };
        sigmoid_mul(&pool, &gate_up[..37_000], gate, 1000, sigmoids);
        softcap(&pool, 0.5, &gate_up[..37_000], capped);
        all
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn one_thread_computes_the_same_bits() {
    let gate_up: Vec<f32> = (0..2 * 3 * 37).map(|i| (i % 23) as f32 - 11.0).collect();
    let activation = Activation::Silu;
    let mut outputs = [vec![f32::NAN; 3 * 37], vec![f32::NAN; 3 * 37]];
    let [alone, pooled] = &mut outputs;
    gated_on(InstructionSet::best(), activation, &gate_up, 37, alone);
    gated(&Pool::new(3), activation, &gate_up, 37, pooled);
    assert_eq!(alone, pooled);
}
