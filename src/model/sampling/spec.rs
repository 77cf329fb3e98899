//! What a request wants of its draws beyond [`Sampling`](super::Sampling).

use std::fmt::Display;
use std::sync::Arc;

use crate::TokenId;
use crate::grammar::Grammar;

/// What a request wants of its draws that is more than numbers. The default wants
/// nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrawSpec {
    /// Added to the raw logits of these tokens, each at most once: finite, or minus
    /// infinity for a token that is never to be drawn. OpenAI's scale is -100 to 100.
    pub bias: Vec<(TokenId, f32)>,
    /// Until the output has so many tokens, none of `end_tokens` is drawn; 0 is no such
    /// limit. Where a grammar allows nothing but the end, the end comes all the same.
    pub output_tokens_min: usize,
    /// What ends the output: the model's own end tokens and the request's stop tokens.
    pub end_tokens: Vec<TokenId>,
    /// `Some(k)` wants the log probability of each drawn token, and those of the `k`
    /// most likely ones; at most [`LOGPROBS_MAX`](Self::LOGPROBS_MAX).
    pub logprobs: Option<usize>,
    /// What the output is to follow.
    pub grammar: Option<Grammar>,
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` is {found}; expected {expected}")]
pub struct SamplingError {
    /// The field.
    pub field: &'static str,
    /// What it is.
    pub found: String,
    /// What it may be.
    pub expected: String,
}

impl DrawSpec {
    /// Most alternatives whose log probabilities are given for a token, as at OpenAI.
    pub const LOGPROBS_MAX: usize = 20;

    /// Whether it wants anything at all; otherwise draws are [plain](super::Drawing::plain),
    /// unless there are penalties.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bias.is_empty()
            && self.output_tokens_min == 0
            && self.logprobs.is_none()
            && self.grammar.is_none()
    }

    /// The same, for one sequence: where there is a grammar, it has a walk of its own.
    pub(crate) fn for_one_sequence(self: &Arc<Self>) -> Arc<Self> {
        match &self.grammar {
            None => Arc::clone(self),
            Some(grammar) => Arc::new(Self {
                grammar: Some(grammar.for_one_sequence()),
                ..Self::clone(self)
            }),
        }
    }

    /// Checks every field, for a model with so many tokens.
    ///
    /// # Errors
    ///
    /// [`SamplingError`] naming the field.
    pub fn validate(&self, vocab_size: usize) -> Result<(), SamplingError> {
        let is_token = |token: &TokenId| (*token as usize) < vocab_size;
        let ids = format!("ids below {vocab_size}");
        for (token, bias) in &self.bias {
            SamplingError::unless(is_token(token), "bias", token, &ids)?;
            let ok = bias.is_finite() || *bias == f32::NEG_INFINITY;
            let expected = "a finite number or minus infinity";
            SamplingError::unless(ok, "bias", format!("{bias} of token {token}"), expected)?;
        }
        if let Some(token) = self.end_tokens.iter().find(|token| !is_token(token)) {
            return SamplingError::unless(false, "end_tokens", token, &ids);
        }
        let mut tokens: Vec<TokenId> = self.bias.iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        if let Some(twice) = tokens.windows(2).find(|pair| pair[0] == pair[1]) {
            let found = format!("two biases of token {}", twice[0]);
            return SamplingError::unless(false, "bias", found, "one a token");
        }
        let banned = self.bias.iter().filter(|(_, bias)| !bias.is_finite());
        let mut banned: Vec<TokenId> = banned.map(|(token, _)| *token).collect();
        if self.output_tokens_min > 0 {
            banned.extend(&self.end_tokens);
        }
        banned.sort_unstable();
        banned.dedup();
        SamplingError::unless(
            banned.len() < vocab_size,
            "bias",
            "minus infinity for every token that does not end the output",
            "a token that can be drawn",
        )?;
        let top = self.logprobs.unwrap_or(0);
        let expected = format!("at most {}", Self::LOGPROBS_MAX);
        SamplingError::unless(top <= Self::LOGPROBS_MAX, "logprobs", top, &expected)
    }
}

impl SamplingError {
    pub(super) fn unless(
        ok: bool,
        field: &'static str,
        found: impl Display,
        expected: &str,
    ) -> Result<(), SamplingError> {
        match ok {
            true => Ok(()),
            false => Err(SamplingError {
                field,
                found: found.to_string(),
                expected: expected.to_owned(),
            }),
        }
    }
}
