//! A step's spans, packed.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;

use super::in_flight::MlxInFlightStep;
use super::prompt_logprobs::Target;
use crate::device::ops::concatenate;
use crate::state::batch_rows::BatchRows;
use crate::state::groups::LayerGroups;
use crate::state::segment::MlxSegment;
use crate::state::tail::MlxTail;
use motet_model::{Model, Span, TokenSource};
use motet_protocol::OutputKind;
use motet_protocol::TokenId;

/// The rows of all spans with their tokens, and the rows that results are needed of.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) rows: BatchRows,
    /// Tokens of all rows. A row whose token was sampled by the previous step has its token on
    /// the device only.
    tokens: Vec<TokenId>,
    sampled_rows: Option<SampledRows>,
    /// Rows whose logits are needed, ascending.
    pub(crate) output_rows: Vec<u32>,
    /// Rows that give the log probability of a known token, ascending; none is an output row.
    pub(crate) scored_rows: Vec<u32>,
    /// Their tokens.
    pub(crate) targets: Vec<Target>,
    /// Rows whose hidden states are needed, ascending; none is an output row.
    pub(crate) hidden_rows: Vec<u32>,
}

/// Rows whose tokens the previous step samples.
#[derive(Debug)]
struct SampledRows {
    /// The tokens that it samples, `[samples]`.
    sampled: Array,
    /// Each row, with the index of its token in `sampled`.
    index_map: Vec<(usize, usize)>,
}

impl Batch {
    pub(crate) fn new<M>(groups: &LayerGroups, spans: &[Span<'_, M>]) -> Self
    where
        M: Model<Segment = MlxSegment, Tail = MlxTail, InFlightStep = MlxInFlightStep>,
    {
        let mut batch = Self {
            rows: BatchRows::new(groups, spans),
            tokens: Vec::new(),
            sampled_rows: None,
            output_rows: Vec::new(),
            scored_rows: Vec::new(),
            targets: Vec::new(),
            hidden_rows: Vec::new(),
        };
        for span in spans {
            batch.push(span.tokens, &span.output_kind);
        }
        batch
    }

    /// All rows that need a result of the last layer: output rows, then scored rows, then hidden
    /// rows.
    pub(crate) fn last_rows(&self) -> Vec<u32> {
        let rows = [&self.output_rows[..], &self.scored_rows, &self.hidden_rows];
        rows.concat()
    }

    /// The token of every row, `[rows]`.
    pub(crate) fn token_array(&self) -> Result<Array, Exception> {
        let rows = self.tokens.len();
        let known = Array::from_slice(&self.tokens, &[rows as i32]);
        let Some(SampledRows { sampled, index_map }) = &self.sampled_rows else {
            return Ok(known);
        };
        let mut indices: Vec<u32> = (0..rows as u32).collect();
        for (row, sampled_index) in index_map {
            indices[*row] = (rows + sampled_index) as u32;
        }
        let all = concatenate(vec![known, sampled.clone()], 0)?;
        take_axis(all, Array::from_slice(&indices, &[rows as i32]), 0)
    }

    fn push<M>(&mut self, tokens: TokenSource<'_, M>, output_kind: &OutputKind)
    where
        M: Model<InFlightStep = MlxInFlightStep>,
    {
        let rows = self.tokens.len()..self.tokens.len() + tokens.count();
        let first = rows.start as u32;
        match output_kind {
            OutputKind::Nothing => {}
            OutputKind::Token(_) => self.output_rows.push(rows.end as u32 - 1),
            OutputKind::Logits | OutputKind::Verify(_) => {
                self.output_rows.extend(first..rows.end as u32);
            }
            OutputKind::PromptLogprobs(scored) => {
                let first = first + scored.first as u32;
                let end = first + scored.targets.len() as u32;
                self.scored_rows.extend(first..end);
                let targets = scored.targets.iter();
                self.targets
                    .extend(targets.map(|token| (*token, scored.top)));
                if scored.token.is_some() {
                    self.output_rows.push(rows.end as u32 - 1);
                }
            }
            OutputKind::HiddenSum(hidden) => {
                let in_batch = first + hidden.start as u32..first + hidden.end as u32;
                self.hidden_rows.extend(in_batch);
            }
        }
        if let TokenSource::Sampled(in_flight, source_span, _) = tokens {
            self.tokens.push(0);
            let (sampled, sampled_index) = in_flight.token(source_span);
            let sampled_rows = self.sampled_rows.get_or_insert_with(|| SampledRows {
                sampled: sampled.clone(),
                index_map: Vec::new(),
            });
            sampled_rows.index_map.push((rows.start, sampled_index));
        }
        self.tokens.extend_from_slice(tokens.known());
    }
}
