//! Sampling parameters of a request, and log probabilities.

use std::fmt::Display;
use std::sync::Arc;

use super::{TokenConstraint, TokenMask};
use crate::TokenId;

/// The numeric sampling parameters of a request; [`SamplingSpec`] has the others. The default
/// is [`Sampling::GREEDY`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token (greedy). Finite, >= 0.
    pub temperature: f32,
    /// Keeps only tokens at least as likely as the `top_k`-th most likely; 0 is no limit.
    pub top_k: u32,
    /// Keeps only tokens at least as likely as the least likely one of the smallest set whose
    /// probability reaches `top_p`; in (0, 1], 1 is no limit.
    pub top_p: f32,
    /// Keeps only tokens at least `min_p` times as likely as the likeliest; in [0, 1], 0 is no
    /// limit.
    pub min_p: f32,
    /// Seed of this request's random numbers.
    pub seed: u64,
    /// Divides the positive logits of tokens in the history and multiplies the negative ones
    /// (CTRL, Keskar et al. 2019); finite, > 0, 1 is off. Values above 1 make repetition less
    /// likely; 1.1 is a strong setting.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the history, as OpenAI defines it;
    /// finite, 0 is off, usually in [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens for each of their occurrences in the history, as
    /// OpenAI defines it; finite, 0 is off, usually in [-2, 2].
    pub frequency_penalty: f32,
    /// Number of last tokens that form the history of the three penalties; 0 is none,
    /// `u32::MAX` all. The default of llama.cpp and ollama is 64; OpenAI and vLLM use all
    /// tokens.
    pub penalty_window: u32,
    /// Whether the prompt is part of the history, as in llama.cpp and ollama, or only
    /// the output, as for OpenAI's two penalties.
    pub penalize_prompt: bool,
}

/// The sampling settings of a request that are not single numbers. The default sets nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingSpec {
    /// Added to the raw logits of these tokens, each token at most once: finite, or minus
    /// infinity to forbid the token. OpenAI's scale is -100 to 100.
    pub bias: Vec<(TokenId, f32)>,
    /// Minimum length of the output: none of `end_tokens` is sampled before; 0 is no minimum.
    /// If a grammar allows only the end, the output ends all the same.
    pub output_tokens_min: usize,
    /// Tokens that end the output: the model's own end tokens and the request's stop tokens.
    pub end_tokens: Vec<TokenId>,
    /// `Some(k)` returns the log probability of each sampled token, and those of the `k` most
    /// likely ones; at most [`LOGPROBS_MAX`](Self::LOGPROBS_MAX).
    pub logprobs: Option<usize>,
    /// The grammar that the output must follow.
    pub grammar: Option<Arc<dyn TokenConstraint>>,
    /// The only tokens that may be sampled and listed, where the tokenizer does not know all of
    /// the model's.
    pub known_tokens: Option<Arc<TokenMask>>,
}

/// Sampling parameters of one token, and its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenSampling {
    /// The sampling parameters.
    pub sampling: Sampling,
    /// Position of the token in the sequence's own text, from 0: the number of the prompt's tokens
    /// and of the output's tokens before it. A shift of the context does not change it. With the
    /// seed it determines the random numbers, so that a text samples alike wherever its prompt
    /// ends.
    pub position: u64,
}

impl TokenSampling {
    /// Returns the sampling of the token that comes `tokens` tokens later.
    #[must_use]
    pub fn later(&self, tokens: usize) -> Self {
        Self {
            position: self.position + tokens as u64,
            ..*self
        }
    }
}

/// Log probabilities from the raw logits: before biases, penalties, temperature and filters, as
/// OpenAI and vLLM return them.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// The most likely tokens with their log probabilities, the likeliest first; equals are
    /// ordered by token id.
    pub top: Vec<(TokenId, f32)>,
}

