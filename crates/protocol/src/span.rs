//! Output kinds of spans, and span outputs.

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::{GrammarError, TokenLogprobs, TokenSampling};
use crate::TokenId;

/// The output that a step must produce for a span.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputKind {
    /// No output: a prefill chunk before the prompt's last.
    Nothing,
    /// One token sampled from the logits of the last row. These parameters are known when the
    /// step is submitted; the others come with its `SampleInputs`.
    Token(TokenSampling),
    /// One token sampled from each row of a span that verifies a draft: the first row with these
    /// parameters, each other with those of the next token, as if the draft up to its row were the
    /// output. Only models with [`ModelSpec::draft_tokens_max`](super::ModelSpec::draft_tokens_max)
    /// are asked for it.
    Verify(TokenSampling),
    /// The logits of every row, on the host. For evaluation and tests; costs
    /// `rows * vocabulary * 4` bytes.
    Logits,
    /// Log probabilities of tokens that the host knows, and a token where these rows ask for one.
    PromptLogprobs(LogprobRows),
    /// The sum of the hidden states of these rows, which are not empty: the residual stream
    /// after the final norm. [`ModelSpec::hidden_size`](super::ModelSpec::hidden_size) numbers.
    HiddenSum(Range<usize>),
}

/// Rows of a span with the tokens that follow them.
#[derive(Clone, Debug, PartialEq)]
pub struct LogprobRows {
    /// Index of the first row in the span.
    pub first: usize,
    /// The token whose log probability each row gives, for the rows from `first` on; at least
    /// one.
    pub targets: Arc<[TokenId]>,
    /// Number of most likely tokens that each row gives besides.
    pub top: usize,
    /// As for [`OutputKind::Token`]: set if a token is sampled from the span's last row. That
    /// row has no target.
    pub token: Option<TokenSampling>,
}

/// The output of one span.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanOutput {
    /// No output was requested.
    Nothing,
    /// The sampled token.
    Token(TokenId),
    /// The sampled token, with log probabilities.
    Scored(TokenId, Arc<TokenLogprobs>),
    /// The sampled token and the tokens after it that its constraint forces: at least two. No
    /// model returns this: the device's table does. The tokens after the first are not evaluated
    /// yet. A step in flight samples none of them again; its output for the slot is
    /// [`Nothing`](Self::Nothing).
    Forced(Arc<[TokenId]>),
    /// The tokens of a span that verifies a draft. A model returns one for each row. The device's
    /// table leaves those that are part of the output: each draft token that is the token sampled
    /// before it, and the one that is sampled after the last of these.
    Verified(Vec<SampledToken>),
    /// Logits, row-major `[span tokens, vocabulary]`.
    Logits(Vec<f32>),
    /// Log probabilities of the targets, and the output of the sampled token where one was asked
    /// for.
    PromptLogprobs(Vec<TokenLogprobs>, Option<Box<SpanOutput>>),
    /// The sum of hidden states, in double precision.
    HiddenSum(Vec<f64>),
    /// The token could not be sampled, and why. The rest of the step succeeded. No model
    /// returns this: the device's table, which builds the sample inputs, does.
    Failed(GrammarError),
}

/// A token that was sampled for a row of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub token: TokenId,
    /// Its log probabilities, if the request asks for them.
    pub logprobs: Option<Arc<TokenLogprobs>>,
}

impl SpanOutput {
    /// Returns the tokens that it adds to the output.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        let output = match self {
            SpanOutput::PromptLogprobs(_, Some(output)) => output,
            output => output,
        };
        let (tokens, verified): (&[TokenId], &[SampledToken]) = match output {
            SpanOutput::Token(token) | SpanOutput::Scored(token, _) => {
                (slice::from_ref(token), &[])
            }
            SpanOutput::Forced(tokens) => (tokens, &[]),
            SpanOutput::Verified(tokens) => (&[], tokens),
            _ => (&[], &[]),
        };
        let verified = verified.iter().map(|sampled| sampled.token);
        tokens.iter().copied().chain(verified)
    }

    /// Returns the sampled token, or the first of them, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<TokenId> {
        match self {
            SpanOutput::Token(token) | SpanOutput::Scored(token, _) => Some(*token),
            SpanOutput::PromptLogprobs(_, token) => token.as_ref()?.token(),
            SpanOutput::Forced(tokens) => tokens.first().copied(),
            SpanOutput::Verified(tokens) => Some(tokens.first()?.token),
            SpanOutput::Nothing
            | SpanOutput::Logits(_)
            | SpanOutput::HiddenSum(_)
            | SpanOutput::Failed(_) => None,
        }
    }

    /// Puts another output in the place of the sampled token. Log probabilities of a prompt stay.
    pub fn replace_token(&mut self, output: SpanOutput) {
        match self {
            SpanOutput::PromptLogprobs(_, token) => *token = Some(Box::new(output)),
            token => *token = output,
        }
    }
}

impl OutputKind {
    /// Returns how the span's token is sampled, or the first of its tokens, if one is asked for.
    #[must_use]
    pub fn token_sampling(&self) -> Option<TokenSampling> {
        match self {
            OutputKind::Token(token_sampling) | OutputKind::Verify(token_sampling) => {
                Some(*token_sampling)
            }
            OutputKind::PromptLogprobs(rows) => rows.token,
            OutputKind::Nothing | OutputKind::Logits | OutputKind::HiddenSum(_) => None,
        }
    }
}
