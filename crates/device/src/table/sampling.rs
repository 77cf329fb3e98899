//! Sampling on the table: inputs for each step's sampler, and the sampled tokens.

use std::sync::Arc;

use super::{Last, Table};
use motet_model::Model;
use motet_model::sampling::{SampleInputs, Sampler};
use motet_protocol::TokenId;
use motet_protocol::{GrammarError, PlannedSpan, SamplerStart, SpanOutput, TokenSampling};

/// A span's output that is known without the model's sample, or more than that sample.
pub(super) enum Decided {
    /// Its sampler has failed.
    Failed(GrammarError),
    /// The token is part of the output already: the grammar forced it, after the step before.
    Known,
    /// These tokens; the first is the one to be sampled.
    Forced(Arc<[TokenId]>),
}

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

    /// Returns sample inputs for each span that outputs a token. Where more is known than these,
    /// that is returned too, with the span's index.
    pub(super) fn inputs(
        &mut self,
        spans: &[PlannedSpan],
    ) -> (Vec<SampleInputs>, Vec<(usize, Decided)>) {
        let mut decided = Vec::new();
        let mut inputs = Vec::with_capacity(spans.len());
        for (index, span) in spans.iter().enumerate() {
            let Some(token_sampling) = span.output_kind.token_sampling() else {
                continue;
            };
            let slot = self.slots.get_mut(&span.slot);
            let sampler = slot.and_then(|slot| slot.sampler.as_mut());
            let (sample_inputs, one) = match sampler {
                None => (None, None),
                Some(sampler) => prepare(sampler, token_sampling),
            };
            decided.extend(one.map(|one| (index, one)));
            inputs.push(sample_inputs.unwrap_or_else(|| SampleInputs::plain(token_sampling)));
        }
        (inputs, decided)
    }

    /// Passes the sampled tokens to their slots, and puts in place what was decided without the
    /// model.
    pub(super) fn accept(
        &mut self,
        work_number: u64,
        spans: &[PlannedSpan],
        span_outputs: &mut [SpanOutput],
        decided: Vec<(usize, Decided)>,
    ) {
        let mut decided = decided.into_iter().peekable();
        for (index, (span, span_output)) in spans.iter().zip(span_outputs).enumerate() {
            let decided = decided.next_if(|(at, _)| *at == index);
            let sampled = span_output.token();
            if let Some((_, decided)) = decided {
                decided.replace(span_output);
            }
            // The slot may have been closed meanwhile.
            let (Some(token), Some(slot)) = (sampled, self.slots.get_mut(&span.slot)) else {
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
                sampler.accept_all(span_output.tokens());
            }
        }
    }
}

impl Decided {
    /// Puts the output in the place of the model's.
    fn replace(self, span_output: &mut SpanOutput) {
        match self {
            Self::Failed(error) => span_output.replace_token(SpanOutput::Failed(error)),
            Self::Known => span_output.replace_token(SpanOutput::Nothing),
            // A model that samples another token than the only one allowed is not trusted.
            Self::Forced(tokens) if span_output.token() == tokens.first().copied() => {
                span_output.replace_token(SpanOutput::Forced(tokens));
            }
            Self::Forced(_) => {}
        }
    }
}

/// Returns the inputs for a sampler's next token, and what is known of its output already.
fn prepare(
    sampler: &mut Sampler,
    token_sampling: TokenSampling,
) -> (Option<SampleInputs>, Option<Decided>) {
    if sampler.has_token(token_sampling.position) {
        return (None, Some(Decided::Known));
    }
    match sampler.sample_inputs(token_sampling) {
        Ok(sample_inputs) => (Some(sample_inputs), sampler.forced().map(Decided::Forced)),
        Err(error) => (None, Some(Decided::Failed(error))),
    }
}
