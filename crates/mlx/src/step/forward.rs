//! The forward pass of one step, as a graph.

use std::collections::VecDeque;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::{Array, Stream, transforms};

use super::batch::Batch;
use super::decoder::{Decoder, LastRows};
use crate::device::kernel_ops::layer_end::{self, LayerEnd};
use crate::device::ops::{Ops, kernel_activation};
use crate::device::profile;
use crate::layers::attention::Attentions;
use crate::layers::blocks::MixerStep;
use crate::layers::weights::{LayerWeights, Weights};
use crate::state::tail::TailWrites;
use crate::weights::InputNorm;
use motet_weights::Stem;

/// Layers that are built before they are submitted. The device works on them while the rest is
/// being built.
const LAYERS_AHEAD: usize = 4;

/// Maximum bytes of activations queued on the device, beyond those of [`LAYERS_AHEAD`] layers.
/// MLX allocates memory when an operation is queued. The whole pass of a decode step needs
/// less; submitting a long chunk waits for its first layers.
pub(crate) const QUEUED_BYTES_MAX: usize = 64 << 20;

/// The model: its weights and the operations over them. One loop over the layers runs every
/// family.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) weights: Weights,
    pub(crate) attentions: Attentions,
    pub(crate) ops: Ops,
    pub(crate) stem: Stem,
    /// Bytes that one layer allocates for one row before the next layer begins.
    pub(crate) layer_bytes_per_row: usize,
}

impl Decoder for Network {
    fn forward(
        &self,
        batch: &Batch,
        tails: &mut TailWrites,
        eager: bool,
    ) -> Result<LastRows, Exception> {
        let plans = self.attentions.plan(&batch.rows);
        let tokens = batch.token_array()?;
        let mut queued = Queue::new(self, batch, tails);
        let last_rows = batch.last_rows();
        let weights = &self.weights;
        let mut x = self.embed(&tokens)?;
        let mut normed = self.norm_first(&x)?;
        let mut step = MixerStep {
            batch: &batch.rows,
            attentions: &self.attentions,
            plans: &plans,
            ops: &self.ops,
            tails,
        };
        for (index, layer) in weights.layers.iter().enumerate() {
            // A wider type would be the residual stream's from here on, and then each product
            // would convert its weights.
            let mixed = layer.mixer.mix(&mut step, index, &normed)?;
            let mut mixed = mixed.as_dtype(x.dtype())?;
            if index + 1 == weights.layers.len() {
                if last_rows.is_empty() {
                    return Ok(LastRows::default());
                }
                mixed = taken_rows(batch, &last_rows, mixed)?;
                x = taken_rows(batch, &last_rows, x)?;
            }
            (x, normed) = self.end_layer(index, layer, &x, &mixed)?;
            if eager && index % LAYERS_AHEAD == LAYERS_AHEAD - 1 {
                let aside = step.tails.unsubmitted();
                transforms::async_eval([&x, &normed].into_iter().chain(aside))?;
                queued.push(&x)?;
            }
        }
        LastRows::new(self, batch, normed)
    }

    fn replay(&self, layer: usize, rows: &Array, tails: &mut TailWrites) -> Result<(), Exception> {
        let mixer = &self.weights.layers[layer].mixer;
        mixer.replay(layer, rows, &self.ops, tails)
    }

    fn logits(&self, states: &Array) -> Result<Array, Exception> {
        let head = self.weights.head();
        let logits = head.apply(states, &self.ops)?.as_type::<f32>()?;
        match self.stem.logit_softcap {
            Some(cap) => self.ops.softcap(&logits, cap),
            None => Ok(logits),
        }
    }

    fn state_scale(&self) -> f32 {
        self.stem.logit_scale
    }

    fn turned_back(
        &self,
        layer: usize,
        keys: &Array,
        tokens: usize,
        stream: &Stream,
    ) -> Result<Array, Exception> {
        self.attentions.turned_back(layer, keys, tokens, stream)
    }
}

impl Network {
    fn embed(&self, tokens: &Array) -> Result<Array, Exception> {
        let rows = self.weights.embedding.rows(tokens, &self.ops)?;
        let scale = self.stem.embedding_scale;
        if scale == 1.0 {
            return Ok(rows);
        }
        rows.multiply(Array::from_f32(scale).as_dtype(rows.dtype())?)
    }

