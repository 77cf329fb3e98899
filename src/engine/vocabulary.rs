//! The tokens that an engine's model and its tokenizer know together.
//!
//! Models are often padded: they have rows of logits for ids that their tokenizer does not have, at
//! the end of the vocabulary or in its middle. Such tokens have no text. They are not accepted in a
//! request, not sampled, and not listed among the likeliest tokens. Each side also names end tokens
//! that the other does not know.

use std::sync::Arc;

use crate::optional::TextCodec;
use motet_protocol::TokenId;
use motet_protocol::{ModelSpec, TokenMask};

/// Restricts the model's vocabulary to the tokenizer's, and unites their end tokens, the
/// tokenizer's first. Returns the tokens that both know, if the model knows more.
pub(super) fn join(spec: &mut ModelSpec, text: &TextCodec) -> Option<Arc<TokenMask>> {
    let model_tokens = spec.vocab_size;
    let tokenizer = text.tokenizer();
    spec.vocab_size = model_tokens.min(tokenizer.vocab_size());
    let mut missing = tokenizer.missing_tokens().to_vec();
    missing.retain(|token| (*token as usize) < spec.vocab_size);
    let own = std::mem::take(&mut spec.end_tokens);
    let is_known = |token: &TokenId| {
        (*token as usize) < spec.vocab_size && missing.binary_search(token).is_err()
    };
    let all = text.end_tokens().iter().copied().chain(own);
    for token in all.filter(is_known) {
        if !spec.end_tokens.contains(&token) {
            spec.end_tokens.push(token);
        }
    }
    if spec.end_tokens.is_empty() {
        tracing::warn!(
            "no token ends an answer of {}: neither its files nor its chat template name one; \
             each output goes on to its `output_tokens_max`",
            spec.name
        );
    }
    if missing.is_empty() && model_tokens == spec.vocab_size {
        return None;
    }
    let all = 0..spec.vocab_size as TokenId;
    let known: Vec<TokenId> = all
        .filter(|token| missing.binary_search(token).is_err())
        .collect();
    Some(Arc::new(TokenMask::of(&known, spec.vocab_size)))
}
