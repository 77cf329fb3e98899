//! How much a full context gives up, in numbers.
//!
//! The rule is llama.cpp's and ollama's: half of what need not be kept goes at once,
//! so that the cost of a shift is spread over many tokens.

use std::ops::Range;

use super::CacheError;

/// Tokens to discard after the first `keep` of a sequence of `tokens` tokens, so that
/// a context of `context_tokens` has room again: half of what is not kept, and all
/// that is too much already. 0 when that much room is left.
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

/// The tokens of a prompt that go when it is too long for its context: none while it
/// leaves room for at least one token more, else as many as a shift would discard.
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
    match prompt_tokens < context_tokens {
        true => Ok(keep..keep),
        false => Ok(keep..keep + discard),
    }
}
