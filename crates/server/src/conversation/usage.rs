//! Counts that dialects derive from a request's usage.

use motet::request::Usage;

/// Tokens of the prediction that did not come.
pub(crate) fn rejected_prediction_tokens(usage: &Usage) -> usize {
    // A part that comes twice is accepted twice.
    (usage.prediction_tokens).saturating_sub(usage.accepted_prediction_tokens)
}

/// Tokens of the prompt that were computed, and so written to the cache: all that it did not have.
pub(crate) fn written_tokens(usage: &Usage) -> usize {
    usage.prompt_tokens - usage.cached_tokens
}
