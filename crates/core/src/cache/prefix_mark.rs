//! Marks of prefixes, by which the cache knows that it has evicted one.

use motet_protocol::{TokenId, hash_step};

/// Tokens before the last one of a prefix that are hashed into its mark.
pub(super) const MARK_TOKENS: usize = 4;

/// A mark for a prefix of `prefix_tokens` tokens that ends in `last`. These are the first
/// token after the known ones and up to [`MARK_TOKENS`] tokens before it.
pub(super) fn prefix_mark(salt: u64, prefix_tokens: usize, last: &[TokenId]) -> u64 {
    let words = last.iter().map(|token| u64::from(*token));
    let words = std::iter::once(prefix_tokens as u64).chain(words);
    words.fold(salt, hash_step)
}
