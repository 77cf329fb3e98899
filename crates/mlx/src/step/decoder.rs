//! The interface between a model's layers and its cached state.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use super::batch::Batch;
use crate::state::tail::TailWrites;

/// Layers from tokens to logits.
pub(crate) trait Decoder {
    /// Runs all layers over the batch and writes the new state to `tails`. If `eager`, the
    /// device may start on the graph while it is built; otherwise nothing is submitted yet.
    fn forward(
        &self,
        batch: &Batch,
        tails: &mut TailWrites,
        eager: bool,
    ) -> Result<LastRows, Exception>;

    /// Changes the state of a recurrent layer in `tails` by these rows of its input, which an earlier
    /// pass has computed. Called for the recurrent layers in order.
    fn replay(&self, layer: usize, rows: &Array, tails: &mut TailWrites) -> Result<(), Exception>;

    /// The logits of rows of [`LastRows::states`], `[rows, vocab]` in single precision.
    fn logits(&self, states: &Array) -> Result<Array, Exception>;

    /// The factor by which those states differ from the model's hidden states.
    fn state_scale(&self) -> f32;

    /// Cached keys of a layer, as they are `tokens` positions further to the start, computed on
    /// `stream`. Those in fewer bits are rounded once more.
    fn turned_back(
        &self,
        layer: usize,
        keys: &Array,
        tokens: usize,
        stream: &Stream,
    ) -> Result<Array, Exception>;
}

/// The results of the layers for the rows that need one.
#[derive(Debug, Default)]
pub(crate) struct LastRows {
    /// The logits of the batch's output rows, `[output rows, vocab]` in single precision, if
    /// there are any.
    pub(crate) logits: Option<Array>,
    /// The states before the output head of its scored rows and then of its hidden rows,
    /// `[rows, hidden]`, if there are any.
    pub(crate) states: Option<Array>,
}

impl LastRows {
    /// Splits the states before the output head of all rows that need a result, in the order of
    /// [`Batch::last_rows`], and computes logits where they are needed.
    pub(crate) fn new(
        decoder: &(impl Decoder + ?Sized),
        batch: &Batch,
        states: Array,
    ) -> Result<Self, Exception> {
        let (logit_rows, rows) = (batch.output_rows.len() as i32, states.dim(0));
        let width = states.dim(1);
        let part = |from, to| crate::device::ops::slice(&states, [from, 0], [to, width]);
        Ok(match logit_rows {
            0 => Self {
                logits: None,
                states: Some(states),
            },
            all if all == rows => Self {
                logits: Some(decoder.logits(&states)?),
                states: None,
            },
            _ => Self {
                logits: Some(decoder.logits(&part(0, logit_rows)?)?),
                states: Some(part(logit_rows, rows)?),
            },
        })
    }
}
