//! Speed of the kernels against MLX. Prints the minimum of many times; run it in release:
//! `cargo test --release --package motet-mlx --test kernels -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use mlx_rs::fast::{self, ScaledDotProductAttentionMask};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype, Stream};
use motet_kernels::experts::{Routing, choose};
use motet_kernels::gated::Activation;
use motet_kernels::pool::Pool;
use motet_kernels::{
    AttendPlan, Attention, Extras, Heads, Order, Rotary, SpanRange, TailRange, sample_rows,
};
use motet_mlx::bridge::Buffer;
use motet_mlx::kernel_ops;
use motet_mlx::kernel_ops::experts::{ExpertOptions, ExpertWeights, experts};
use motet_model::CacheKind;
use motet_model::sampling::{
    SampleInputs, Sampled, Sampler, Sampling, SamplingSpec, TokenSampling,
};

use super::{data, numbers, stream};

/// The results of a call, to be waited for and dropped.
trait Outcome {
    fn wait(self);
}

impl Outcome for Vec<Array> {
    fn wait(self) {
        eval(&self).unwrap();
    }
}

impl Outcome for Vec<Sampled> {
    fn wait(self) {}
}

fn microseconds<T: Outcome>(call: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    call().wait();
    start.elapsed().as_secs_f64() * 1e6
}

/// Microseconds of the fastest of many calls. The arrays are evaluated and dropped.
fn fastest(mut build: impl FnMut() -> Vec<Array>) -> f64 {
    let times = (0..40).map(|_| microseconds(&mut build));
    times.fold(f64::MAX, f64::min)
}

/// [`fastest`] for two operations that take turns.
fn fastest_of_both<T: Outcome>(
    mut one: impl FnMut() -> T,
    mut other: impl FnMut() -> T,
) -> [f64; 2] {
    let times = (0..40).map(|_| [microseconds(&mut one), microseconds(&mut other)]);
    times.fold([f64::MAX; 2], |[a, b], [one, other]| {
        [a.min(one), b.min(other)]
    })
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
        let ours = fastest(|| vec![kernel_ops::silu_mul(&gate_up, &stream).unwrap()]);
        let composed = fastest(|| {
            let halves = gate_up.split_equal(2, -1).unwrap();
            vec![mlx_rs::nn::silu(&halves[0]).unwrap() * &halves[1]]
        });
        print(&format!("silu_mul [{rows}, 1536]"), ours, composed);
        let x = numbers(&[rows, 576], 1.0, 2);
        let ours = fastest(|| {
            let (sum, normed) = kernel_ops::add_rms_norm(&x, &x, None, 1e-5, &stream).unwrap();
            vec![sum, normed]
        });
        let composed = fastest(|| {
            let sum = &x + &x;
            vec![fast::rms_norm(&sum, None, 1e-5).unwrap(), sum]
        });
        print(&format!("add_rms_norm [{rows}, 576]"), ours, composed);
    }
}

/// Products of SmolLM2 135M: name, columns, rows of the weights, and how many matrices take
/// turns, so that weights come from memory as in a model.
const PRODUCTS: [(&str, i32, i32, u64); 5] = [
    ("packed QKV", 576, 960, 30),
    ("output", 576, 576, 40),
    ("gate and up", 576, 3072, 20),
    ("down", 1536, 576, 30),
    ("head", 576, 49_152, 2),
];

#[test]
#[ignore = "measures; nothing to fail"]
fn projections() {
    let Some(stream) = stream() else { return };
    for (name, width, n, count) in PRODUCTS {
        let weights: Vec<Array> = (0..count).map(|i| numbers(&[n, width], 1.0, i)).collect();
        for rows in [1, 2, 4, 8, 16, 32, 128, 512] {
            let x = numbers(&[rows, width], 1.0, 90);
            let [ours, composed] = fastest_of_both(
                || {
                    let ours = |weight| kernel_ops::linear(&x, weight, None, &stream).unwrap();
                    weights.iter().map(ours).collect::<Vec<_>>()
                },
                || {
                    weights
                        .iter()
                        .map(|weight| x.matmul(weight.t()).unwrap())
                        .collect()
                },
            );
            let what = format!("linear {name} [{rows}, {width}] x [{n}, {width}]");
            let count = count as f64;
            print(&what, ours / count, composed / count);
        }
    }
}

