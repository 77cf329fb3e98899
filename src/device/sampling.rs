//! Sampling on the table: inputs for each step's sampler, and the sampled tokens.

use super::table::{Last, Table};
use motet_core::protocol::{GrammarError, PlannedSpan, SamplerStart, SpanOutput};
use motet_model::Model;
use motet_model::sampling::{SampleInputs, Sampler};

impl<M: Model> Table<M> {
    pub(super) fn start(&mut self, sampler_starts: Vec<SamplerStart>) {
        for start in sampler_starts {
            // A slot that is absent was lost with the step before.
            if let Some(slot) = self.slots.get_mut(&start.slot) {
                let SamplerStart {
                    spec,
                    sampling,
                    prompt,
                    output,
                    ..
                } = start;
                slot.sampler = Some(Sampler::new(spec, sampling, &prompt, &output));
            }
        }
    }

    /// Returns sample inputs for each span that outputs a token. Where a sampler failed, its
    /// inputs are plain, and the span's index and the error are returned too.
    pub(super) fn inputs(
        &mut self,
        spans: &[PlannedSpan],
    ) -> (Vec<SampleInputs>, Vec<(usize, GrammarError)>) {
        let mut failed = Vec::new();
        let mut inputs = Vec::with_capacity(spans.len());
        for (index, span) in spans.iter().enumerate() {
            let Some(token_sampling) = span.output_kind.token_sampling() else {
                continue;
            };
            let slot = self.slots.get_mut(&span.slot);
            let sampler = slot.and_then(|slot| slot.sampler.as_mut());
            let sample_inputs = sampler.map(|sampler| sampler.sample_inputs(token_sampling));
            inputs.push(match sample_inputs {
                Some(Ok(sample_inputs)) => sample_inputs,
                None => SampleInputs::plain(token_sampling),
                Some(Err(error)) => {
                    failed.push((index, error));
                    SampleInputs::plain(token_sampling)
                }
            });
        }
        (inputs, failed)
    }

    /// Passes the sampled tokens to their slots.
    pub(super) fn accept(
        &mut self,
        work_number: u64,
        spans: &[PlannedSpan],
        span_outputs: &[SpanOutput],
    ) {
        for (index, (span, span_output)) in spans.iter().zip(span_outputs).enumerate() {
            // The slot may have been closed meanwhile.
            let (Some(token), Some(slot)) = (span_output.token(), self.slots.get_mut(&span.slot))
            else {
                continue;
            };
            if let Last::InFlight {
                work_number: of,
                span,
            } = slot.last
                && (of, span) == (work_number, index)
            {
                slot.last = Last::Token(token);
            }
            if let Some(sampler) = &mut slot.sampler {
                sampler.accept(token);
            }
        }
    }
}
