//! Builds the graph of a step.

use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::ops::indexing::take_axis;

use super::mlx_model::MlxModel;
use crate::device::bridge;
use crate::error::MlxError;
use crate::state::tail::{Appended, MlxTail, TailWrites};
use crate::step::batch::Batch;
use crate::step::decoder::LastRows;
use crate::step::forward;
use crate::step::in_flight::{MlxInFlightStep, StepResults};
use crate::step::prompt_logprobs::PromptLogprobs;
use motet_model::Span;
use motet_protocol::{ModelError, OutputKind};

impl MlxModel {
    /// Packs the spans of a step.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] for a span without tokens or with an unknown one.
    pub(super) fn batch(&self, spans: &[Span<'_, Self>]) -> Result<Batch, ModelError> {
        let vocab = self.spec.vocab_size;
        for (index, span) in spans.iter().enumerate() {
            if span.tokens.count() == 0 {
                let message = format!("span {index} has no tokens; expected at least one");
                return Err(ModelError::Device(message));
            }
            let mut known = span.tokens.known().iter();
            if known.any(|token| *token as usize >= vocab) {
                let message = format!("span {index} has a token that is not less than {vocab}");
                return Err(ModelError::Device(message));
            }
        }
        Ok(Batch::new(&self.groups, spans))
    }

    /// Builds the step's graph. The device starts on it at once, with one exception: a step
    /// composed of MLX's operations needs exclusive use of the buffers of another step in
    /// flight. It then starts when it is sampled, after that step has finished.
    pub(super) fn build_step(
        &self,
        spans: &mut [Span<'_, Self>],
        batch: &Batch,
    ) -> Result<MlxInFlightStep, MlxError> {
        let eager = self.backend.in_place || Rc::strong_count(&self.steps_in_flight) == 1;
        let output_kinds: Vec<OutputKind> =
            spans.iter().map(|span| span.output_kind.clone()).collect();
        let failures = bridge::failures(&self.backend.stream)?;
        let appended = spans.iter_mut().map(|span| Appended {
            tokens: span.tokens.count(),
            // A draft of no tokens is none: none is dropped.
            verifies: matches!(span.output_kind, OutputKind::Verify(_)) && span.tokens.count() > 1,
            tail: &mut *span.tail,
        });
        let mut tails = TailWrites::take_buffers(&self.groups, appended, self.pooled_memory())?;
        let last_rows = if spans.is_empty() {
            LastRows::default()
        } else {
            self.decoder.forward(batch, &mut tails, eager)?
        };
        let pending = tails.commit(spans.iter_mut().map(|span| &mut *span.tail));
        let results = self.results(batch, last_rows, eager)?;
        let steps_in_flight = Rc::clone(&self.steps_in_flight);
        let mut in_flight = MlxInFlightStep::new(
            &batch.rows,
            &output_kinds,
            results,
            pending,
            failures,
            steps_in_flight,
        );
        if eager {
            in_flight.start()?;
        }
        Ok(in_flight)
    }

    /// Drops the last tokens of a tail, and computes the recurrent state of the draft tokens that
    /// stay. Does not wait for it.
    pub(super) fn drop_drafts(&self, tail: &mut MlxTail, tokens: usize) -> Result<(), MlxError> {
        Ok(tail.drop_drafts(tokens, |layer, rows, tails| {
            self.decoder.replay(layer, rows, tails)
        })?)
    }

    /// Builds the results of a step's last rows, but for the sampled tokens.
    fn results(
        &self,
        batch: &Batch,
        last_rows: LastRows,
        eager: bool,
    ) -> Result<StepResults, MlxError> {
        let mut results = StepResults {
            logits: last_rows.logits,
            state_scale: self.decoder.state_scale(),
            ..StepResults::default()
        };
        let Some(states) = last_rows.states else {
            return Ok(results);
        };
        if !batch.targets.is_empty() {
            let kernels = Some(&self.backend.stream).filter(|_| self.backend.has_kernels);
            let is_alone = Rc::strong_count(&self.steps_in_flight) == 1;
            results.prompt_logprobs = Some(PromptLogprobs::build(
                |rows| self.decoder.logits(rows),
                &states,
                &batch.targets,
                kernels,
                (eager && is_alone).then_some(forward::QUEUED_BYTES_MAX),
            )?);
        }
        if !batch.hidden_rows.is_empty() {
            let first = batch.scored_rows.len() as u32;
            let rows: Vec<u32> = (first..first + batch.hidden_rows.len() as u32).collect();
            let rows = Array::from_slice(&rows, &[rows.len() as i32]);
            let hidden = take_axis(states, rows, 0)?.as_type::<f32>()?;
            results.hidden = Some(hidden);
        }
        Ok(results)
    }
}
