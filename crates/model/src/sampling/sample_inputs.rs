//! The inputs of sampling one token, and the sampling itself.

use std::sync::Arc;

use super::Adjustments;
use super::adjustments::penalized;
use super::logprobs::logprobs_with;
use super::row_sampling::sample_row_with;
use super::rows::{RowOperations, RowReader, ScalarOperations};
use motet_protocol::TokenId;
use motet_protocol::{
    SampledToken, SamplingSpec, SpanOutput, TokenLogprobs, TokenMask, TokenSampling,
};

/// Everything that sampling one token of one sequence depends on, besides the row of logits.
/// Cheap to clone and to send.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleInputs {
    token_sampling: TokenSampling,
    extras: Option<Arc<SamplingExtras>>,
}

/// Settings that few requests use.
#[derive(Debug, PartialEq)]
pub(super) struct SamplingExtras {
    pub(super) spec: Arc<SamplingSpec>,
    /// Tokens that are penalised, and how often each is in the history.
    pub(super) counts: Vec<(TokenId, u32)>,
    /// Whether the output is too short to end.
    pub(super) is_too_short: bool,
    /// The tokens that the grammar allows.
    pub(super) mask: Option<Arc<TokenMask>>,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// How likely it was, if the request asked for that.
    pub logprobs: Option<TokenLogprobs>,
}

impl SampleInputs {
    /// Inputs with nothing but these settings, penalties aside.
    #[must_use]
    pub fn plain(token_sampling: TokenSampling) -> Self {
        Self {
            token_sampling,
            extras: None,
        }
    }

    pub(super) fn new(token_sampling: TokenSampling, extras: SamplingExtras) -> Self {
        let extras = Some(Arc::new(extras));
        Self {
            token_sampling,
            extras,
        }
    }

    /// The settings that apply after [`adjustments`](Self::adjustments).
    #[must_use]
    pub fn token_sampling(&self) -> &TokenSampling {
        &self.token_sampling
    }

    /// Whether it samples from the logits as they are and gives no log probabilities.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.changes_logits() && self.logprobs().is_none()
    }

    /// Whether it changes the logits before it samples.
    #[must_use]
    pub fn changes_logits(&self) -> bool {
        self.extras
            .as_ref()
            .is_some_and(|extras| extras.changes_logits())
    }

    /// Number of alternatives whose log probabilities are asked for, if any are.
    #[must_use]
    pub fn logprobs(&self) -> Option<usize> {
        self.extras.as_ref()?.spec.logprobs
    }

    /// Samples from one row of logits, on the host. Device samplers are tested against this.
    ///
    /// A token that is ruled out is never sampled, even if all others have no probability under
    /// the model. In that case the result is the first token that is allowed.
    ///
    /// # Panics
    ///
    /// When `logits` is empty.
    #[must_use]
    pub fn from_logits(&self, logits: &[f32]) -> Sampled {
        self.sample_with(&mut RowReader::new(ScalarOperations), logits)
    }

    /// [`from_logits`](Self::from_logits), with the passes of these row operations.
    pub fn sample_with<P: RowOperations>(
        &self,
        reader: &mut RowReader<P>,
        logits: &[f32],
    ) -> Sampled {
        let token = match &self.extras {
            Some(extras) if extras.changes_logits() => reader.changed(
                logits,
                |row| extras.apply(&self.token_sampling, row),
                |reader, row| {
                    if reader.maxima(row).1 == f32::NEG_INFINITY {
                        extras.first_possible(row.len())
                    } else {
                        sample_row_with(&self.token_sampling, reader, row)
                    }
                },
            ),
            _ => sample_row_with(&self.token_sampling, reader, logits),
        };
        Sampled {
            token,
            logprobs: self.logprobs_with(reader, logits, token),
        }
    }

    /// The log probabilities of a sampled token and of the likeliest ones, if the request asked
    /// for them, by a row of logits on the host.
    #[must_use]
    pub fn logprobs_from(&self, logits: &[f32], token: TokenId) -> Option<TokenLogprobs> {
        self.logprobs_with(&mut RowReader::new(ScalarOperations), logits, token)
    }

    fn logprobs_with<P: RowOperations>(
        &self,
        reader: &mut RowReader<P>,
        logits: &[f32],
        token: TokenId,
    ) -> Option<TokenLogprobs> {
        let spec = &self.extras.as_ref()?.spec;
        let top = spec.logprobs?;
        match &spec.known_tokens {
            None => logprobs_with(reader, logits, token, top),
            Some(known) => reader.changed(
                logits,
                |row| known.apply(row),
                |reader, row| {
                    let mut logprobs = logprobs_with(reader, row, token, top)?;
                    logprobs.top.retain(|(token, _)| known.allows(*token));
                    Some(logprobs)
                },
            ),
        }
    }

    /// The changes that it makes to its row of logits before it samples; `None` if it changes
    /// nothing. Allocates three rows.
    #[must_use]
    pub fn adjustments(&self, vocab_size: usize) -> Option<Adjustments> {
        let extras = self
            .extras
            .as_ref()
            .filter(|extras| extras.changes_logits())?;
        let sampling = &self.token_sampling.sampling;
        let mut adjustments = Adjustments {
            bias: vec![0.0; vocab_size],
            repetition: vec![1.0; vocab_size],
            shift: vec![0.0; vocab_size],
        };
        extras.add_bias(&mut adjustments.bias);
        for (token, count) in &extras.counts {
            if let Some(shift) = adjustments.shift.get_mut(*token as usize) {
                *shift = extras.shift(&self.token_sampling, *count);
                adjustments.repetition[*token as usize] = sampling.repetition_penalty;
            }
        }
        extras.exclude(&mut adjustments.shift);
        Some(adjustments)
    }
}

