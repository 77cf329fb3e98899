//! Pieces and whole outputs.

use motet_protocol::TokenId;
use motet_protocol::{Finish, TokenLogprobs, Usage};

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
    /// Whether text of the tokens so far is held back. Where a stream goes on elsewhere, as after
    /// [`HandedOver`](motet_protocol::GenerateError::HandedOver), its text has no seam if it goes on
    /// after the last token without such text: the text and the stop strings of later tokens begin
    /// anew there.
    pub has_held_text: bool,
    /// Log probabilities, where the request asks for them: one for each token whose text has
    /// become certain, in the order of the tokens. Log probabilities of held-back text come
    /// with that text. Text that a stop string removes has none.
    pub logprobs: Vec<TokenLogprobs>,
    /// Log probabilities of the prompt's tokens, where the request [asks for
    /// them](crate::Request::prompt_logprobs): one for each token from
    /// [`prompt_logprobs_from`](crate::Request::prompt_logprobs_from) on. The piece has nothing
    /// else.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// The prompt's embedding, where the request [asks for it](crate::Request::embedding). The
    /// piece has nothing else.
    pub embedding: Option<Vec<f32>>,
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
    /// Log probabilities of the prompt's tokens, where the request asks for them.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// The prompt's embedding, where the request asks for it.
    pub embedding: Option<Vec<f32>>,
    /// How it ended.
    pub finish: Finish,
}

/// The mean log probability of an output's tokens, without the tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanLogprob {
    sum: f64,
    tokens: usize,
}

/// Log probabilities of given tokens: the result of [`Engine::score`](crate::Engine::score).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Score {
    /// Log probabilities, one for each scored token: see
    /// [`prompt_logprobs_from`](crate::Request::prompt_logprobs_from).
    pub logprobs: Vec<TokenLogprobs>,
    /// The tokens that were used.
    pub usage: Usage,
}

/// A prompt's embedding: the result of [`Engine::embed`](crate::Engine::embed).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EmbeddingVector {
    /// The vector.
    pub numbers: Vec<f32>,
    /// The tokens that were used.
    pub usage: Usage,
}

impl Score {
    pub(crate) fn new(completion: Completion) -> Self {
        Self {
            logprobs: completion.prompt_logprobs,
            usage: completion.finish.usage,
        }
    }

    /// Returns the log probability of all tokens together.
    #[must_use]
    pub fn sum(&self) -> f64 {
        let logprobs = self.logprobs.iter();
        logprobs.map(|token| f64::from(token.logprob)).sum()
    }
}

impl EmbeddingVector {
    pub(crate) fn new(numbers: Vec<f32>, usage: Usage) -> Self {
        Self { numbers, usage }
    }
}

impl Completion {
    /// Returns the mean log probability of the tokens; `None` if none is known.
    #[must_use]
    pub fn mean_logprob(&self) -> Option<f64> {
        let mut mean = MeanLogprob::default();
        for token in &self.logprobs {
            mean.add(token.logprob);
        }
        mean.get()
    }
}

impl MeanLogprob {
    /// Adds the log probability of the next token.
    pub fn add(&mut self, logprob: f32) {
        self.sum += f64::from(logprob);
        self.tokens += 1;
    }

    /// Returns the mean; `None` if there is no token.
    #[must_use]
    pub fn get(&self) -> Option<f64> {
        match self.tokens {
            0 => None,
            tokens => Some(self.sum / tokens as f64),
        }
    }
}
