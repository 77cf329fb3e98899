//! The forward pass of one step, as a graph.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::{Array, transforms};

use super::attention;
use super::batch::Batch;
use super::ops;
use super::rotary::{Rotary, Rotation};
use super::shape::Shape;
use super::tail::Append;
use super::weights::{Layer, Weights};

/// Layers that are built before the device starts on them. The device works while
/// the rest is being built.
const LAYERS_AHEAD: usize = 4;

/// The model proper.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) shape: Shape,
    pub(super) weights: Weights,
    pub(super) rotary: Rotary,
    /// Whether the device has MLX's fused kernels.
    pub(super) fused_kernels: bool,
}

impl Network {
    /// Runs all layers over the batch and writes the new state to `tails`, one
    /// for each span. Returns the logits of the wanted rows, `[wanted, vocab]` in
    /// single precision, or none if none are wanted.
    pub(super) fn forward(
        &self,
        batch: &Batch,
        tails: &mut [Append],
    ) -> Result<Option<Array>, Exception> {
        let rotation = match self.fused_kernels {
            true => self.rotary.positions(&batch.positions),
            false => self.rotary.table(&batch.positions),
        };
        let tokens = Array::from_slice(&batch.tokens, &[batch.rows() as i32]);
        let shape = &self.shape;
        let mut x = self.weights.embedding.rows(&tokens)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let attended = self.attend(batch, &rotation, index, layer, &x, tails)?;
            let (attended, residual) = match index + 1 == shape.layers {
                true if batch.wanted.is_empty() => return Ok(None),
                true => (wanted(batch, attended)?, wanted(batch, x)?),
                false => (attended, x),
            };
            let residual = layer.output.apply_onto(&residual, &attended)?;
            x = self.mlp(layer, &residual)?;
            if index % LAYERS_AHEAD == LAYERS_AHEAD - 1 {
                transforms::async_eval([&x])?;
            }
        }
        let x = ops::rms_norm(&x, Some(&self.weights.norm), shape.norm_eps)?;
        self.weights.head().apply(&x)?.as_type::<f32>().map(Some)
    }

    /// Projects, turns, caches and attends. `[rows, heads * head_dim]`.
    fn attend(
        &self,
        batch: &Batch,
        rotation: &Rotation<'_>,
        index: usize,
        layer: &Layer,
        x: &Array,
        tails: &mut [Append],
    ) -> Result<Array, Exception> {
        let shape = &self.shape;
        let normed = ops::rms_norm(x, layer.attention_norm.as_ref(), shape.norm_eps)?;
        let fused = rotation.apply(&layer.fused.apply(&normed)?)?;
        let new_state = self.new_state(&fused)?;
        let tails = tails
            .iter_mut()
            .zip(&batch.spans)
            .map(|(tail, rows)| {
                let (start, stop) = (rows.start as i32, rows.end as i32);
                let [heads, _, dim] = [new_state.dim(0), new_state.dim(1), new_state.dim(2)];
                tail.write(&ops::slice(&new_state, [0, start, 0], [heads, stop, dim])?)
            })
            .collect::<Result<Vec<_>, Exception>>()?;
        let queries = self.queries(&fused)?;
        let fused_kernel = match self.fused_kernels {
            true => attention::fused(shape, batch, &queries, &tails),
            false => None,
        };
        let attended = match fused_kernel {
            Some(attended) => attended?,
            None => attention::composed(shape, batch, index, &queries, &tails)?,
        };
        self.by_row(&attended)
    }

    /// Keys and values of all rows, `[2 * kv_heads, rows, head_dim]`.
    fn new_state(&self, fused: &Array) -> Result<Array, Exception> {
        let Shape {
            kv_heads, head_dim, ..
        } = self.shape;
        let (rows, width) = (fused.dim(0), fused.dim(1));
        ops::slice(fused, [0, self.shape.heads * head_dim], [rows, width])?
            .reshape(&[rows, 2 * kv_heads, head_dim])?
            .swap_axes(0, 1)
    }

    /// Queries of all rows, `[kv_heads, rows * queries per key, head_dim]`.
    fn queries(&self, fused: &Array) -> Result<Array, Exception> {
        let Shape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let (rows, shared) = (fused.dim(0), self.shape.queries_per_key());
        ops::slice(fused, [0, 0], [rows, heads * head_dim])?
            .reshape(&[rows, kv_heads, shared, head_dim])?
            .swap_axes(0, 1)?
            .reshape(&[kv_heads, rows * shared, head_dim])
    }

    /// The inverse of [`queries`](Self::queries).
    fn by_row(&self, attended: &Array) -> Result<Array, Exception> {
        let Shape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let shared = self.shape.queries_per_key();
        let rows = attended.dim(1) / shared;
        attended
            .reshape(&[kv_heads, rows, shared, head_dim])?
            .swap_axes(0, 1)?
            .reshape(&[rows, heads * head_dim])
    }

    fn mlp(&self, layer: &Layer, x: &Array) -> Result<Array, Exception> {
        let normed = ops::rms_norm(x, layer.mlp_norm.as_ref(), self.shape.norm_eps)?;
        let gated = ops::silu_mul(&layer.gate_up.apply(&normed)?)?;
        layer.down.apply_onto(x, &gated)
    }
}

/// The wanted rows of `[rows, ..]`.
fn wanted(batch: &Batch, rows: Array) -> Result<Array, Exception> {
    match batch.wanted.len() == batch.rows() {
        true => Ok(rows),
        false => {
            let indices = Array::from_slice(&batch.wanted, &[batch.wanted.len() as i32]);
            take_axis(rows, indices, 0)
        }
    }
}
