//! Tokens join a sequence's output: sampled ones, and ones that are appended without a sample.
//!
//! A grammar that allows one continuation only forces its tokens. The device reports them with the
//! sampled token before which they were known. The end of a sequence's reasoning is appended when
//! its budget is used up. Appended tokens are evaluated together, in the sequence's next step.
//! Samples of steps in flight are void then: they are of positions that have their tokens.
//!
//! A step that verifies a draft gives as many tokens as are right, and one more.

use std::sync::Arc;

use super::sequence::SequenceKey;
use super::{Effect, SchedulerCore};
use motet_protocol::TokenId;
use motet_protocol::{FinishReason, SampledToken, TokenLogprobs};

impl SchedulerCore {
    /// Adds a sampled token to a sequence, and the end of its reasoning if that comes next.
    pub(super) fn on_token_sampled(
        &mut self,
        key: SequenceKey,
        token: TokenId,
        logprobs: Option<Arc<TokenLogprobs>>,
        effects: &mut Vec<Effect>,
    ) {
        if self.add_token(key, token, logprobs, effects) {
            self.end_reasoning(key, effects);
        }
    }

    /// Adds a sampled token, and the tokens that its grammar forces after it. The end of its
    /// reasoning may come before the rest of them.
    pub(super) fn on_tokens_forced(
        &mut self,
        key: SequenceKey,
        tokens: &[TokenId],
        effects: &mut Vec<Effect>,
    ) {
        for token in tokens {
            if !self.add_token(key, *token, None, effects) || self.end_reasoning(key, effects) {
                break;
            }
        }
        if let Some(sequence) = self.sequences.get_mut(key) {
            sequence.void_samples();
        }
    }

    /// Adds sampled tokens of which all but the last are its draft. None of these ends the sequence
    /// or its reasoning: a draft is cut before such a token.
    pub(super) fn on_tokens_verified(
        &mut self,
        key: SequenceKey,
        tokens: Vec<SampledToken>,
        effects: &mut Vec<Effect>,
    ) {
        let mut goes_on = false;
        for sampled in tokens {
            // Its history must hold all that its slot does, also if its caller has left meanwhile.
            goes_on = self.add_token(key, sampled.token, sampled.logprobs, effects);
        }
        if goes_on {
            self.end_reasoning(key, effects);
        }
    }

    /// Appends the tokens that end a sequence's reasoning, if they come next. Returns whether
    /// they do.
    pub(super) fn end_reasoning(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) -> bool {
        let mark = self.sequences[key].reasoning_end().to_vec();
        for token in &mark {
            if !self.add_token(key, *token, None, effects) {
                break;
            }
        }
        if !mark.is_empty()
            && let Some(sequence) = self.sequences.get_mut(key)
        {
            sequence.renew_sampler();
        }
        !mark.is_empty()
    }

    /// Adds a token to a sequence, and ends the sequence where the token does. Returns whether
    /// more tokens may follow.
    fn add_token(
        &mut self,
        key: SequenceKey,
        token: TokenId,
        logprobs: Option<Arc<TokenLogprobs>>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let sequence = &mut self.sequences[key];
        sequence.push(token);
        if sequence.is_finished() {
            // Sampled before its end was known: part of its history, but not of its output.
            return false;
        }
        if sequence.submission().end_tokens.contains(&token) {
            let reason = if self.spec.end_tokens.contains(&token) {
                FinishReason::EndToken
            } else {
                FinishReason::StopToken
            };
            self.finish(key, reason, effects);
            return false;
        }
        if self.drafting.push(sequence, token) {
            effects.push(Effect::Predicted(sequence.id()));
        }
        effects.push(Effect::Token(sequence.id(), token, logprobs));
        if sequence.count_token_of_turn() {
            self.waiting.end_turn(sequence);
        }
        if sequence.has_full_output() {
            self.finish(key, FinishReason::Length, effects);
            return false;
        }
        true
    }
}
