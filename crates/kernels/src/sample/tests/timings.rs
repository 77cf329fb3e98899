//! Prints times, for a person to read.

use std::time::Instant;

use super::*;

const VOCABULARIES: [usize; 2] = [49_152, 151_936];
const ROUNDS: usize = 9;

/// Names of settings, and the settings.
fn settings() -> Vec<(&'static str, Sampling)> {
    let warm = Sampling {
        temperature: 1.0,
        ..Sampling::GREEDY
    };
    let cool = Sampling {
        temperature: 0.7,
        ..warm
    };
    vec![
        ("greedy", Sampling::GREEDY),
        ("temperature 0.7", cool),
        ("temperature 1", warm),
        ("top-k 40", Sampling { top_k: 40, ..cool }),
        ("top-p 0.9", Sampling { top_p: 0.9, ..cool }),
        (
            "min-p 0.05",
            Sampling {
                min_p: 0.05,
                ..cool
            },
        ),
    ]
}

/// Names of distributions, and a logit of each by a number in `[0, 1)`.
type Shape = (&'static str, fn(f32) -> f32);
const SHAPES: [Shape; 4] = [
    ("equal", |_| 0.0),
    ("flat", |u| u),
    ("natural", |u| 3.0 * (u / (1.0 - u)).ln()),
    ("steep", |u| 12.0 * u.powi(12)),
];

/// Prints the time of one token from one row, by settings and distributions.
#[test]
#[ignore = "prints times"]
fn times_of_sampling() {
    let pool = Pool::new(1);
    for vocab in VOCABULARIES {
        for (shape, logit) in SHAPES {
            let uniform = |i: usize| {
                let mixed = (i as u32).wrapping_mul(0x9E37_79B9) >> 8;
                (mixed as f32 + 0.5) / (1 << 24) as f32
            };
            let logits: Vec<f32> = (0..vocab).map(|i| logit(uniform(i))).collect();
            for (name, sampling) in settings() {
                let mut times: Vec<f64> = (0..ROUNDS)
                    .map(|round| microseconds(&pool, &logits, sampling, round))
                    .collect();
                times.sort_unstable_by(f64::total_cmp);
                let (median, least) = (times[ROUNDS / 2], times[0]);
                println!("{vocab} {shape}, {name}: {median:.1} µs, at least {least:.1}");
            }
        }
    }
}

/// The mean time of the tokens at 40 positions.
fn microseconds(pool: &Pool, logits: &[f32], sampling: Sampling, round: usize) -> f64 {
    const TOKENS: u64 = 40;
    let inputs: Vec<SampleInputs> = (0..TOKENS)
        .map(|at| sample_inputs(sampling, None, TOKENS * round as u64 + at))
        .collect();
    let start = Instant::now();
    for inputs in inputs {
        let sampled = sample_rows_on(pool, logits, logits.len(), &[(0, inputs)]);
        std::hint::black_box(sampled);
    }
    start.elapsed().as_secs_f64() * 1e6 / TOKENS as f64
}
