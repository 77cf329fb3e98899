//! Times of products with weights of each storage, beside the same weights in single precision.
//!
//! `cargo test --release -p motet-kernels -- --ignored --nocapture times_of_stored_weights`

use std::time::{Duration, Instant};

use super::super::{Rows, ScaleFormat, Storage};
use super::grouped::Arrays;
use super::{ALL, small_rows};
use crate::linear::linear;
use crate::pool::Pool;

const SHAPES: [[usize; 2]; 2] = [[1536, 8960], [576, 1536]];
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 512];

/// The shortest of several products, in seconds. The weights do not stay in the caches.
fn seconds(weights: &[Rows<'_>], rows: usize, n: usize, width: usize) -> f64 {
    let input = vec![0.5; rows * width];
    let mut output = vec![0.0; rows * n];
    let mut shortest = f64::INFINITY;
    let start = Instant::now();
    for round in 0.. {
        let weight = &weights[round % weights.len()..][..1];
        let begin = Instant::now();
        linear(Pool::global(), &input, weight, None, &mut output);
        shortest = shortest.min(begin.elapsed().as_secs_f64());
        if round >= 2 && start.elapsed() > Duration::from_millis(60) {
            break;
        }
    }
    shortest
}

fn line(storage: Storage, [n, width]: [usize; 2]) -> String {
    if matches!(storage, Storage::Affine { .. } | Storage::GroupedMxfp4) {
        let matrix = Arrays::new(storage, n * 4, width, 7);
        return line_of(matrix.rows(), [n, width]);
    }
    let matrix = small_rows(storage, n * 4, width, 7);
    line_of(matrix.rows(), [n, width])
}

/// Times of products with each quarter of the rows in turn.
fn line_of(all: Rows<'_>, [n, width]: [usize; 2]) -> String {
    let storage = all.storage();
    let copies: Vec<Rows<'_>> = (0..4).map(|i| all.slice(i * n..(i + 1) * n)).collect();
    let times = ROWS.map(|rows| {
        let seconds = seconds(&copies, rows, n, width);
        let weights = (n * width) as f64 / seconds / 1e9;
        let (scale, offset) = storage.span_bytes();
        let spans = width / storage.block().0 * (scale + offset);
        let bytes = (n * (storage.row_bytes(width) + spans)) as f64 / seconds / 1e9;
        format!("{weights:6.3} Gw/s {bytes:5.1} GB/s")
    });
    format!("{:>6} {}", name(storage), times.join(" | "))
}

fn name(storage: Storage) -> String {
    match storage {
        Storage::Affine { bits, group, .. } => format!("A{bits}g{group}"),
        _ => format!("{storage:?}"),
    }
}

/// The forms of MLX that are measured.
fn grouped() -> impl Iterator<Item = Storage> {
    let affine = |bits| Storage::Affine {
        bits,
        group: 64,
        scales: ScaleFormat::Bf16,
    };
    let all = [2, 3, 4, 5, 6, 8].into_iter().map(affine);
    all.chain([Storage::GroupedMxfp4])
}

#[test]
#[ignore = "prints times"]
fn times_of_stored_weights() {
    let threads = Pool::global().threads();
    let only = std::env::var("MOTET_STORAGE").ok();
    for shape in SHAPES {
        println!("{shape:?}, {threads} threads, rows of the input: {ROWS:?}");
        for storage in ALL.into_iter().chain(grouped()) {
            let name = name(storage);
            let chosen = |only: &String| only.split(',').any(|only| only == name);
            if only.as_ref().is_none_or(chosen) {
                println!("{}", line(storage, shape));
            }
        }
    }
}
