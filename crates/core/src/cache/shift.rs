//! How many tokens a full context discards.
//!
//! The rule is that of llama.cpp and ollama. Half of the tokens that need not stay are
//! discarded at once, so that the cost of a shift is spread over many tokens.

use std::ops::Range;

use super::CacheError;

/// Returns how many tokens to discard after the first `keep` of a sequence of `tokens` tokens,
/// so that a context of `context_tokens` has room again. That is half of the tokens that need
/// not stay, and all excess tokens. 0 if that much room is left.
///
/// # Errors
///
/// [`CacheError::KeepTooLarge`] unless `keep < context_tokens`.
pub fn discard(context_tokens: usize, keep: usize, tokens: usize) -> Result<usize, CacheError> {
    if keep >= context_tokens {
        return Err(CacheError::KeepTooLarge {
            keep,
            context_tokens,
        });
    }
    let half = ((context_tokens - keep) / 2).max(1);
    Ok((half + tokens).saturating_sub(context_tokens))
}

/// Returns the range of tokens to remove from a prompt that is too long for its context. The
/// range is empty if the prompt leaves room for at least one more token. Otherwise it is as
/// long as a shift would discard.
///
/// # Errors
///
/// [`CacheError::KeepTooLarge`] unless `keep < context_tokens`.
pub fn truncation(
    context_tokens: usize,
    keep: usize,
    prompt_tokens: usize,
) -> Result<Range<usize>, CacheError> {
    let discard = discard(context_tokens, keep, prompt_tokens)?;
    if prompt_tokens < context_tokens {
        Ok(keep..keep)
    } else {
        Ok(keep..keep + discard)
    }
}