    /// The norm before the mixer of layer `index`, or before the output head after the last
    /// layer.
    fn norm_before(&self, index: usize) -> &InputNorm {
        match self.weights.layers.get(index) {
            Some(layer) => &layer.norms.before_mixer,
            None => &self.weights.norm,
        }
    }

    fn norm_first(&self, x: &Array) -> Result<Array, Exception> {
        match self.norm_before(0) {
            InputNorm::None => Ok(x.clone()),
            InputNorm::Folded => self.ops.rms_norm(x, None, self.stem.norm_eps),
            InputNorm::Weight(weight) => self.ops.rms_norm(x, Some(weight), self.stem.norm_eps),
        }
    }

    /// Adds the output of layer `index` to the residual stream `x`, and returns the sum and the
    /// next layer's input.
    fn end_layer(
        &self,
        index: usize,
        layer: &LayerWeights,
        x: &Array,
        mixed: &Array,
    ) -> Result<(Array, Array), Exception> {
        // One operation has one clock.
        let is_small = x.dim(0) as usize <= layer_end::ROWS_MAX && !profile::is_recording();
        if let Some(stream) = self.ops.kernels.as_ref().filter(|_| is_small)
            && let Some(end) = self.layer_end(index, layer)
        {
            return layer_end::layer_end(x, mixed, &end, stream);
        }
        let delta = layer.mixer.output().apply(mixed, &self.ops)?;
        let delta = self.norm_after(delta, layer.norms.after_mixer.as_ref())?;
        let (x, normed) = self.add_norm(x, &delta, &layer.norms.before_mlp)?;
        let delta = layer.mlp.apply(&normed, &self.ops)?.as_dtype(x.dtype())?;
        let delta = self.norm_after(delta, layer.norms.after_mlp.as_ref())?;
        self.add_norm(&x, &delta, self.norm_before(index + 1))
    }

    /// The end of layer `index` for one operation. None if the layer has experts, or matrices that
    /// are not kept as stored.
    fn layer_end<'a>(&'a self, index: usize, layer: &'a LayerWeights) -> Option<LayerEnd<'a>> {
        let ([gate_up, down], activation) = layer.mlp.gated()?;
        Some(LayerEnd {
            output: layer.mixer.output().projection()?,
            after_mixer: layer.norms.after_mixer.as_ref(),
            before_mlp: layer.norms.before_mlp.of_rows(),
            gate_up,
            activation: kernel_activation(activation),
            down,
            after_mlp: layer.norms.after_mlp.as_ref(),
            before_next: self.norm_before(index + 1).of_rows(),
            epsilon: self.stem.norm_eps,
            arithmetic: self.ops.arithmetic,
        })
    }

    fn norm_after(&self, delta: Array, weight: Option<&Array>) -> Result<Array, Exception> {
        match weight {
            Some(weight) => self.ops.rms_norm(&delta, Some(weight), self.stem.norm_eps),
            None => Ok(delta),
        }
    }

    /// `x + delta`, and its norm.
    fn add_norm(
        &self,
        x: &Array,
        delta: &Array,
        norm: &InputNorm,
    ) -> Result<(Array, Array), Exception> {
        let weight = match norm {
            InputNorm::None => {
                let sum = x.add(delta)?;
                return Ok((sum.clone(), sum));
            }
            InputNorm::Folded => None,
            InputNorm::Weight(weight) => Some(weight),
        };
        self.ops.add_rms_norm(x, delta, weight, self.stem.norm_eps)
    }
}

/// Work that is queued on the device, one entry for every [`LAYERS_AHEAD`] layers.
struct Queue {
    entries: VecDeque<Array>,
    entries_max: usize,
}

impl Queue {
    fn new(network: &Network, batch: &Batch, tails: &TailWrites) -> Self {
        let rows = batch.rows.count() * network.layer_bytes_per_row;
        let bytes = LAYERS_AHEAD * (rows + tails.copied_bytes_per_layer());
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

/// These rows, each at most once, of the batch's `[rows, ..]`.
fn taken_rows(batch: &Batch, taken: &[u32], rows: Array) -> Result<Array, Exception> {
    if taken.len() == batch.rows.count() && taken.is_sorted() {
        Ok(rows)
    } else {
        let indices = Array::from_slice(taken, &[taken.len() as i32]);
        take_axis(rows, indices, 0)
    }
}
