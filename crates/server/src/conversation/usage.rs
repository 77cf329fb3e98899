//! Counts that dialects derive from a request's usage.

use motet::request::Usage;

/// Tokens of the prompt that were computed, and so written to the cache: all that it did not have.
pub(crate) fn written_tokens(usage: &Usage) -> usize {
    usage.prompt_tokens - usage.cached_tokens
}
