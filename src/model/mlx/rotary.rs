//! Rotary position embeddings (Su et al. 2021), for rows at any positions.

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast};

use super::kernels;
use super::ops;
use super::shape::Shape;
use crate::model::weights::{LlamaConfig, RopeScaling};

/// How far each pair of a head turns from one position to the next.
#[derive(Debug)]
pub(super) struct Rotary {
    radians_per_token: Vec<f32>,
    /// As MLX wants it.
    tokens_per_radian: Array,
}

/// The turning of one step's rows.
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

    /// Keys `[kv_heads, tokens, head_dim]` that move `tokens` tokens towards the
    /// start, turned back by as many.
    ///
    /// Turns add up, so that this is what turning to the new position would have
    /// given, but for rounding: in single precision about the rounding of an angle
    /// at the old position (1e-4 of a key's size at position 2,000), in half
    /// precision once more that of the key (2^-9 of its size in bfloat16) for
    /// each time that it is moved.
    pub(super) fn turned_back(&self, keys: &Array, tokens: usize) -> Result<Array, Exception> {
        let dims = [keys.dim(0), keys.dim(1), keys.dim(2)];
        let back = Array::from_slice(&[-(tokens as i32)], &[1]);
        // One position along the axis that the kernel counts up, so all turn alike.
        let alike = keys.reshape(&[1, dims[0] * dims[1], 1, dims[2]])?;
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
    }

    pub(super) fn for_kernel(&self) -> kernels::Rotary {
        kernels::Rotary {
            inverse_frequencies: self.radians_per_token.clone(),
            magnitude: 1.0,
        }
    }
}

impl Rotation<'_> {
    /// The queries and keys of `packed`, turned:
    /// `[rows, turned heads * head_dim]`.
    pub(super) fn apply(&self, shape: &Shape, packed: &Array) -> Result<Array, Exception> {
        let (rows, heads, dim) = (packed.dim(0), shape.turned_heads(), shape.head_dim);
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
            // How much of the original frequency is kept.
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            radians_per_token * (kept + (1.0 - kept) / f64::from(factor))
        }
    }
}
