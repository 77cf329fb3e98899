//! Rotary position embeddings (Su et al. 2021), for rows at any positions.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, fast};

use crate::device::ops;
use motet_weights::Rope;

/// The rotation of each pair of a head from one position to the next. Pair `i` is dimensions `i`
/// and `i` plus the number of pairs. Dimensions after the pairs are not rotated.
#[derive(Debug)]
pub(crate) struct Rotary {
    radians_per_token: Vec<f32>,
    /// Factor of sine and cosine.
    magnitude: f32,
    /// The frequencies as MLX expects them.
    tokens_per_radian: Array,
}

/// The rotation of one step's rows.
#[derive(Debug)]
pub(crate) struct Rotation<'a> {
    rotary: &'a Rotary,
    /// `[rows]`, signed 32-bit.
    positions: Array,
}

impl Rotary {
    pub(crate) fn new(rope: &Rope) -> Self {
        let frequencies = rope.frequencies();
        let radians = frequencies.radians_per_token;
        let inverse = radians.iter().map(|r| r.recip() as f32);
        Self {
            tokens_per_radian: Array::from_iter(inverse, &[radians.len() as i32]),
            radians_per_token: radians.iter().map(|r| *r as f32).collect(),
            magnitude: frequencies.magnitude,
        }
    }

    /// Rotated dimensions of a head, its first ones.
    fn rotated(&self) -> i32 {
        2 * self.radians_per_token.len() as i32
    }

    /// Radians per token of each pair.
    pub(crate) fn radians_per_token(&self) -> &[f32] {
        &self.radians_per_token
    }

    pub(crate) fn rotation(&self, positions: impl Iterator<Item = usize>) -> Rotation<'_> {
        let positions: Vec<i32> = positions.map(|position| position as i32).collect();
        Rotation {
            rotary: self,
            positions: Array::from_slice(&positions, &[positions.len() as i32]),
        }
    }

    /// Rotates keys `[kv_heads, tokens, head_dim]`, which move `tokens` tokens towards the
    /// start, back by as many positions.
    ///
    /// Rotations add up, so the result equals a rotation to the new position, except for
    /// rounding. An angle in single precision is known to 2^-24 of itself (1e-4 radians at
    /// position 2,000). A key in half precision is rounded once more each time that it is moved
    /// (to 2^-9 of itself in bfloat16, 2^-12 in float16).
    pub(crate) fn turned_back(&self, keys: &Array, tokens: usize) -> Result<Array, Exception> {
        let dims = [keys.dim(0), keys.dim(1), keys.dim(2)];
        let back = Array::from_slice(&[-(tokens as i32)], &[1]);
        // One position along the axis that the kernel counts up, so all keys get the same
        // rotation.
        let alike = keys.reshape(&[1, dims[0] * dims[1], 1, dims[2]])?;
        // Not every device would round only once.
        let alike = alike.as_dtype(Dtype::Float32)?;
        fast::rope_dynamic(
            alike,
            self.rotated(),
            false,
            None,
            1.0,
            &back,
            &self.tokens_per_radian,
        )?
        .reshape(&dims)
        .and_then(|turned| ops::narrowed(&turned, keys.dtype()))
    }
}

/// The rotation in the form that this crate's kernel takes; without pairs where there is none.
pub(crate) fn for_kernel(rotary: Option<&Rotary>) -> motet_kernels::Rotary {
    motet_kernels::Rotary {
        inverse_frequencies: rotary.map_or(Vec::new(), |rotary| rotary.radians_per_token.clone()),
        magnitude: rotary.map_or(1.0, |rotary| rotary.magnitude),
    }
}

