//! Times of integer products beside exact ones.
//!
//! `cargo test --release -p motet-kernels -- --ignored --nocapture times_of_integer_products`

use std::time::{Duration, Instant};

use super::super::{Format, Rows, linear};
use super::quantised;
use crate::pool::Pool;
use crate::weights::tests::small_rows;

const SHAPES: [[usize; 2]; 2] = [[1536, 8960], [1536, 576]];
const ROWS: [usize; 7] = [1, 2, 3, 4, 8, 16, 512];

type Product = fn(&Pool, &[f32], &[Rows<'_>], Option<&[f32]>, &mut [f32]);

/// The shortest of several products, in seconds. The weights do not stay in the caches.
fn seconds(
    product: Product,
    pool: &Pool,
    weights: &[Rows<'_>],
    rows: usize,
    [n, width]: [usize; 2],
) -> f64 {
    let input = vec![0.5; rows * width];
    let mut output = vec![0.0; rows * n];
    let mut shortest = f64::INFINITY;
    let start = Instant::now();
    for round in 0.. {
        let weight = &weights[round % weights.len()..][..1];
        let begin = Instant::now();
        product(pool, &input, weight, None, &mut output);
        shortest = shortest.min(begin.elapsed().as_secs_f64());
        if round >= 2 && start.elapsed() > Duration::from_millis(100) {
            break;
        }
    }
    shortest
}

fn line(pool: &Pool, format: Format, shape: [usize; 2]) -> String {
    let [n, width] = shape;
    let matrix = small_rows(format, n * 4, width, 7);
    let copies: Vec<Rows<'_>> = (0..4)
        .map(|i| matrix.rows().slice(i * n..(i + 1) * n))
        .collect();
    let times = ROWS.map(|rows| {
        let [exact, fast] = [crate::linear::linear as Product, linear].map(|product| {
            let seconds = seconds(product, pool, &copies, rows, shape);
            (n * width * rows) as f64 / seconds / 1e9
        });
        format!("{exact:6.1} {fast:6.1}")
    });
    format!("{:>6} {}", format!("{format:?}"), times.join(" | "))
}

/// Prints billions of products of two numbers a second: exact, then fast.
#[test]
#[ignore = "prints times"]
fn times_of_integer_products() {
    let threads = std::env::var("MOTET_THREADS").ok();
    let pool = Pool::new(threads.and_then(|text| text.parse().ok()).unwrap_or(1));
    let only = std::env::var("MOTET_STORAGE").ok();
    for shape in SHAPES {
        println!(
            "{shape:?}, {} threads, rows of the input: {ROWS:?}",
            pool.threads()
        );
        for format in quantised() {
            let name = format!("{format:?}");
            let chosen = |only: &String| only.split(',').any(|only| only == name);
            let whole = shape[1].is_multiple_of(format.block().0);
            if whole && only.as_ref().is_none_or(chosen) {
                println!("{}", line(&pool, format, shape));
            }
        }
    }
}
