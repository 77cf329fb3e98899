//! What is wanted of a span, and what a step gives back for it.

use std::sync::Arc;

use super::{GrammarError, TokenLogprobs, TokenSampling};
use crate::TokenId;

/// What a span wants of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputKind {
    /// Nothing: a prefill chunk before the prompt's last.
    Nothing,
    /// One token drawn from the logits of the last row. This is what is known of the
    /// draw when the step is launched; the rest comes with its
    /// `SampleInputs`.
    Token(TokenSampling),
    /// The logits of every row, on the host. For evaluation and tests; costs
    /// `rows * vocabulary * 4` bytes.
    Logits,
}

/// What a step gives back for one span.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanOutput {
    /// Nothing was wanted.
    Nothing,
    /// The drawn token.
    Token(TokenId),
    /// The drawn token, and how likely it and others were.
    Scored(TokenId, Arc<TokenLogprobs>),
    /// Logits, row-major `[span tokens, vocabulary]`.
    Logits(Vec<f32>),
    /// What was to be drawn could not be said, and why. The step went well otherwise.
    /// No model answers so: it is the device's table that builds the drawings.
    Failed(GrammarError),
}

impl SpanOutput {
    /// The drawn token, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<TokenId> {
        match self {
            SpanOutput::Token(token) | SpanOutput::Scored(token, _) => Some(*token),
            SpanOutput::Nothing | SpanOutput::Logits(_) | SpanOutput::Failed(_) => None,
        }
    }
}
