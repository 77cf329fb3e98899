//! Output kinds of spans, and span outputs.

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
    /// The logits of every row, on the host. For evaluation and tests; costs
    /// `rows * vocabulary * 4` bytes.
    Logits,
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
    /// Logits, row-major `[span tokens, vocabulary]`.
    Logits(Vec<f32>),
    /// The token could not be sampled, and why. The rest of the step succeeded. No model
    /// returns this: the device's table, which builds the sample inputs, does.
    Failed(GrammarError),
}

impl SpanOutput {
    /// Returns the tokens that it adds to the output.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        match self {
            SpanOutput::Token(token) | SpanOutput::Scored(token, _) => slice::from_ref(token),
            SpanOutput::Forced(tokens) => tokens,
            SpanOutput::Nothing | SpanOutput::Logits(_) | SpanOutput::Failed(_) => &[],
        }
    }

    /// Returns the sampled token, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<TokenId> {
        match self {
            SpanOutput::Token(token) | SpanOutput::Scored(token, _) => Some(*token),
            SpanOutput::Forced(tokens) => tokens.first().copied(),
            SpanOutput::Nothing | SpanOutput::Logits(_) | SpanOutput::Failed(_) => None,
        }
    }
}
