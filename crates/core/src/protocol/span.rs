//! Output kinds of spans, and span outputs.

use std::ops::Range;
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
    /// Logits, row-major `[span tokens, vocabulary]`.
    Logits(Vec<f32>),
    /// Log probabilities of the targets, and the output of the sampled token where one was asked
    /// for: [`Token`](Self::Token), [`Scored`](Self::Scored) or [`Failed`](Self::Failed).
    PromptLogprobs(Vec<TokenLogprobs>, Option<Box<SpanOutput>>),
    /// The sum of hidden states, in double precision.
    HiddenSum(Vec<f64>),
    /// The token could not be sampled, and why. The rest of the step succeeded. No model
    /// returns this: the device's table, which builds the sample inputs, does.
    Failed(GrammarError),
}

impl SpanOutput {
    /// Returns the sampled token, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<TokenId> {
        match self {
            SpanOutput::Token(token) | SpanOutput::Scored(token, _) => Some(*token),
            SpanOutput::PromptLogprobs(_, token) => token.as_ref()?.token(),
            SpanOutput::Nothing
            | SpanOutput::Logits(_)
            | SpanOutput::HiddenSum(_)
            | SpanOutput::Failed(_) => None,
        }
    }

    /// Replaces the sampled token by the reason why there is none.
    pub fn fail(&mut self, error: GrammarError) {
        match self {
            SpanOutput::PromptLogprobs(_, token) => {
                *token = Some(Box::new(SpanOutput::Failed(error)));
            }
            output => *output = SpanOutput::Failed(error),
        }
    }
}

impl OutputKind {
    /// Returns how a token of the span's last row is sampled, if one is asked for.
    #[must_use]
    pub fn token_sampling(&self) -> Option<TokenSampling> {
        match self {
            OutputKind::Token(token_sampling) => Some(*token_sampling),
            OutputKind::PromptLogprobs(rows) => rows.token,
            OutputKind::Nothing | OutputKind::Logits | OutputKind::HiddenSum(_) => None,
        }
    }
}
