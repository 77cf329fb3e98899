//! What a caller must be told: what it is told when it has the device for itself.

use motet::TokenId;
use motet::error::GenerateError;
use motet::model::oracle::{OracleConfig, ShiftRule};
use motet::model::sampling::Sampling;
use motet::request::{ContextLimit, FinishReason};

/// What one stream must be.
pub(crate) struct ExpectedOutput {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) tokens: Vec<TokenId>,
    end: FinishReason,
    /// Tokens that have come.
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
        at_limit: ContextLimit,
    ) -> Self {
        let context_tokens = oracle.context_tokens_max;
        let mut tokens = match at_limit {
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

    /// A token has come: it is the next, and the right one.
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

    /// The stream has ended well.
    pub(crate) fn finished(&self, reason: FinishReason) {
        if reason == FinishReason::Deadline {
            assert!(self.has_deadline, "no deadline was set");
            return;
        }
        assert_eq!(reason, self.end, "after {} tokens", self.received);
        assert_eq!(self.received, self.tokens.len(), "an output is whole");
    }

    /// Whether a token is in the prompt, or drawn up to the next.
    pub(crate) fn may_hold(&self, token: TokenId) -> bool {
        let sampled = &self.tokens[..self.tokens.len().min(self.received + 1)];
        self.prompt.contains(&token) || sampled.contains(&token)
    }

    /// What has come so far, prompt included.
    pub(crate) fn known(&self) -> Vec<TokenId> {
        [&self.prompt[..], &self.tokens[..self.received]].concat()
    }
}

/// Whether a fault of this kind may have ended it.
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
        GenerateError::Broken { .. } => "end: engine broken",
        _ => "end: otherwise",
    }
}