impl Rotation<'_> {
    /// The first `heads` heads of `packed`, of `dim` dimensions each, rotated:
    /// `[rows, heads * dim]`.
    pub(crate) fn apply(&self, heads: i32, dim: i32, packed: &Array) -> Result<Array, Exception> {
        let rows = packed.dim(0);
        let rotated = self.rotary.rotated();
        // The kernel counts positions up along the last axis but one.
        let rows_of_heads =
            ops::slice(packed, [0, 0], [rows, heads * dim])?.reshape(&[rows, heads, 1, dim])?;
        let turned = fast::rope_dynamic(
            rows_of_heads,
            rotated,
            false,
            None,
            1.0,
            &self.positions,
            &self.rotary.tokens_per_radian,
        )?;
        let turned = if self.rotary.magnitude == 1.0 {
            turned
        } else {
            let factor = |i: i32| {
                if i < rotated {
                    self.rotary.magnitude
                } else {
                    1.0
                }
            };
            let factors = Array::from_iter((0..dim).map(factor), &[dim]);
            turned.multiply(factors.as_dtype(turned.dtype())?)?
        };
        turned.reshape(&[rows, heads * dim])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_weights::RopeScaling;

    /// Heads, tokens and dimensions of the keys.
    const DIMS: [i32; 3] = [2, 5, 16];

    /// A rotation of the first `rotated` of 16 dimensions.
    fn rotary(rotated: usize, magnitude: f32) -> Rotary {
        let divisors = vec![1.5; rotated / 2];
        Rotary::new(&Rope {
            theta: 10_000.0,
            rotated,
            scaling: RopeScaling::Long {
                divisors,
                magnitude,
            },
        })
    }

    /// `heads` of 16 numbers, each turned by `tokens` positions and scaled, in double precision.
    fn turned_by_hand(rotary: &Rotary, heads: &[f32], tokens: i64, magnitude: f64) -> Vec<f64> {
        let pairs = rotary.radians_per_token.len();
        let heads = heads.chunks(16).flat_map(|head| {
            let turned = move |i: usize| {
                let number = |i: usize| f64::from(head[i]);
                if i >= 2 * pairs {
                    return number(i);
                }
                let pair = i % pairs;
                let angle = tokens as f64 * f64::from(rotary.radians_per_token[pair]);
                let (x, y) = (number(pair), number(pair + pairs));
                magnitude
                    * if i < pairs {
                        x * angle.cos() - y * angle.sin()
                    } else {
                        y * angle.cos() + x * angle.sin()
                    }
            };
            (0..16).map(turned)
        });
        heads.collect()
    }

    fn numbers(array: &Array) -> Vec<f32> {
        let array = array.as_dtype(Dtype::Float32).expect("numbers");
        array.try_as_slice().expect("evaluated").to_vec()
    }

    fn assert_near(found: &Array, expected: &[f64], tolerance: f64, what: &str) {
        let found = numbers(found);
        assert_eq!(found.len(), expected.len(), "{what}");
        for (found, expected) in found.iter().zip(expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < tolerance, "{what}: {error}");
        }
    }

    #[test]
    fn keys_turn_back_by_their_distance() {
        let keys: Vec<f32> = (0..160).map(|i| (i as f32 * 0.7).sin()).collect();
        let rounding = [
            (Dtype::Float32, 1e-6),
            (Dtype::Float16, 1.0 / 2048.0),
            (Dtype::Bfloat16, 1.0 / 256.0),
        ];
        // Keys got their magnitude when they were rotated first.
        for rotary in [rotary(16, 1.0), rotary(8, 1.25)] {
            for (dtype, rounding) in rounding {
                for tokens in [1, 2, 77, 1_000] {
                    let stored = Array::from_slice(&keys, &DIMS).as_dtype(dtype);
                    let stored = stored.expect("keys");
                    let turned = rotary.turned_back(&stored, tokens).expect("turned");
                    assert_eq!((turned.shape(), turned.dtype()), (&DIMS[..], dtype));
                    let back = -(tokens as i64);
                    let expected = turned_by_hand(&rotary, &numbers(&stored), back, 1.0);
                    // In single precision an angle is known to 2^-24 of itself.
                    let tolerance = rounding + tokens as f64 / 1e7;
                    let what = format!("{dtype:?}, {tokens} tokens");
                    assert_near(&turned, &expected, tolerance, &what);
                }
            }
        }
    }

    #[test]
    fn rows_turn_by_their_position_and_magnitude() {
        let positions = [0, 1, 300];
        let rows: Vec<f32> = (0..3 * 64).map(|i| (i as f32 * 0.3).cos()).collect();
        let packed = Array::from_slice(&rows, &[3, 64]);
        for (rotated, magnitude) in [(16, 1.0), (16, 1.5), (8, 1.0), (8, 1.5), (4, 0.5)] {
            let rotary = rotary(rotated, magnitude);
            let rotation = rotary.rotation(positions.into_iter());
            let turned = rotation.apply(3, 16, &packed).expect("turned");
            assert_eq!(turned.shape(), [3, 48], "queries and keys only");
            let expected: Vec<f64> = rows
                .chunks(64)
                .zip(positions)
                .flat_map(|(row, position)| {
                    let position = position as i64;
                    turned_by_hand(&rotary, &row[..48], position, f64::from(magnitude))
                })
                .collect();
            let what = format!("{rotated} of 16 dimensions, times {magnitude}");
            assert_near(&turned, &expected, 1e-4, &what);
        }
    }
}
