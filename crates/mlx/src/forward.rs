//! The forward pass of one step, as a graph.

use std::collections::VecDeque;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::{Array, transforms};

use super::attention::Attention;
use super::batch::Batch;
use super::ops::Ops;
use super::tail::TailWrites;
use super::weights::Weights;

/// Layers that are built before they are submitted. The device works on them while the rest is
/// being built.
const LAYERS_AHEAD: usize = 4;

/// Maximum bytes of activations queued on the device, beyond those of [`LAYERS_AHEAD`] layers.
/// MLX allocates memory when an operation is queued. The whole pass of a decode step needs
/// less; submitting a long chunk waits for its first layers.
pub(super) const QUEUED_BYTES_MAX: usize = 64 << 20;

/// The transformer: its weights and the operations over them.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) weights: Weights,
    pub(super) attention: Attention,
    pub(super) ops: Ops,
    pub(super) norm_eps: f32,
    /// Bytes that one layer allocates for one row before the next layer begins.
    pub(super) layer_bytes_per_row: usize,
}

impl Network {
    /// Runs all layers over the batch and writes the new state to `tails`. Returns the logits
    /// of the output rows, `[output_rows, vocab]` in single precision, if there are any. If
    /// `eager`, the device starts on the graph while it is built; otherwise nothing is
    /// submitted yet.
    pub(super) fn forward(
        &self,
        batch: &Batch,
        tails: &mut TailWrites,
        eager: bool,
    ) -> Result<Option<Array>, Exception> {
        let plan = self.attention.plan(batch);
        let tokens = batch.token_array()?;
        let mut queued = Queue::new(self, batch);
        let weights = &self.weights;
        let mut x = weights.embedding.rows(&tokens)?;
        let mut normed = self
            .ops
            .rms_norm(&x, weights.norm_before(0), self.norm_eps)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            let packed = layer.packed.apply(&normed, &self.ops)?;
            let mut attended = self.attention.attend(batch, &plan, index, &packed, tails)?;
            if index + 1 == weights.layers.len() {
                if batch.output_rows.is_empty() {
                    return Ok(None);
                }
                attended = output_rows(batch, attended)?;
                x = output_rows(batch, x)?;
            }
            let delta = layer.output.apply(&attended, &self.ops)?;
            (x, normed) = self.add_norm(&x, &delta, layer.mlp_norm.as_ref())?;
            let gated = self
                .ops
                .silu_mul(&layer.gate_up.apply(&normed, &self.ops)?)?;
            let delta = layer.down.apply(&gated, &self.ops)?;
            (x, normed) = self.add_norm(&x, &delta, weights.norm_before(index + 1))?;
            if eager && index % LAYERS_AHEAD == LAYERS_AHEAD - 1 {
                transforms::async_eval([&x, &normed])?;
                queued.push(&x)?;
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

/// Work that is queued on the device, one entry for every [`LAYERS_AHEAD`] layers.
struct Queue {
    entries: VecDeque<Array>,
    entries_max: usize,
}

impl Queue {
    fn new(network: &Network, batch: &Batch) -> Self {
        let bytes = LAYERS_AHEAD * batch.rows() * network.layer_bytes_per_row;
        Self {
            entries: VecDeque::new(),
            entries_max: (QUEUED_BYTES_MAX / bytes.max(1)).max(1),
        }
    }

    fn push(&mut self, entry: &Array) -> Result<(), Exception> {
        self.entries.push_back(entry.clone());
        if self.entries.len() > self.entries_max
            && let Some(oldest) = self.entries.pop_front()
        {
            oldest.eval()?;
        }
        Ok(())
    }
}

/// The output rows of `[rows, ..]`.
fn output_rows(batch: &Batch, rows: Array) -> Result<Array, Exception> {
    if batch.output_rows.len() == batch.rows() {
        Ok(rows)
    } else {
        let indices = Array::from_slice(&batch.output_rows, &[batch.output_rows.len() as i32]);
        take_axis(rows, indices, 0)
    }
}
