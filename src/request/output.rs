//! Pieces, ends and whole outputs.

use motet_core::TokenId;
use motet_core::protocol::{Finish, TokenLogprobs};

/// A token, and what has become certain with it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Piece {
    /// The token; none for text that was held back until the end, and for the progress of a
    /// prompt.
    pub token: Option<TokenId>,
    /// Text, often empty: a token may end within a character, or within what could
    /// become a stop string. Always empty on an engine without a tokenizer.
    pub text: String,
    /// Log probabilities, where the request wants them: one each of the tokens whose
    /// text has become certain, in the order of the tokens. Those of text that is held
    /// back come with it; those of text that is dropped for a stop string, never.
    pub logprobs: Vec<TokenLogprobs>,
    /// How far the prompt is computed, where the request
    /// [wants to know](crate::Request::tells_prefill) and there is no token yet.
    pub prefill: Option<Prefill>,
}

/// How far a prompt is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prefill {
    /// Tokens whose state is there: computed, or from the cache.
    pub computed_tokens: usize,
    /// Of these, tokens whose state was in the cache.
    pub cached_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
}

/// A whole output, for callers who do not stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The tokens generated.
    pub tokens: Vec<TokenId>,
    /// Their text; empty on an engine without a tokenizer.
    pub text: String,
    /// Log probabilities of the first tokens, one each, where the request wants them:
    /// of all tokens but those whose text a stop string took.
    pub logprobs: Vec<TokenLogprobs>,
    /// How it ended.
    pub finish: Finish,
}

impl Completion {
    /// The mean log probability of its tokens; none if none is known.
    #[must_use]
    pub fn mean_logprob(&self) -> Option<f64> {
        let logprobs = self.logprobs.iter().map(|token| f64::from(token.logprob));
        match self.logprobs.len() {
            0 => None,
            tokens => Some(logprobs.sum::<f64>() / tokens as f64),
        }
    }
}