impl SamplingExtras {
    fn changes_logits(&self) -> bool {
        !self.spec.bias.is_empty()
            || !self.counts.is_empty()
            || self.mask.is_some()
            || self.spec.known_tokens.is_some()
            || self.is_too_short && !self.spec.end_tokens.is_empty()
    }

    /// Applies biases and penalties. Tokens beyond the row's vocabulary are skipped.
    fn apply(&self, token_sampling: &TokenSampling, row: &mut [f32]) {
        self.add_bias(row);
        let repetition = token_sampling.sampling.repetition_penalty;
        for (token, count) in &self.counts {
            if let Some(logit) = row.get_mut(*token as usize) {
                *logit = penalized(*logit, repetition) + self.shift(token_sampling, *count);
            }
        }
        self.exclude(row);
    }

    fn add_bias(&self, row: &mut [f32]) {
        for (token, bias) in &self.spec.bias {
            if let Some(logit) = row.get_mut(*token as usize) {
                *logit += bias;
            }
        }
    }

    fn shift(&self, token_sampling: &TokenSampling, count: u32) -> f32 {
        let sampling = &token_sampling.sampling;
        -(sampling.presence_penalty + sampling.frequency_penalty * count as f32)
    }

    fn exclude(&self, row: &mut [f32]) {
        if self.is_too_short {
            for end in &self.spec.end_tokens {
                if let Some(logit) = row.get_mut(*end as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let known = self.spec.known_tokens.as_ref();
        for mask in known.into_iter().chain(&self.mask) {
            mask.apply(row);
        }
    }

    fn first_possible(&self, vocab_size: usize) -> TokenId {
        let mut row = vec![0.0; vocab_size];
        self.add_bias(&mut row);
        self.exclude(&mut row);
        let first = row.iter().position(|logit| *logit > f32::NEG_INFINITY);
        first.unwrap_or(0) as TokenId
    }
}

impl From<Sampled> for SampledToken {
    fn from(sampled: Sampled) -> SampledToken {
        SampledToken {
            token: sampled.token,
            logprobs: sampled.logprobs.map(Arc::new),
        }
    }
}

impl From<Sampled> for SpanOutput {
    fn from(sampled: Sampled) -> SpanOutput {
        match sampled.logprobs {
            None => SpanOutput::Token(sampled.token),
            Some(logprobs) => SpanOutput::Scored(sampled.token, Arc::new(logprobs)),
        }
    }
}
