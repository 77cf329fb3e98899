//! Keys in eight bits that are rotated to other positions.

use motet_formats::simd::InstructionSet;

use super::super::super::pool::Pool;
use super::super::turn::turn_back_on;
use super::case::{CachedNumber, numbers};
use crate::cached_int8::Int8;

const FREQUENCIES: [f32; 20] = {
    let mut frequencies = [0.3; 20];
    let mut i = 1;
    while i < 20 {
        frequencies[i] = frequencies[i - 1] * 0.7;
        i += 1;
    }
    frequencies
};

/// The rotation in double precision.
fn turned(key: &[f32], frequencies: &[f32], tokens: usize) -> Vec<f32> {
    let pairs = frequencies.len();
    let number = |i: usize| f64::from(key[i]);
    let turned = (0..key.len()).map(|i| {
        if i >= 2 * pairs {
            return key[i];
        }
        let angle = -(tokens as f64) * f64::from(frequencies[i % pairs]);
        let (x, y) = (number(i % pairs), number(i % pairs + pairs));
        let turned = if i < pairs {
            x * angle.cos() - y * angle.sin()
        } else {
            x * angle.sin() + y * angle.cos()
        };
        turned as f32
    });
    turned.collect()
}

/// Keys after one shift and after several, each of which rounds once more.
#[test]
fn keys_turn_back_by_their_distance() {
    let pool = Pool::new(2);
    for (dim, pairs) in [(16, 8), (48, 20), (64, 0), (80, 20)] {
        let frequencies = &FREQUENCIES[..pairs];
        let keys = numbers(600 * dim, 7);
        for &set in InstructionSet::available() {
            let mut cached: Vec<Int8> = keys.chunks(dim).flat_map(Int8::row_of).collect();
            let row_len = cached.len() / 600;
            let mut expected: Vec<Vec<f32>> = cached
                .chunks(row_len)
                .map(|row| Int8::wide(row, dim))
                .collect();
            for (shifts, tokens) in [1, 77, 1_000, 30].into_iter().enumerate() {
                turn_back_on(set, &pool, &mut cached, dim, frequencies, tokens);
                for (row, expected) in cached.chunks(row_len).zip(&mut expected) {
                    *expected = turned(expected, frequencies, tokens);
                    for (i, found) in Int8::wide(row, dim).iter().enumerate() {
                        // A pair's errors are rotated into each other.
                        let bound = 1e-6 + 1.5 * (shifts + 1) as f32 * largest_rounding(dim);
                        let error = (found - expected[i]).abs();
                        assert!(
                            error <= bound,
                            "{set:?}, {dim}, number {i}: {error}, {bound}"
                        );
                    }
                }
            }
        }
    }
}

/// Half a step of a group whose numbers are pairs of magnitudes up to 1, rotated.
fn largest_rounding(dim: usize) -> f32 {
    Int8::rounding(&vec![2.0_f32.sqrt(); dim], 0)
}
