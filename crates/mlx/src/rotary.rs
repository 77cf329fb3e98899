//! Rotary position embeddings (Su et al. 2021), for rows at any positions.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, fast};

use super::ops;
use super::shape::Shape;
use motet_weights::{LlamaConfig, RopeScaling};

/// The rotation of each pair of a head from one position to the next.
#[derive(Debug)]
pub(super) struct Rotary {
    radians_per_token: Vec<f32>,
    /// The frequencies as MLX expects them.
    tokens_per_radian: Array,
}

/// The rotation of one step's rows.
#[derive(Debug)]
pub(super) struct Rotation<'a> {
    rotary: &'a Rotary,
    /// `[rows]`, signed 32-bit.
    positions: Array,
}

impl Rotary {
    pub(super) fn new(config: &LlamaConfig) -> Self {
        let pairs = config.head_dim / 2;
        let radians_per_token: Vec<f64> = (0..pairs)
            .map(|pair| f64::from(config.rope_theta).powf(-(pair as f64) / pairs as f64))
            .map(|plain| match config.rope_scaling {
                None => plain,
                Some(scaling) => scaled(plain, scaling),
            })
            .collect();
        let inverse = radians_per_token.iter().map(|r| r.recip() as f32);
        Self {
            tokens_per_radian: Array::from_iter(inverse, &[pairs as i32]),
            radians_per_token: radians_per_token.iter().map(|r| *r as f32).collect(),
        }
    }

    pub(super) fn rotation(&self, positions: impl Iterator<Item = usize>) -> Rotation<'_> {
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
    pub(super) fn turned_back(&self, keys: &Array, tokens: usize) -> Result<Array, Exception> {
        let dims = [keys.dim(0), keys.dim(1), keys.dim(2)];
        let back = Array::from_slice(&[-(tokens as i32)], &[1]);
        // One position along the axis that the kernel counts up, so all keys get the same
        // rotation.
        let alike = keys.reshape(&[1, dims[0] * dims[1], 1, dims[2]])?;
        // Not every device would round only once.
        let alike = alike.as_dtype(Dtype::Float32)?;
        fast::rope_dynamic(
            alike,
            dims[2],
            false,
            None,
            1.0,
            &back,
            &self.tokens_per_radian,
        )?
        .reshape(&dims)
        .and_then(|turned| ops::narrowed(&turned, keys.dtype()))
    }

    pub(super) fn for_kernel(&self) -> motet_kernels::Rotary {
        motet_kernels::Rotary {
            inverse_frequencies: self.radians_per_token.clone(),
            magnitude: 1.0,
        }
    }
}

impl Rotation<'_> {
    /// The queries and keys of `packed`, rotated: `[rows, rotated heads * head_dim]`.
    pub(super) fn apply(&self, shape: &Shape, packed: &Array) -> Result<Array, Exception> {
        let (rows, heads, dim) = (packed.dim(0), shape.rotated_heads(), shape.head_dim);
        // The kernel counts positions up along the last axis but one.
        let rows_of_heads =
            ops::slice(packed, [0, 0], [rows, heads * dim])?.reshape(&[rows, heads, 1, dim])?;
        fast::rope_dynamic(
            rows_of_heads,
            dim,
            false,
            None,
            1.0,
            &self.positions,
            &self.rotary.tokens_per_radian,
        )?
        .reshape(&[rows, heads * dim])
    }
}

fn scaled(radians_per_token: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::Linear { factor } => radians_per_token / f64::from(factor),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context_tokens,
        } => {
            let turns = original_context_tokens as f64 * radians_per_token / std::f64::consts::TAU;
            let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
            // Share of the original frequency that is kept.
            let retained = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            radians_per_token * (retained + (1.0 - retained) / f64::from(factor))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heads, tokens and dimensions of the keys.
    const DIMS: [i32; 3] = [2, 5, 16];

    fn rotary() -> Rotary {
        let radians = (0..8).map(|pair| 10_000f32.powf(-pair as f32 / 8.0));
        let radians_per_token: Vec<f32> = radians.collect();
        let inverse = radians_per_token.iter().map(|radians| radians.recip());
        Rotary {
            tokens_per_radian: Array::from_iter(inverse, &[8]),
            radians_per_token,
        }
    }

    /// `keys` rotated back, in double precision.
    fn turned_by_hand(rotary: &Rotary, keys: &[f32], tokens: usize) -> Vec<f64> {
        let heads = keys.chunks(16).flat_map(|head| {
            let turned = |pair: usize, second: bool| {
                let angle = -(tokens as f64) * f64::from(rotary.radians_per_token[pair]);
                let (x, y) = (f64::from(head[pair]), f64::from(head[pair + 8]));
                if second {
                    y * angle.cos() + x * angle.sin()
                } else {
                    x * angle.cos() - y * angle.sin()
                }
            };
            (0..16).map(move |i| turned(i % 8, i >= 8))
        });
        heads.collect()
    }

    #[test]
    fn keys_turn_back_by_their_distance() {
        let rotary = rotary();
        let keys: Vec<f32> = (0..160).map(|i| (i as f32 * 0.7).sin()).collect();
        let rounding = [
            (Dtype::Float32, 1e-6),
            (Dtype::Float16, 1.0 / 2048.0),
            (Dtype::Bfloat16, 1.0 / 256.0),
        ];
        for (dtype, rounding) in rounding {
            for tokens in [1, 2, 77, 1_000] {
                let stored = Array::from_slice(&keys, &DIMS).as_dtype(dtype);
                let stored = stored.expect("keys");
                let turned = rotary.turned_back(&stored, tokens).expect("turned");
                assert_eq!((turned.shape(), turned.dtype()), (&DIMS[..], dtype));
                let numbers = |array: &Array| -> Vec<f32> {
                    let array = array.as_dtype(Dtype::Float32).expect("numbers");
                    array.try_as_slice().expect("evaluated").to_vec()
                };
                let expected = turned_by_hand(&rotary, &numbers(&stored), tokens);
                // In single precision an angle is known to 2^-24 of itself.
                let tolerance = rounding + tokens as f64 / 1e7;
                for (found, expected) in numbers(&turned).iter().zip(expected) {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error < tolerance, "{dtype:?}, {tokens} tokens: {error}");
                }
            }
        }
    }
}
