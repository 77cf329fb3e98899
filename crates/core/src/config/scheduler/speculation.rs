//! Drafts of the tokens that sequences may generate next.

use motet_protocol::FORCED_TOKENS_MAX;

use crate::config::ConfigError;

/// Speculative decoding: drafts of the tokens that sequences may generate next, found without a
/// model. Tokens, seeds and results are the same with it and without it. It can be switched off for
/// each request as well.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "speculative decoding")]
pub struct SpeculationConfig {
    /// Whether steps verify drafts, where they pay.
    pub enabled: bool,
    /// Upper bound on the draft tokens of a sequence in a step, at most
    /// [`DRAFT_TOKENS_MAX`](Self::DRAFT_TOKENS_MAX). The scheduler takes as many of them as pay.
    pub draft_tokens_max: usize,
    /// Bytes of host memory for finished answers, from which later answers of the same salt are
    /// drafted; about 20 for each token. 0 keeps none. A running sequence has an index beside, of up
    /// to 12 bytes for each token of its prompt, its output and its prediction.
    pub answer_bytes_max: usize,
    /// Upper bound on the tokens of a request's prediction. Each takes 4 bytes of host memory while
    /// its request is inside, and up to 12 more while it runs.
    pub prediction_tokens_max: usize,
}

impl SpeculationConfig {
    /// Largest `draft_tokens_max`. A step then gives a sequence no more tokens than a grammar may
    /// force.
    pub const DRAFT_TOKENS_MAX: usize = FORCED_TOKENS_MAX - 1;

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.draft_tokens_max > Self::DRAFT_TOKENS_MAX {
            return Err(ConfigError {
                field: "scheduler.speculation.draft_tokens_max",
                found: self.draft_tokens_max.to_string(),
                expected: format!("at most {}", Self::DRAFT_TOKENS_MAX).into(),
            });
        }
        Ok(())
    }
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            draft_tokens_max: 16,
            answer_bytes_max: 16 << 20,
            prediction_tokens_max: 1 << 16,
        }
    }
}
