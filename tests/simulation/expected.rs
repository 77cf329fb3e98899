//! The output that a caller must get: the output of a reference run.

use motet::TokenId;
use motet::error::GenerateError;
use motet::model::oracle::OracleConfig;
use motet::request::{ContextLimit, FinishReason, Sampling};
use motet_model::oracle::ShiftRule;

/// The expected output of one stream.
pub(crate) struct ExpectedOutput {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) tokens: Vec<TokenId>,
    end: FinishReason,
    /// Tokens received so far.
    pub(crate) received: usize,
    pub(crate) has_deadline: bool,
    pub(crate) is_fork: bool,
    /// Whether its reader has let it wait.
    pub(crate) is_slow: bool,
}

impl ExpectedOutput {
    pub(crate) fn new(
        oracle: &OracleConfig,
        prompt: Vec<TokenId>,
        output_tokens_max: usize,
        sampling: Sampling,
        at_context_limit: ContextLimit,
    ) -> Self {
        let context_tokens = oracle.context_tokens_max;
        let mut tokens = match at_context_limit {
            ContextLimit::Stop => {
                let most = output_tokens_max.min(context_tokens - prompt.len());
                oracle.reference_tokens(&prompt, most, sampling)
            }
            ContextLimit::Shift { keep } => {
                let rule = ShiftRule {
                    context_tokens,
                    keep,
                };
                oracle.reference_tokens_with_shifts(&prompt, output_tokens_max, sampling, rule)
            }
        };
        let ends = |token: &TokenId| oracle.end_tokens.contains(token);
        let end = tokens.iter().position(ends);
        tokens.truncate(end.unwrap_or(tokens.len()));
        Self {
            prompt,
            tokens,
            end: match end {
                Some(_) => FinishReason::EndToken,
                None => FinishReason::Length,
            },
            received: 0,
            has_deadline: false,
            is_fork: false,
            is_slow: false,
        }
    }

    /// Checks that a received token is the next expected one.
    pub(crate) fn received(&mut self, token: TokenId) {
        let expected = self.tokens.get(self.received).copied();
        assert_eq!(
            Some(token),
            expected,
            "token {} of a prompt of {} tokens",
            self.received,
            self.prompt.len()
        );
        self.received += 1;
    }

    /// Checks a stream that has ended without an error.
    pub(crate) fn finished(&self, reason: FinishReason) {
        if reason == FinishReason::Deadline {
            assert!(self.has_deadline, "no deadline was set");
            return;
        }
        assert_eq!(reason, self.end, "after {} tokens", self.received);
        assert_eq!(self.received, self.tokens.len(), "an output is whole");
    }

    /// Whether a token is in the prompt, or among the sampled tokens up to the next.
    pub(crate) fn may_hold(&self, token: TokenId) -> bool {
        let sampled = &self.tokens[..self.tokens.len().min(self.received + 1)];
        self.prompt.contains(&token) || sampled.contains(&token)
    }

    /// The prompt and all tokens received so far.
    pub(crate) fn known(&self) -> Vec<TokenId> {
        [&self.prompt[..], &self.tokens[..self.received]].concat()
    }
}

/// The label of an error, by the kind of fault that may cause it.
pub(crate) fn label(error: &GenerateError) -> &'static str {
    match error {
        GenerateError::Device { .. } => "end: failed on the device",
        GenerateError::OutOfMemory => "end: out of memory",
        GenerateError::ForkSource(_)
        | GenerateError::ForkPastEnd { .. }
        | GenerateError::ForkFull { .. } => "end: nothing to fork",
        GenerateError::DeadlineMissed { .. } => "end: deadline missed",
        GenerateError::SlowReader { .. } => "end: read too slowly",
        GenerateError::Shutdown => "end: shut down",
        GenerateError::HandedOver { .. } => "end: handed over",
        GenerateError::Broken { .. } => "end: engine broken",
        _ => "end: otherwise",
    }
}
