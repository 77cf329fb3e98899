//! Pieces, ends and whole outputs.

use std::time::Duration;

use crate::TokenId;
use crate::cache::Miss;
use crate::model::sampling::TokenLogprobs;

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

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model drew one of its end tokens (which is not part of the output), or the
    /// output is all that its grammar allows.
    EndToken,
    /// The output is as long as it may be.
    Length,
    /// A stop string appeared.
    StopString,
    /// The model drew a stop token of the request, which is not part of the output.
    StopToken,
    /// The request's `finish_by` passed; what there is of the output is whole so far.
    Deadline,
    /// The caller left.
    Cancelled,
}

/// How a sequence ended, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
}

/// Tokens that a sequence used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose state was in the cache.
    pub cached_tokens: usize,
    /// Why no more of them were, where more had been computed, or was being computed.
    pub miss: Option<Miss>,
    /// Tokens that were taken out of the prompt, which was too long for the context, before
    /// `prompt_tokens` were counted.
    pub truncated_tokens: usize,
    /// Tokens, of the prompt or generated, that were forgotten when the context was full.
    pub shifted_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
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

/// Where a sequence stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePlace {
    /// Sequences that would start before it, as things stand; 0 is next.
    pub position: usize,
    /// How long until it starts, as things stand; none while nothing is known of how
    /// long sequences take.
    pub estimated_start: Option<Duration>,
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

impl FinishReason {
    /// All reasons, in the order of their declaration.
    pub(crate) const ALL: [Self; 6] = [
        Self::EndToken,
        Self::Length,
        Self::StopString,
        Self::StopToken,
        Self::Deadline,
        Self::Cancelled,
    ];

    /// Its name in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::EndToken => "end_token",
            Self::Length => "length",
            Self::StopString => "stop_string",
            Self::StopToken => "stop_token",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
        }
    }
}
