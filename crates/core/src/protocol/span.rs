//! What is wanted of a span, and what a step gives back for it.

use std::sync::Arc;

use super::{Draw, GrammarError, TokenLogprobs};
use crate::TokenId;

/// What a span wants of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
    /// Nothing: a prefill chunk before the prompt's last.
    Nothing,
    /// One token drawn from the logits of the last row. This is what is known of the
    /// draw when the step is launched; the rest comes with its
    /// `Drawing`.
    Token(Draw),
    /// The logits of every row, on the host. For evaluation and tests; costs
    /// `rows * vocabulary * 4` bytes.
    Logits,
}

/// What a step gives back for one span.
#[derive(Clone, Debug, PartialEq)]
pub enum Readout {
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

impl Readout {
    /// The drawn token, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<TokenId> {
        match self {
            Readout::Token(token) | Readout::Scored(token, _) => Some(*token),
            Readout::Nothing | Readout::Logits(_) | Readout::Failed(_) => None,
        }
    }
}
