//! Times of attention over caches.
//!
//! `cargo test --release -p motet-kernels -- --ignored --nocapture times_of_attention`

use std::time::{Duration, Instant};

use half::bf16;

use super::super::*;
use super::attention;
use motet_formats::simd::InstructionSet;

/// Query heads, heads of keys and values, and their size: of SmolLM2-135M, and of Qwen2.5 1.5B.
const HEADS: [(usize, usize, usize); 2] = [(9, 3, 64), (12, 2, 128)];
const CONTEXT: usize = 512;

/// Bytes of caches that do not stay in the processor's.
const COLD_BYTES: usize = 256 << 20;

/// The shortest of many calls, in seconds. Each call attends to the caches of the next layer.
fn seconds<N: CacheNumber + Default>(
    pool: &Pool,
    heads: Heads,
    [sequences, rows, layers]: [usize; 3],
) -> f64 {
    let tail = TailRange {
        start: 0,
        tokens: CONTEXT - rows,
    };
    let span = SpanRange {
        path: Vec::new(),
        tail,
        rows,
    };
    let plan = AttendPlan::for_machine(
        attention(heads.query, heads.kv, heads.dim, None),
        &vec![span; sequences],
        Order::PerStep,
        InstructionSet::best(),
        pool.threads(),
    );
    let numbers = heads.kv * CONTEXT * N::row_len(heads.dim);
    let mut caches = vec![vec![[(); 2].map(|()| vec![N::default(); numbers]); sequences]; layers];
    let packed = vec![0.25; plan.rows() * (heads.query + 2 * heads.kv) * heads.dim];
    let mut output = vec![0.0; plan.query_numbers()];
    let mut shortest = f64::INFINITY;
    let start = Instant::now();
    for round in 0.. {
        let tails = caches[round % layers].iter_mut();
        let mut tails: Vec<CacheMut<'_, N>> = tails
            .map(|[keys, values]| CacheMut {
                keys,
                values,
                capacity: CONTEXT,
            })
            .collect();
        let layer = LayerInputs {
            packed: &packed,
            query_norm: None,
            key_norm: None,
            sinks: None,
        };
        let begin = Instant::now();
        attend(pool, &plan, layer, &[], &mut tails, &mut output);
        shortest = shortest.min(begin.elapsed().as_secs_f64());
        if round >= 2 * layers && start.elapsed() > Duration::from_millis(300) {
            break;
        }
    }
    shortest
}

/// A line of times: microseconds with one layer's caches again and again, and with those of many
/// layers, with the billions of bytes a second that are read of these.
fn line<N: CacheNumber + Default>(
    pool: &Pool,
    heads: Heads,
    sequences: usize,
    rows: usize,
) -> String {
    let row_bytes = N::row_len(heads.dim) * size_of::<N>();
    let bytes = 2 * sequences * heads.kv * CONTEXT * row_bytes;
    let hot = seconds::<N>(pool, heads, [sequences, rows, 1]);
    let cold = seconds::<N>(pool, heads, [sequences, rows, 1 + COLD_BYTES / bytes]);
    let rate = bytes as f64 / cold / 1e9;
    let [hot, cold] = [hot, cold].map(|seconds| 1e6 * seconds);
    format!("{hot:8.1} {cold:8.1} {rate:5.1}")
}

/// Prints the times of a layer's attention over 512 tokens, for caches in `f32` and in `bf16`.
#[test]
#[ignore = "prints times"]
fn times_of_attention() {
    for (query, kv, dim) in HEADS {
        let heads = Heads { query, kv, dim };
        for threads in [1, 2] {
            let pool = Pool::new(threads);
            for (sequences, rows) in [(1, 1), (16, 1), (1, 4), (1, 512)] {
                let [f32, bf16] =
                    [line::<f32>, line::<bf16>].map(|line| line(&pool, heads, sequences, rows));
                println!("{heads:?}, {threads} threads, {sequences} x {rows} rows: {f32} | {bf16}");
            }
        }
    }
}
