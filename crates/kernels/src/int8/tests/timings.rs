//! Times of integer products beside exact ones.
//!
//! `cargo test --release -p motet-kernels -- --ignored --nocapture times_of_integer_products`

use std::time::{Duration, Instant};

use super::super::{Format, Rows, Unit};
use super::{product, quantised, units};
use crate::pool::Pool;
use crate::weights::tests::small_rows;

/// The first does not stay in the caches, the last stays in the second level.
const SHAPES: [[usize; 2]; 3] = [[1536, 8960], [1536, 576], [64, 1536]];
const ROWS: [usize; 7] = [1, 2, 3, 4, 8, 16, 512];

/// The shortest of several products, in seconds. The weights do not stay in the caches.
fn seconds(weights: &[Rows<'_>], product: impl Fn(Rows<'_>)) -> f64 {
    let mut shortest = f64::INFINITY;
    let start = Instant::now();
    for round in 0.. {
        let weight = weights[round % weights.len()];
        let begin = Instant::now();
        product(weight);
        shortest = shortest.min(begin.elapsed().as_secs_f64());
        if round >= 2 && start.elapsed() > Duration::from_millis(100) {
            break;
        }
    }
    shortest
}

fn line(format: Format, [n, width]: [usize; 2]) -> String {
    let matrix = small_rows(format, n * 4, width, 7);
    let copies: Vec<Rows<'_>> = (0..4)
        .map(|i| matrix.rows().slice(i * n..(i + 1) * n))
        .collect();
    let times = ROWS.map(|rows| {
        let input = vec![0.5; rows * width];
        let rate = |seconds: f64| format!("{:6.1}", (n * width * rows) as f64 / seconds / 1e9);
        let pool = Pool::new(1);
        let exact = seconds(&copies, |weight: Rows<'_>| {
            let mut output = vec![0.0; rows * n];
            crate::linear::linear(&pool, &input, &[weight], None, &mut output);
        });
        let fast = units().into_iter().filter(|unit| *unit != Unit::Portable);
        let fast = fast.map(|unit| {
            let product = |weight: Rows<'_>| drop(product(unit, &input, weight));
            rate(seconds(&copies, product))
        });
        [rate(exact)]
            .into_iter()
            .chain(fast)
            .collect::<Vec<_>>()
            .join(" ")
    });
    format!("{:>6} {}", format!("{format:?}"), times.join(" | "))
}

/// Prints billions of products of two numbers a second, on one thread: exact, then with each kind of
/// instructions.
#[test]
#[ignore = "prints times"]
fn times_of_integer_products() {
    let only = std::env::var("MOTET_STORAGE").ok();
    for shape in SHAPES {
        println!("{shape:?}, rows of the input: {ROWS:?}; {:?}", units());
        for format in quantised() {
            let name = format!("{format:?}");
            let chosen = |only: &String| only.split(',').any(|only| only == name);
            let whole = shape[1].is_multiple_of(format.block().0);
            if whole && only.as_ref().is_none_or(chosen) {
                println!("{}", line(format, shape));
            }
        }
    }
}
