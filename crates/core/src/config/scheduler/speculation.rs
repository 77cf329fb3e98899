//! Drafts of the tokens that sequences may generate next.

use motet_protocol::FORCED_TOKENS_MAX;

use crate::config::ConfigError;

/// Speculative decoding: drafts of the tokens that sequences may generate next, found without a
/// model, or by a draft model if there is one. Tokens, seeds and results are the same with it and
/// without it. It can be switched off for each request as well.
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
    /// Tokens of text whose state a draft model keeps on the device, if there is one; 0 uses none. A
    /// text may have half as many; longer ones are drafted without it. At most
    /// [`DRAFT_MODEL_TOKENS_MAX`](Self::DRAFT_MODEL_TOKENS_MAX).
    pub draft_model_tokens_max: usize,
}

impl SpeculationConfig {
    /// Largest `draft_tokens_max`. A step then gives a sequence no more tokens than a grammar may
    /// force.
    pub const DRAFT_TOKENS_MAX: usize = FORCED_TOKENS_MAX - 1;

    /// Largest `draft_model_tokens_max`.
    pub const DRAFT_MODEL_TOKENS_MAX: usize = 1 << 24;

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let bounds = [
            (
                "scheduler.speculation.draft_tokens_max",
                self.draft_tokens_max,
                Self::DRAFT_TOKENS_MAX,
            ),
            (
                "scheduler.speculation.draft_model_tokens_max",
                self.draft_model_tokens_max,
                Self::DRAFT_MODEL_TOKENS_MAX,
            ),
        ];
        for (field, found, most) in bounds {
            if found > most {
                return Err(ConfigError {
                    field,
                    found: found.to_string(),
                    expected: format!("at most {most}").into(),
                });
            }
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
            draft_model_tokens_max: 1 << 15,
        }
    }
}
