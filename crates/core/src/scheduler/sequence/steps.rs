//! A sequence's part in steps: what it could do, how it joins a step, and what comes back.

use super::failures::Failures;
use super::{Phase, Sequence, Slot};
use crate::scheduler::MaskGate;
use motet_protocol::TokenId;
use motet_protocol::{OutputKind, PlannedSpan, ReasoningTracker, SamplerStart, TokenSampling};

/// A sequence's part of a step, as it joins the step.
#[derive(Debug)]
pub(in crate::scheduler) struct JoinedStep {
    pub(in crate::scheduler) span: PlannedSpan,
    /// Whether the step samples a token of it.
    pub(in crate::scheduler) samples_token: bool,
    /// Draft tokens that the step verifies.
    pub(in crate::scheduler) draft_tokens: usize,
    /// Tokens for which its user was not charged before.
    pub(in crate::scheduler) new_tokens: usize,
}

impl Sequence {
    /// Returns the number of known tokens that are in no step so far.
    pub(in crate::scheduler) fn pending(&self) -> usize {
        let evaluated = self.slot().map_or(0, Slot::evaluated);
        self.history.known() - evaluated - self.shifted_out()
    }

    /// Returns the number of prompt tokens that are in no step so far, as far as known; 0 while
    /// they cannot be in one.
    pub(in crate::scheduler) fn prompt_tokens_left(&self) -> usize {
        let is_stalled = self.is_finished() || self.is_paused() || self.mask_gate == MaskGate::Shut;
        match &self.phase {
            Phase::Running(slot) if slot.is_preempting() || is_stalled => 0,
            Phase::Running(slot)
                if slot.in_flight_samples() == 0 && self.history.fresh().is_empty() =>
            {
                self.pending()
            }
            Phase::Starting { waits: false, .. } => self.uncached(0).0,
            Phase::Queued | Phase::Starting { .. } | Phase::Running(_) => 0,
        }
    }

    /// Whether another prompt with a slot may be computed before it: it has no fresh tokens.
    pub(in crate::scheduler) fn is_prefilling(&self) -> bool {
        self.history.fresh().is_empty()
    }

    /// Joins the step that is being planned with its next `tokens` tokens, and a draft of those
    /// after them if these are all. Adds a sampler that the device must start first, if any.
    pub(in crate::scheduler) fn join_step(
        &mut self,
        tokens: usize,
        draft: &[TokenId],
        sampler_starts: &mut Vec<SamplerStart>,
    ) -> JoinedStep {
        let pending = self.pending();
        let mut token_source = self.history.token_source(pending, tokens);
        // The token after these is not sampled if the end of its reasoning comes there.
        let is_last = pending <= tokens && self.reasoning_end().is_empty();
        let samples_token = is_last && self.submission.output_tokens_max > 0;
        let text = self.history.prompt().len() + self.history.generated().len();
        let sampling = self.submission.sampling;
        let slot = self.slot().expect("a candidate has a slot");
        let token_sampling = samples_token.then(|| TokenSampling {
            sampling,
            position: (text + slot.in_flight_samples()) as u64,
        });
        let evaluated = slot.evaluated()..slot.evaluated() + tokens;
        let mut output_kind = self.output_kind(&evaluated, token_sampling);
        if let (false, OutputKind::Token(first)) = (draft.is_empty(), &output_kind) {
            output_kind = OutputKind::Verify(*first);
            token_source.append(draft);
        }
        let spec = self.submission.sampling_spec.as_ref();
        let spec = spec.filter(|_| samples_token);
        let Phase::Running(slot) = &mut self.phase else {
            panic!("a candidate has a slot")
        };
        let has_sampler = slot.join_step(tokens, samples_token, spec.is_some());
        let draft_tokens = token_source.tokens() - tokens;
        if let Some(spec) = spec.filter(|_| !has_sampler) {
            sampler_starts.push(SamplerStart {
                slot: slot.id(),
                spec: spec.clone(),
                sampling,
                prompt: self.history.prompt().clone(),
                output: self.history.generated().to_vec(),
            });
        }
        let span = PlannedSpan {
            slot: slot.id(),
            token_source,
            output_kind,
        };
        let end = slot.evaluated() + slot.shifted_out();
        JoinedStep {
            span,
            samples_token,
            draft_tokens,
            new_tokens: self.charge(end, tokens),
        }
    }

    /// Records that its user pays for its history up to this token. Returns how many of the last
    /// `tokens` are new.
    fn charge(&mut self, end: usize, tokens: usize) -> usize {
        let new_tokens = end.saturating_sub(self.charged_tokens).min(tokens);
        self.charged_tokens = self.charged_tokens.max(end);
        new_tokens
    }

    /// Finishes its part of a step, of whose draft tokens the first `accepted` are right. Returns
    /// whether the tokens that the step sampled are void.
    pub(in crate::scheduler) fn finish_step(
        &mut self,
        tokens: usize,
        accepted: usize,
        samples_token: bool,
    ) -> bool {
        let slot = self.slot_mut().expect("a sequence in a step has a slot");
        slot.finish_step(tokens, accepted, samples_token)
    }

    /// Charges its user for draft tokens that were accepted with its last step. Returns how many
    /// are new.
    pub(in crate::scheduler) fn charge_accepted(&mut self, accepted: usize) -> usize {
        let slot = self.slot().expect("a sequence in a step has a slot");
        let end = slot.computed() + slot.shifted_out();
        self.charge(end, accepted)
    }

    /// Makes the samples of its steps in flight void, since tokens were appended without them.
    pub(in crate::scheduler) fn void_samples(&mut self) {
        if let Some(slot) = self.slot_mut() {
            slot.void_samples();
        }
    }

    /// Makes them void as well, and has the device get a sampler that knows the whole output.
    pub(in crate::scheduler) fn renew_sampler(&mut self) {
        let has_grammar = self.has_grammar();
        if let Some(slot) = self.slot_mut() {
            slot.void_samples();
            slot.renew_sampler(has_grammar);
        }
    }

    /// Returns the tokens that end its reasoning, if they come next.
    pub(in crate::scheduler) fn reasoning_end(&self) -> &[TokenId] {
        self.reasoning.as_ref().map_or(&[], ReasoningTracker::due)
    }

    /// Returns the number of its prompt's tokens that are computed, if its caller is to know.
    pub(in crate::scheduler) fn prefill_progress(&self) -> Option<usize> {
        let is_prefilling = self.history.generated().is_empty() && !self.is_finished();
        let is_reported = self.submission.report_prefill_progress && is_prefilling;
        let computed = self.slot().filter(|_| is_reported)?.computed();
        Some(computed.min(self.history.prompt().len()))
    }

    /// Adds a token to its history, sampled or appended.
    pub(in crate::scheduler) fn push(&mut self, token: TokenId) {
        self.failures = Failures::default();
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.push(token);
        }
        self.history.push(token);
    }

    /// Whether its output is as long as it may be.
    pub(in crate::scheduler) fn has_full_output(&self) -> bool {
        self.history.generated().len() == self.submission.output_tokens_max
    }

    /// Counts a token of its output. Returns whether its turn ends with it.
    pub(in crate::scheduler) fn count_token_of_turn(&mut self) -> bool {
        self.turn.count_token()
    }
}
