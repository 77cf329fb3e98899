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
