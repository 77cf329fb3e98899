//! The parts of a step that its blocks share.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::composed;
use crate::device::ops::{Ops, concatenate};
use crate::layers::attention::{Attentions, Plans};
use crate::state::batch_rows::BatchRows;
use crate::state::groups::Arrays;
use crate::state::tail::TailWrites;

/// The parts of a step that its mixers share.
pub(crate) struct MixerStep<'a> {
    pub(crate) batch: &'a BatchRows,
    pub(crate) attentions: &'a Attentions,
    pub(crate) plans: &'a Plans<'a>,
    pub(crate) ops: &'a Ops,
    pub(crate) tails: &'a mut TailWrites,
}

/// Updates the layer's recurrent state, one span after another. `of_span` returns the span's
/// outputs and next states, given its part of `rows` and its states.
pub(super) fn update_each(
    tails: &mut TailWrites,
    layer: usize,
    rows: &Array,
    mut of_span: impl FnMut(&Array, &[Array]) -> Result<(Array, Arrays), Exception>,
) -> Result<Array, Exception> {
    tails.update(layer, rows, |spans, states| {
        let (mut outputs, mut next) = (Vec::new(), Vec::new());
        for (span, states) in spans.iter().zip(states) {
            let rows = composed::rows(rows, span.rows.start, span.rows.end)?;
            let (output, states) = of_span(&rows, states)?;
            outputs.push(output);
            next.push(states);
        }
        Ok((concatenate(outputs, 0)?, next))
    })
}
