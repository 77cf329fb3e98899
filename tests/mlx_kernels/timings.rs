//! What the kernels save. Prints the least of many times; run it in release:
//! `cargo test --release --features mlx --test mlx_kernels -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use mlx_rs::fast::{self, ScaledDotProductAttentionMask};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Stream};
use motet::model::mlx::bridge::Buffer;
use motet::model::mlx::kernels::{
    self, AttendPlan, Attention, Heads, Order, Rotary, SpanRange, TailRange,
};

use super::{numbers, stream};

/// Microseconds of the fastest of many calls. The arrays are evaluated and dropped.
fn fastest(mut build: impl FnMut() -> Vec<Array>) -> f64 {
    let times = (0..40).map(|_| {
        let start = Instant::now();
        eval(&build()).unwrap();
        start.elapsed().as_secs_f64() * 1e6
    });
    times.fold(f64::MAX, f64::min)
}

fn print(what: &str, ours: f64, composed: f64) {
    println!(
        "{what}: {ours:.0} µs, MLX {composed:.0} µs ({:.1} times)",
        composed / ours
    );
}

#[test]
#[ignore = "measures; nothing to fail"]
fn elementwise() {
    let Some(stream) = stream() else { return };
    for rows in [1, 16, 128] {
        let gate_up = numbers(&[rows, 3072], 1.0, 1);
        let ours = fastest(|| vec![kernels::silu_mul(&gate_up, &stream).unwrap()]);
        let composed = fastest(|| {
            let halves = gate_up.split_equal(2, -1).unwrap();
            vec![mlx_rs::nn::silu(&halves[0]).unwrap() * &halves[1]]
        });
        print(&format!("silu_mul [{rows}, 1536]"), ours, composed);
        let x = numbers(&[rows, 576], 1.0, 2);
        let ours = fastest(|| {
            let (sum, normed) = kernels::add_rms_norm(&x, &x, None, 1e-5, &stream).unwrap();
            vec![sum, normed]
        });
        let composed = fastest(|| {
            let sum = &x + &x;
            vec![fast::rms_norm(&sum, None, 1e-5).unwrap(), sum]
        });
        print(&format!("add_rms_norm [{rows}, 576]"), ours, composed);
    }
}

#[test]
#[ignore = "measures; nothing to fail"]
fn projections() {
    let Some(stream) = stream() else { return };
    // 20 matrices in turn, so that they come from memory as in a model.
    let weights: Vec<Array> = (0..20).map(|i| numbers(&[3072, 576], 1.0, i)).collect();
    for rows in [1, 4, 16, 128] {
        let x = numbers(&[rows, 576], 1.0, 30);
        let all = |product: &dyn Fn(&Array) -> Array| weights.iter().map(product).collect();
        let ours = fastest(|| all(&|weight| kernels::linear(&x, weight, None, &stream).unwrap()));
        let composed = fastest(|| all(&|weight| x.matmul(weight.t()).unwrap()));
        let what = format!("linear [{rows}, 576] x [3072, 576]");
        print(&what, ours / 20.0, composed / 20.0);
    }
}

#[test]
#[ignore = "measures; nothing to fail"]
fn attention() {
    let Some(stream) = stream() else { return };
    for (rows, before) in [
        (1, 255),
        (1, 1023),
        (1, 4095),
        (128, 0),
        (512, 0),
        (512, 1536),
    ] {
        let tokens = (rows + before) as i32;
        let ours = attend(rows, before, Order::OfStep, &stream);
        let ordered = attend(rows, before, Order::OfSequence, &stream);
        let queries = numbers(&[1, 9, rows as i32, 64], 1.0, 1);
        let keys = numbers(&[1, 3, tokens, 64], 1.0, 2);
        let composed = fastest(|| {
            let mask = ScaledDotProductAttentionMask::Causal;
            let output =
                fast::scaled_dot_product_attention(&queries, &keys, &keys, 0.125, mask, None);
            vec![output.unwrap()]
        });
        let what = format!("{rows} rows after {before}, 9/3 heads of 64 (MLX: the product alone)");
        print(&what, ours, composed);
        print("  in the order of the sequence", ordered, composed);
    }
}

fn attend(rows: usize, before: usize, order: Order, stream: &Stream) -> f64 {
    let attention = Attention {
        heads: Heads {
            query: 9,
            kv: 3,
            dim: 64,
        },
        scale: 0.125,
        window: None,
        rotary: Rotary {
            inverse_frequencies: vec![0.1; 32],
            magnitude: 1.0,
        },
    };
    let span = SpanRange {
        rows,
        path: Vec::new(),
        tail: TailRange {
            start: 0,
            tokens: before,
        },
    };
    let plan = Arc::new(AttendPlan::new(attention, &[span], order));
    let packed = numbers(&[rows as i32, 15 * 64], 1.0, 3);
    let cache = [3, (rows + before) as i32, 64];
    // SAFETY: each is fresh, and nobody reads it.
    let tail = unsafe {
        let buffer = |seed| Buffer::new(numbers(&cache, 1.0, seed));
        [(buffer(4), buffer(5))]
    };
    fastest(|| {
        let output = kernels::attend(&plan, &packed, &[], &tail, stream).unwrap();
        vec![output]
    })
}