impl TokenLogprobs {
    /// Returns the bytes in memory of the log probabilities of one token with so many alternatives.
    /// Any number is allowed: the bytes of one that is not valid are as many as a `usize` can say.
    #[must_use]
    pub const fn bytes(alternatives: usize) -> usize {
        /// Bytes that an allocator takes for itself.
        const ALLOCATION_BYTES: usize = 16;
        let top = alternatives.saturating_mul(size_of::<(TokenId, f32)>());
        top.saturating_add(size_of::<Self>() + ALLOCATION_BYTES)
    }

    /// Returns the bytes in memory of a token with its log probabilities in a list that has grown: up
    /// to half of such a list is empty.
    #[must_use]
    pub const fn listed_bytes(alternatives: usize) -> usize {
        let entries = 2 * size_of::<(TokenId, Self)>() - size_of::<Self>();
        Self::bytes(alternatives).saturating_add(entries)
    }
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` is {found}; expected {expected}")]
pub struct SamplingError {
    /// The field.
    pub field: &'static str,
    /// The value found.
    pub found: String,
    /// The values allowed.
    pub expected: String,
}

impl Sampling {
    /// Always takes the most likely token.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_window: 64,
        penalize_prompt: true,
    };

    /// Whether this always takes the most likely token.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Whether sampling depends on earlier tokens other than through their logits.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        let is_on = self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0;
        is_on && self.penalty_window > 0
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// [`SamplingError`] names the field, its value, and the values allowed.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let finite = |field, number: f32| {
            let expected = "a finite number";
            SamplingError::unless(number.is_finite(), field, number, expected)
        };
        let temperature = self.temperature;
        SamplingError::unless(
            temperature.is_finite() && temperature >= 0.0,
            "sampling.temperature",
            temperature,
            "a finite number, at least 0",
        )?;
        SamplingError::unless(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "sampling.top_p",
            self.top_p,
            "a number above 0 and at most 1",
        )?;
        SamplingError::unless(
            (0.0..=1.0).contains(&self.min_p),
            "sampling.min_p",
            self.min_p,
            "a number from 0 to 1",
        )?;
        SamplingError::unless(
            self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
            "sampling.repetition_penalty",
            self.repetition_penalty,
            "a finite number above 0",
        )?;
        finite("sampling.presence_penalty", self.presence_penalty)?;
        finite("sampling.frequency_penalty", self.frequency_penalty)
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

impl SamplingSpec {
    /// Upper bound on the alternatives whose log probabilities are returned for a token, as at
    /// OpenAI.
    pub const LOGPROBS_MAX: usize = 20;

    /// Whether no field is set. Sampling is then plain, unless there are penalties.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bias.is_empty()
            && self.output_tokens_min == 0
            && self.logprobs.is_none()
            && self.grammar.is_none()
            && self.known_tokens.is_none()
    }

    /// Returns the same settings for one sequence; a grammar gets a walk of its own.
    pub fn for_one_sequence(self: &Arc<Self>) -> Arc<Self> {
        match &self.grammar {
            None => Arc::clone(self),
            Some(grammar) => Arc::new(Self {
                grammar: Some(grammar.for_one_sequence()),
                ..Self::clone(self)
            }),
        }
    }

    /// Checks every field, for a model with `vocab_size` tokens.
    ///
    /// # Errors
    ///
    /// [`SamplingError`] names the field.
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
            return SamplingError::unless(false, "bias", found, "one bias for each token");
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
            "at least one token that can be sampled",
        )?;
        let top = self.logprobs.unwrap_or(0);
        let expected = format!("at most {}", Self::LOGPROBS_MAX);
        SamplingError::unless(top <= Self::LOGPROBS_MAX, "logprobs", top, &expected)
    }
}

impl SamplingError {
    /// Returns an error for this field unless `ok` is true.
    ///
    /// # Errors
    ///
    /// [`SamplingError`] if `ok` is false.
    pub fn unless(
        ok: bool,
        field: &'static str,
        found: impl Display,
        expected: &str,
    ) -> Result<(), SamplingError> {
        if ok {
            Ok(())
        } else {
            Err(SamplingError {
                field,
                found: found.to_string(),
                expected: expected.to_owned(),
            })
        }
    }
}
