//! Rotary position embeddings (Su et al. 2021), for rows at any positions.
//!
//! The weights put the two halves of a pair side by side (see
//! [`stacked`](super::stacked)), so that turning a pair is multiplying a complex
//! number. On the CPU that makes the embedding of a layer's queries and keys one
//! multiplication by a table that all layers of a step share; the values, which
//! are not turned, ride along with a factor of one.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, complex64, fast};

use super::ops;
use super::shape::Shape;
use crate::model::weights::{LlamaConfig, RopeScaling};

/// Angles per position, one for each pair of a head.
#[derive(Debug)]
pub(super) struct Rotary {
    shape: Shape,
    radians_per_token: Vec<f64>,
    /// Tokens per radian, as MLX's fused kernel wants them.
    tokens_per_radian: Array,
}

/// The turning of one step's rows.
#[derive(Debug)]
pub(super) enum Rotation<'a> {
    /// Unit complex numbers, `[rows, fused heads * head_dim / 2]`.
    Table(Array),
    /// Positions, `[rows]`, for the fused kernel.
    Positions(Array, &'a Rotary),
}

impl Rotary {
    pub(super) fn new(config: &LlamaConfig, shape: Shape) -> Self {
        let radians_per_token: Vec<f64> = (0..config.head_dim / 2)
            .map(|pair| {
                let exponent = 2.0 * pair as f64 / config.head_dim as f64;
                let plain = f64::from(config.rope_theta).powf(-exponent);
                config
                    .rope_scaling
                    .map_or(plain, |scaling| scaled(plain, scaling))
            })
            .collect();
        let inverse: Vec<f32> = radians_per_token.iter().map(|r| (1.0 / r) as f32).collect();
        Self {
            shape,
            tokens_per_radian: Array::from_slice(&inverse, &[inverse.len() as i32]),
            radians_per_token,
        }
    }

    /// As a table, for the CPU.
    pub(super) fn table(&self, positions: &[usize]) -> Rotation<'_> {
        let half = self.radians_per_token.len();
        let turned = self.shape.turned_heads() as usize;
        let width = self.shape.fused_heads() as usize * half;
        let mut table = Vec::with_capacity(positions.len() * width);
        for position in positions {
            let row = table.len();
            table.extend(self.radians_per_token.iter().map(|radians| {
                let (sin, cos) = (*position as f64 * radians).sin_cos();
                complex64::new(cos as f32, sin as f32)
            }));
            for _ in 1..turned {
                table.extend_from_within(row..row + half);
            }
            table.resize(row + width, complex64::new(1.0, 0.0));
        }
        Rotation::Table(Array::from_slice(
            &table,
            &[positions.len() as i32, width as i32],
        ))
    }

    /// As positions, for backends with a fused kernel.
    pub(super) fn positions(&self, positions: &[usize]) -> Rotation<'_> {
        let positions: Vec<i32> = positions.iter().map(|position| *position as i32).collect();
        let positions = Array::from_slice(&positions, &[positions.len() as i32]);
        Rotation::Positions(positions, self)
    }
}

impl Rotation<'_> {
    /// Turns the queries and keys of `fused`, `[rows, fused heads * head_dim]`.
    pub(super) fn apply(&self, fused: &Array) -> Result<Array, Exception> {
        match self {
            Rotation::Table(table) => fused
                .view_dtype(Dtype::Complex64)?
                .multiply(table)?
                .view_dtype(Dtype::Float32),
            Rotation::Positions(positions, rotary) => rotary.apply_fused(fused, positions),
        }
    }
}

impl Rotary {
    fn apply_fused(&self, fused: &Array, positions: &Array) -> Result<Array, Exception> {
        let Shape { head_dim, .. } = self.shape;
        let rows = fused.dim(0);
        let width = fused.dim(1);
        let turned = self.shape.turned_heads();
        let untouched = ops::slice(fused, [0, turned * head_dim], [rows, width])?;
        // The kernel counts positions up along the last axis but one.
        let turned = ops::slice(fused, [0, 0], [rows, turned * head_dim])?
            .reshape(&[rows, turned, 1, head_dim])?;
        let turned = fast::rope_dynamic(
            turned,
            head_dim,
            true,
            None,
            1.0,
            positions,
            &self.tokens_per_radian,
        )?
        .reshape(&[rows, -1])?;
        ops::concatenate(vec![turned, untouched], 1)
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
