//! Sampling on the table: inputs for each step's sampler, and the sampled tokens.

use std::sync::Arc;

use super::{Last, Table};
use motet_model::sampling::{SampleInputs, Sampler};
use motet_model::{Model, Tail};
use motet_protocol::TokenId;
use motet_protocol::{
    GrammarError, ModelError, PlannedSpan, SamplerStart, SpanOutput, TokenSampling,
};
use motet_sync::injected::{Bug, is_injected};
use smallvec::SmallVec;

/// A span's output that is known without the model's sample, or more than that sample.
pub(super) enum Decided {
    /// Its sampler has failed.
    Failed(GrammarError),
    /// The token is part of the output already: the grammar forced it, after the step before.
    Known,
    /// These tokens; the first is the one to be sampled. A draft is void.
    Forced(Arc<[TokenId]>),
    /// At most this many tokens of a draft are part of the output. The rows after them are sampled
    /// for nothing.
    Cut(usize),
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
            let draft = span.draft();
            let (sample_inputs, one) = match sampler {
                None => (Vec::new(), None),
                Some(sampler) => prepare(sampler, token_sampling, draft),
            };
            decided.extend(one.map(|one| (index, one)));
            let without = sample_inputs.len()..=draft.len();
            inputs.extend(sample_inputs);
            inputs.extend(without.map(|row| SampleInputs::plain(at_row(token_sampling, row))));
        }
        (inputs, decided)
    }

    /// Passes the sampled tokens to their slots, and puts in place what was decided without the
    /// model. Draft tokens that were not sampled are dropped from the outputs and the tails.
    pub(super) fn accept(
        &mut self,
        model: &mut M,
        work_number: u64,
        spans: &[PlannedSpan],
        span_outputs: &mut [SpanOutput],
        decided: Vec<(usize, Decided)>,
    ) -> Result<(), ModelError> {
        let mut decided = decided.into_iter().peekable();
        for (index, (span, span_output)) in spans.iter().zip(span_outputs).enumerate() {
            let decided = decided.next_if(|(at, _)| *at == index);
            let sampled = span_output.token();
            let mut draft = span.draft();
            if let Some((_, decided)) = decided {
                draft = &draft[..decided.draft_tokens(draft.len())];
                decided.replace(span_output);
            }
            let rejected = span.draft().len() - accept_draft(draft, span_output);
            // The slot may have been closed meanwhile.
            let (Some(token), Some(slot)) = (sampled, self.slots.get_mut(&span.slot)) else {
                continue;
            };
            if !span.draft().is_empty() {
                let kept = usize::from(rejected > 0 && is_injected(Bug::WrongDraftKept));
                let tokens = slot.tail.tokens() - rejected + kept;
                model.truncate(&mut slot.tail, tokens)?;
            }
            if let Last::InFlight {
                work_number: of,
                span,
            } = slot.last
                && (of, span) == (work_number, index)
            {
                slot.last = Last::Token(token);
            }
            if let Some(sampler) = &mut slot.sampler {
                let mut tokens: SmallVec<[TokenId; 4]> = span_output.tokens().collect();
                if rejected > 0 && is_injected(Bug::WrongDraftCounted) {
                    let all = span.draft();
                    tokens.extend_from_slice(&all[all.len() - rejected..]);
                }
                sampler.accept_all(&tokens);
            }
        }
        Ok(())
    }
}

/// Returns how the token of this row of a draft is sampled.
fn at_row(first: TokenSampling, row: usize) -> TokenSampling {
    if is_injected(Bug::DraftPositionKept) {
        first
    } else {
        first.later(row)
    }
}

/// Leaves those sampled tokens in an output that follow from the draft being right up to them.
/// Returns the number of draft tokens that are right.
fn accept_draft(draft: &[TokenId], span_output: &mut SpanOutput) -> usize {
    let SpanOutput::Verified(sampled) = span_output else {
        return 0;
    };
    assert!(
        sampled.len() > draft.len(),
        "a model samples a token for each row of a draft"
    );
    let pairs = draft.iter().zip(&*sampled);
    let accepted = pairs.take_while(|(draft, sampled)| **draft == sampled.token);
    let accepted = accepted.count();
    sampled.truncate(accepted + 1);
    accepted
}

impl Decided {
    /// Returns how many tokens of a draft of this many may be part of the output.
    fn draft_tokens(&self, drafted: usize) -> usize {
        match self {
            Self::Failed(_) | Self::Known | Self::Forced(_) => 0,
            Self::Cut(tokens) => drafted.min(*tokens),
        }
    }

    /// Puts the output in the place of the model's.
    fn replace(self, span_output: &mut SpanOutput) {
        match self {
            Self::Failed(error) => span_output.replace_token(SpanOutput::Failed(error)),
            Self::Known => span_output.replace_token(SpanOutput::Nothing),
            // A model that samples another token than the only one allowed is not trusted.
            Self::Forced(tokens) if span_output.token() == tokens.first().copied() => {
                span_output.replace_token(SpanOutput::Forced(tokens));
            }
            Self::Forced(_) | Self::Cut(_) => {}
        }
    }
}

/// Returns the inputs for a sampler's next token, and for the tokens after a draft, as far as any
/// are needed. Returns what is known of the output already, too.
fn prepare(
    sampler: &mut Sampler,
    token_sampling: TokenSampling,
    draft: &[TokenId],
) -> (Vec<SampleInputs>, Option<Decided>) {
    if sampler.has_token(token_sampling.position) {
        return (Vec::new(), Some(Decided::Known));
    }
    let inputs = if draft.is_empty() {
        let inputs = sampler.sample_inputs(token_sampling);
        inputs.map(|sample_inputs| vec![sample_inputs])
    } else {
        sampler.verify_inputs(token_sampling, draft)
    };
    match inputs {
        Ok(inputs) => {
            // A draft that is right gives as many tokens, and their rows are evaluated already.
            let forced = sampler.forced();
            let forced = forced.filter(|forced| forced.len() > inputs.len());
            let cut = (inputs.len() <= draft.len()).then(|| Decided::Cut(inputs.len() - 1));
            (inputs, forced.map(Decided::Forced).or(cut))
        }
        Err(error) => (Vec::new(), Some(Decided::Failed(error))),
    }
}
