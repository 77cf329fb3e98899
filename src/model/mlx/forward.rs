//! The forward pass of one step, as a graph.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::{Array, transforms};

use super::attention::Attention;
use super::batch::Batch;
use super::ops::Ops;
use super::tail::Appends;
use super::weights::Weights;

/// Layers that are built before the device starts on them. The device works while
/// the rest is being built.
const LAYERS_AHEAD: usize = 4;

/// The model proper.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) weights: Weights,
    pub(super) attention: Attention,
    pub(super) ops: Ops,
    pub(super) norm_eps: f32,
}

impl Network {
    /// Runs all layers over the batch and writes the new state to `tails`. Returns
    /// the logits of the wanted rows, `[wanted, vocab]` in single precision, if any
    /// are wanted.
    pub(super) fn forward(
        &self,
        batch: &Batch,
        tails: &mut Appends,
    ) -> Result<Option<Array>, Exception> {
        let plan = self.attention.plan(batch);
        let tokens = Array::from_slice(&batch.tokens, &[batch.rows() as i32]);
        let weights = &self.weights;
        let mut x = weights.embedding.rows(&tokens)?;
        let mut normed = self
            .ops
            .rms_norm(&x, weights.norm_before(0), self.norm_eps)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            let packed = layer.packed.apply(&normed, &self.ops)?;
            let mut attended = self.attention.attend(batch, &plan, index, &packed, tails)?;
            if index + 1 == weights.layers.len() {
                if batch.wanted.is_empty() {
                    return Ok(None);
                }
                attended = wanted(batch, attended)?;
                x = wanted(batch, x)?;
            }
            let delta = layer.output.apply(&attended, &self.ops)?;
            (x, normed) = self.add_norm(&x, &delta, layer.mlp_norm.as_ref())?;
            let gated = self
                .ops
                .silu_mul(&layer.gate_up.apply(&normed, &self.ops)?)?;
            let delta = layer.down.apply(&gated, &self.ops)?;
            (x, normed) = self.add_norm(&x, &delta, weights.norm_before(index + 1))?;
            if index % LAYERS_AHEAD == LAYERS_AHEAD - 1 {
                transforms::async_eval([&x, &normed])?;
            }
        }
        weights
            .head()
            .apply(&normed, &self.ops)?
            .as_type::<f32>()
            .map(Some)
    }

    fn add_norm(
        &self,
        x: &Array,
        delta: &Array,
        weight: Option<&Array>,
    ) -> Result<(Array, Array), Exception> {
        self.ops.add_rms_norm(x, delta, weight, self.norm_eps)
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
