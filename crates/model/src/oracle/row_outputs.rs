//! The outputs of a span, collected row by row.

use super::hash::hidden_state;
use super::in_flight::SpanResult;
use super::vocabulary::Vocabulary;
use crate::sampling::logprobs_of;
use motet_protocol::{OutputKind, SpanOutput, TokenLogprobs};

/// The outputs of the rows so far.
#[derive(Debug)]
pub(super) struct RowOutputs {
    output_kind: OutputKind,
    rows: usize,
    /// The hashes of all rows, if a token is sampled from each.
    sampled: Vec<u64>,
    /// The hash of the last row.
    last: u64,
    /// All logits, or those of one row.
    logits: Vec<f32>,
    logprobs: Vec<TokenLogprobs>,
    hidden: Vec<f64>,
}

impl RowOutputs {
    pub(super) fn new(output_kind: OutputKind) -> Self {
        Self {
            output_kind,
            rows: 0,
            sampled: Vec::new(),
            last: 0,
            logits: Vec::new(),
            logprobs: Vec::new(),
            hidden: Vec::new(),
        }
    }

    /// Adds the next row, by its hash.
    pub(super) fn push(&mut self, row: u64, vocabulary: &Vocabulary) {
        match &self.output_kind {
            OutputKind::Nothing | OutputKind::Token(_) => {}
            OutputKind::Verify(_) => self.sampled.push(row),
            OutputKind::Logits => vocabulary.push_logits(row, &mut self.logits),
            OutputKind::PromptLogprobs(rows) => {
                let target = self.rows.checked_sub(rows.first);
                if let Some(target) = target.and_then(|index| rows.targets.get(index)) {
                    self.logits.clear();
                    vocabulary.push_logits(row, &mut self.logits);
                    let logprobs = logprobs_of(&self.logits, *target, rows.top);
                    self.logprobs
                        .push(logprobs.expect("a target is a token of the vocabulary"));
                }
            }
            OutputKind::HiddenSum(rows) => {
                if rows.contains(&self.rows) {
                    let state = hidden_state(row);
                    self.hidden.resize(state.len(), 0.0);
                    for (sum, number) in self.hidden.iter_mut().zip(state) {
                        *sum += number;
                    }
                }
            }
        }
        self.rows += 1;
        self.last = row;
    }

    /// The span's result, after its last row.
    pub(super) fn finish(self) -> SpanResult {
        let row = self.last;
        SpanResult::Known(match self.output_kind {
            OutputKind::Nothing => SpanOutput::Nothing,
            OutputKind::Token(_) => return SpanResult::ToSample(row, None),
            OutputKind::Verify(_) => return SpanResult::ToVerify(self.sampled),
            OutputKind::Logits => SpanOutput::Logits(self.logits),
            OutputKind::PromptLogprobs(rows) if rows.token.is_some() => {
                return SpanResult::ToSample(row, Some(self.logprobs));
            }
            OutputKind::PromptLogprobs(_) => SpanOutput::PromptLogprobs(self.logprobs, None),
            OutputKind::HiddenSum(_) => SpanOutput::HiddenSum(self.hidden),
        })
    }
}