/// Experts against the time that their weights take to arrive from memory: that of a product of
/// one row with as many weights.
#[test]
#[ignore = "measures; nothing to fail"]
fn experts_layer() {
    const ROWS: i32 = 16;
    const HIDDEN: i32 = 1024;
    const INNER: i32 = 512;
    const COUNT: i32 = 64;
    let Some(stream) = stream() else { return };
    let options = ExpertOptions {
        count: COUNT as usize,
        per_row: 8,
        inner: INNER as usize,
        routing: Routing::SoftmaxAll { normalised: true },
        activation: Activation::Silu,
    };
    let [gate, up] = [1, 2].map(|seed| numbers(&[COUNT, INNER, HIDDEN], 0.1, seed));
    let down = numbers(&[COUNT, HIDDEN, INNER], 0.1, 3);
    let [x, row] = [ROWS, 1].map(|rows| numbers(&[rows, HIDDEN], 1.0, 4));
    let logits = numbers(&[ROWS, COUNT], 1.0, 5);
    let choice = choose(
        Pool::global(),
        options.routing,
        &data(&logits),
        options.count,
        options.per_row,
    );
    let mut used = vec![false; options.count];
    for row in 0..choice.rows() {
        choice
            .of_row(row)
            .for_each(|(expert, _)| used[expert] = true);
    }
    let used = used.into_iter().filter(|used| *used).count();
    let weights = ExpertWeights {
        gate: &gate,
        up: &up,
        down: &down,
        biases: None,
    };
    let matrix = gate.reshape(&[COUNT * INNER, HIDDEN]).unwrap();
    eval([&matrix, &up, &down, &x, &row, &logits]).unwrap();
    let [ours, read] = fastest_of_both(
        || vec![experts(options, &x, &logits, weights, &stream).unwrap()],
        || vec![kernel_ops::linear(&row, &matrix, None, &stream).unwrap()],
    );
    let bytes = used * 3 * gate.nbytes() / options.count;
    let read_speed = gate.nbytes() as f64 / read;
    println!(
        "{used} of {COUNT} experts of {INNER}, {} for each of {ROWS} rows of {HIDDEN}: {ours:.0} µs, \
         {:.2} times the time of reading {} MB at {:.1} GB/s",
        options.per_row,
        ours / (bytes as f64 / read_speed),
        bytes / 1_000_000,
        read_speed / 1000.0,
    );
}

