//! Times of products with weights of each format, beside the same weights in single precision.
//!
//! `cargo test --release -p motet-kernels -- --ignored --nocapture times_of_stored_weights`
//!
//! `rates_of_products` prints how many of the processor's multiplications and additions products
//! with one or two threads reach.

use std::hint::black_box;
use std::time::{Duration, Instant};

use motet_formats::simd::{Job, Simd, dispatch};
use motet_formats::{Affine, Format, ScaleFormat};

use super::super::Rows;
use super::grouped::Arrays;
use super::small_rows;
use crate::linear::linear;
use crate::pool::Pool;

const SHAPES: [[usize; 2]; 2] = [[1536, 8960], [576, 1536]];

/// `[n, width]` of the products that `rates_of_products` measures.
const RATED: [[usize; 2]; 4] = [[1536, 576], [576, 1536], [49_152, 576], [49_152, 1536]];

const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 512];

/// Time for one measurement.
const SPAN: Duration = Duration::from_millis(60);

/// The shortest of several products, in seconds. The weights do not stay in the caches.
fn seconds(pool: &Pool, weights: &[Rows<'_>], rows: usize, n: usize, width: usize) -> f64 {
    let input = vec![0.5; rows * width];
    let mut output = vec![0.0; rows * n];
    let mut shortest = f64::INFINITY;
    let start = Instant::now();
    for round in 0.. {
        let weight = &weights[round % weights.len()..][..1];
        let begin = Instant::now();
        linear(pool, &input, weight, None, &mut output);
        shortest = shortest.min(begin.elapsed().as_secs_f64());
        if round >= 2 && start.elapsed() > SPAN {
            break;
        }
    }
    shortest
}

fn line(format: Format, [n, width]: [usize; 2]) -> String {
    if matches!(format, Format::Affine(_) | Format::GroupedMxfp4) {
        let matrix = Arrays::new(format, n * 4, width, 7);
        return line_of(matrix.rows(), [n, width]);
    }
    let matrix = small_rows(format, n * 4, width, 7);
    line_of(matrix.rows(), [n, width])
}

/// Times of products with each quarter of the rows in turn.
fn line_of(all: Rows<'_>, [n, width]: [usize; 2]) -> String {
    let format = all.format();
    let copies: Vec<Rows<'_>> = (0..4).map(|i| all.slice(i * n..(i + 1) * n)).collect();
    let times = ROWS.map(|rows| {
        let seconds = seconds(Pool::global(), &copies, rows, n, width);
        let weights = (n * width) as f64 / seconds / 1e9;
        let (scale, offset) = format.span_bytes();
        let spans = width / format.block().0 * (scale + offset);
        let bytes = (n * (format.row_bytes(width) + spans)) as f64 / seconds / 1e9;
        format!("{weights:6.3} Gw/s {bytes:5.1} GB/s")
    });
    format!("{:>6} {}", name(format), times.join(" | "))
}

fn name(format: Format) -> String {
    match format {
        Format::Affine(Affine { bits, group, .. }) => format!("A{bits}g{group}"),
        _ => format!("{format:?}"),
    }
}

/// The forms of MLX that are measured.
fn grouped() -> impl Iterator<Item = Format> {
    let affine = |bits| {
        Format::Affine(Affine {
            bits,
            group: 64,
            scales: ScaleFormat::BF16,
        })
    };
    let all = [2, 3, 4, 5, 6, 8].into_iter().map(affine);
    all.chain([Format::GroupedMxfp4])
}

#[test]
#[ignore = "prints times"]
fn times_of_stored_weights() {
    let threads = Pool::global().threads();
    let only = std::env::var("MOTET_STORAGE").ok();
    for shape in SHAPES {
        println!("{shape:?}, {threads} threads, rows of the input: {ROWS:?}");
        for format in Format::ALL.iter().copied().chain(grouped()) {
            let name = name(format);
            let chosen = |only: &String| only.split(',').any(|only| only == name);
            if only.as_ref().is_none_or(chosen) {
                println!("{}", line(format, shape));
            }
        }
    }
}

/// Independent multiplications with additions, as many at a time as keep every unit busy.
struct Peak {
    rounds: usize,
    factor: f32,
}

impl Job for Peak {
    /// Floating-point operations, and the sum of the results.
    type Output = (f64, f32);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> (f64, f32) {
        let factor = simd.splat(self.factor);
        let mut sums = [simd.splat(1.0); 12];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = simd.mul_add(*sum, factor, factor);
            }
        }
        let total = sums
            .into_iter()
            .fold(simd.splat(0.0), |a, b| simd.add(a, b));
        let operations = 2 * sums.len() * S::LANES * self.rounds;
        (operations as f64, simd.sum(total))
    }
}

/// The most floating-point operations of one core, in billions a second.
fn peak() -> f64 {
    let run = |_| {
        let begin = Instant::now();
        let (operations, sum) = dispatch(Peak {
            rounds: 20_000,
            factor: black_box(0.5),
        });
        black_box(sum);
        operations / begin.elapsed().as_secs_f64() / 1e9
    };
    (0..200).map(run).fold(0.0, f64::max)
}

#[test]
#[ignore = "prints rates"]
fn rates_of_products() {
    let peak = peak();
    println!(
        "{peak:.1} GFLOP/s of one core; GFLOP/s and share of the threads' peak at {ROWS:?} rows"
    );
    for [n, width] in RATED {
        for format in [Format::Q4_1, Format::Q4K, Format::F32] {
            if !width.is_multiple_of(format.block().0) {
                continue;
            }
            // Small matrices take turns, so that weights come from memory as in a model.
            let copies = (100_000 / n).clamp(1, 30);
            let matrix = small_rows(format, n * copies, width, 7);
            let copies: Vec<Rows<'_>> = (0..copies)
                .map(|i| matrix.rows().slice(i * n..(i + 1) * n))
                .collect();
            for threads in [1, 2] {
                let pool = Pool::new(threads);
                let rates = ROWS.map(|rows| {
                    let operations = (2 * rows * n * width) as f64;
                    let rate = operations / seconds(&pool, &copies, rows, n, width) / 1e9;
                    format!(
                        "{rate:6.1} {:3.0} %",
                        100.0 * rate / (peak * threads as f64)
                    )
                });
                let name = format!("{format:?}");
                println!(
                    "[{n}, {width}] {name:>5} {threads} threads: {}",
                    rates.join(" | ")
                );
            }
        }
    }
}
