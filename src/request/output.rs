//! Pieces and whole outputs.

use motet_core::TokenId;
use motet_core::protocol::{Finish, TokenLogprobs};

/// An item of a stream: a token with the text that has become certain with it, or the finish.
///
/// The last item of a complete output has a [`finish`](Piece::finish), and nothing else. Stream
/// combinators therefore pass it on like any other item.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Piece {
    /// The token; `None` for text that was held back until the end, for the progress of a
    /// prompt, and for the finish.
    pub token: Option<TokenId>,
    /// Text, often empty: a token may end within a character, or within a possible stop string.
    /// Always empty on an engine without a tokenizer.
    pub text: String,
    /// Log probabilities, where the request asks for them: one for each token whose text has
    /// become certain, in the order of the tokens. Log probabilities of held-back text come
    /// with that text. Text that a stop string removes has none.
    pub logprobs: Vec<TokenLogprobs>,
    /// How far the prompt is computed, where the request [asks for
    /// it](crate::Request::report_prefill_progress) and there is no token yet.
    pub prefill: Option<Prefill>,
    /// How the sequence finished, and the tokens that it used. It is set in the last item only.
    #[doc(alias = "finish_reason")]
    #[doc(alias = "usage")]
    pub finish: Option<Finish>,
}

/// How far a prompt is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prefill {
    /// Tokens with state on the device: computed, or from the cache.
    pub computed_tokens: usize,
    /// The part of them that came from the cache.
    pub cached_tokens: usize,
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
}

/// A whole output, for callers that do not stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The generated tokens.
    pub tokens: Vec<TokenId>,
    /// Their text; empty on an engine without a tokenizer.
    pub text: String,
    /// Log probabilities, where the request asks for them: one for each token, except those
    /// whose text a stop string removed.
    pub logprobs: Vec<TokenLogprobs>,
    /// How it ended.
    pub finish: Finish,
}

impl Completion {
    /// Returns the mean log probability of the tokens; `None` if none is known.
    #[must_use]
    pub fn mean_logprob(&self) -> Option<f64> {
        let logprobs = self.logprobs.iter().map(|token| f64::from(token.logprob));
        match self.logprobs.len() {
            0 => None,
            tokens => Some(logprobs.sum::<f64>() / tokens as f64),
        }
    }
}
