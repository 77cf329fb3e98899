//! The interface between a model's layers and its cached state.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::batch::Batch;
use super::rotary::Rotary;
use super::tail::TailWrites;

/// Layers from tokens to logits.
pub(super) trait Decoder {
    /// Runs all layers over the batch and writes the new state to `tails`. Returns the logits
    /// of the output rows, `[output_rows, vocab]` in single precision, if there are any. If
    /// `eager`, the device may start on the graph while it is built; otherwise nothing is
    /// submitted yet.
    fn forward(
        &self,
        batch: &Batch,
        tails: &mut TailWrites,
        eager: bool,
    ) -> Result<Option<Array>, Exception>;

    /// The rotary embeddings of a layer's keys. `None` if the layer has none.
    fn rotary(&self, layer: usize) -> Option<&Rotary>;
}