#[test]
#[ignore = "measures; nothing to fail"]
fn sampled_rows() {
    const VOCAB: usize = 49_152;
    const ROWS: u32 = 16;
    let warm = Sampling {
        temperature: 0.8,
        ..Sampling::GREEDY
    };
    let top_k = Sampling { top_k: 40, ..warm };
    let cases = [
        ("greedy", Sampling::GREEDY, None),
        ("temperature", warm, None),
        (
            "top-p 0.95",
            Sampling {
                top_p: 0.95,
                ..warm
            },
            None,
        ),
        ("top-k 40", top_k, None),
        (
            "top-k 40, top-p 0.9",
            Sampling {
                top_p: 0.9,
                ..top_k
            },
            None,
        ),
        (
            "min-p 0.05",
            Sampling {
                min_p: 0.05,
                ..warm
            },
            None,
        ),
        ("greedy, 20 alternatives", Sampling::GREEDY, Some(20)),
        (
            "repetition penalty",
            Sampling {
                repetition_penalty: 1.1,
                ..warm
            },
            None,
        ),
    ];
    for (shape, steepness) in [("steep", 12.0), ("flat", 1.0)] {
        let logit = |i: usize| {
            let mixed = (i as u32).wrapping_mul(0x9E37_79B9) >> 8;
            steepness * (mixed as f32 / (1 << 24) as f32).powf(steepness)
        };
        let logits: Vec<f32> = (0..VOCAB * ROWS as usize).map(logit).collect();
        for (name, sampling, logprobs) in cases {
            let spec = SamplingSpec {
                logprobs,
                ..SamplingSpec::default()
            };
            let history: Vec<u32> = (0..64).map(|i| 700 * i).collect();
            let mut sampler = Sampler::new(Arc::new(spec), sampling, &history, &[]);
            let mut sample_inputs = |position| {
                sampler
                    .sample_inputs(TokenSampling { sampling, position })
                    .unwrap()
            };
            let sampled_rows: Vec<(u32, SampleInputs)> = (0..ROWS)
                .map(|row| (row, sample_inputs(u64::from(row))))
                .collect();
            for rows in [1, 16] {
                let sampled_rows = &sampled_rows[..rows];
                let [ours, plain] = fastest_of_both(
                    || sample_rows(&logits, VOCAB, sampled_rows),
                    || -> Vec<Sampled> {
                        let row = |row: u32| &logits[row as usize * VOCAB..][..VOCAB];
                        sampled_rows
                            .iter()
                            .map(|(at, sample_inputs)| sample_inputs.from_logits(row(*at)))
                            .collect()
                    },
                );
                println!("{name}, {shape}, {rows} rows: {ours:.0} µs, plain {plain:.0} µs");
            }
        }
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
        (1, 8191),
        (128, 0),
        (512, 0),
        (512, 1536),
    ] {
        let tokens = (rows + before) as i32;
        let [ours, f16, bf16, int8] =
            CacheKind::ALL.map(|cached| attend(rows, before, Order::PerStep, cached, &stream));
        let ordered = attend(rows, before, Order::PerSequence, CacheKind::F32, &stream);
        println!("cached in bf16 {bf16:.0} µs, in f16 {f16:.0} µs, in int8 {int8:.0} µs");
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

fn attend(rows: usize, before: usize, order: Order, cached: CacheKind, stream: &Stream) -> f64 {
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
        cached,
        extras: Extras::default(),
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
    // SAFETY: each array is new, and nothing reads it.
    let tail = unsafe {
        let buffer = |seed| Buffer::new(cached_array(rows + before, cached, seed));
        [(buffer(4), buffer(5))]
    };
    fastest(|| {
        let output = kernel_ops::attend(&plan, &packed, &[], &tail, stream).unwrap();
        vec![output]
    })
}

/// Keys or values of three heads of 64 numbers, in words.
fn cached_array(tokens: usize, cached: CacheKind, seed: u64) -> Array {
    let dtype = match cached {
        CacheKind::F32 => Dtype::Float32,
        CacheKind::F16 => Dtype::Float16,
        CacheKind::Bf16 => Dtype::Bfloat16,
        CacheKind::Int8 => return cached_codes(tokens),
    };
    let floats = numbers(&[3, tokens as i32, 64], 1.0, seed);
    let floats = floats.as_dtype(dtype).unwrap();
    floats.view::<f32>().unwrap().contiguous().unwrap()
}

/// Groups of a scale and 32 codes.
fn cached_codes(tokens: usize) -> Array {
    let scale = half::bf16::from_f32(1.0 / 127.0).to_le_bytes();
    let group = |group: usize| {
        let codes = (0..32).map(move |i| (group * 31 + i * 37) as u8);
        scale.into_iter().chain(codes)
    };
    let bytes: Vec<u8> = (0..2 * 3 * tokens).flat_map(group).collect();
    let words = bytes.as_chunks::<4>().0.iter();
    let words: Vec<f32> = words.map(|word| f32::from_ne_bytes(*word)).collect();
    Array::from_slice(&words, &[3, tokens as i32, 17])
}
