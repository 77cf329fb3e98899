//! Everything that one draw needs, and the draw itself.

use std::sync::Arc;

use super::Adjustments;
use super::adjustments::penalized;
use super::draw::read;
use super::logprobs::read_logprobs;
use super::rows::{Passes, Plain, Reader};
use motet_core::TokenId;
use motet_core::protocol::{Draw, DrawSpec, TokenLogprobs, TokenMask};

/// One draw of one sequence, with all that it depends on besides the row of logits.
/// Cheap to clone and to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    draw: Draw,
    more: Option<Arc<More>>,
}

/// What few draws want.
#[derive(Debug, PartialEq)]
pub(super) struct More {
    pub(super) spec: Arc<DrawSpec>,
    /// Tokens that are penalised, and how often each is in the history.
    pub(super) counts: Vec<(TokenId, u32)>,
    /// Whether the output is too short to end.
    pub(super) is_too_short: bool,
    /// What the grammar allows.
    pub(super) mask: Option<Arc<TokenMask>>,
}

/// What was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: TokenId,
    /// How likely it was, where that was wanted.
    pub logprobs: Option<TokenLogprobs>,
}

impl Drawing {
    /// A draw that wants nothing more than its settings, penalties aside.
    #[must_use]
    pub fn plain(draw: Draw) -> Self {
        Self { draw, more: None }
    }

    pub(super) fn new(draw: Draw, more: More) -> Self {
        let more = Some(Arc::new(more));
        Self { draw, more }
    }

    /// How it draws, after what [`adjustments`](Self::adjustments) do.
    #[must_use]
    pub fn draw(&self) -> &Draw {
        &self.draw
    }

    /// Whether it draws from the logits as they are and gives no log probabilities.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.changes_logits() && self.logprobs().is_none()
    }

    /// Whether it changes the logits before it draws.
    #[must_use]
    pub fn changes_logits(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.changes_logits())
    }

    /// How many alternatives' log probabilities are wanted, if any are.
    #[must_use]
    pub fn logprobs(&self) -> Option<usize> {
        self.more.as_ref()?.spec.logprobs
    }

    /// Draws from one row of logits, on the host. Device samplers are tested against
    /// this.
    ///
    /// A token that is ruled out is not drawn, even where the model holds all others
    /// for impossible: then it is the first that may be.
    ///
    /// # Panics
    ///
    /// When `logits` is empty.
    #[must_use]
    pub fn from_logits(&self, logits: &[f32]) -> Drawn {
        self.read(&mut Reader::new(Plain), logits)
    }

    /// [`from_logits`](Self::from_logits), whoever does the passes.
    pub fn read<P: Passes>(&self, reader: &mut Reader<P>, logits: &[f32]) -> Drawn {
        let token = match &self.more {
            Some(more) if more.changes_logits() => reader.changed(
                logits,
                |row| more.apply(&self.draw, row),
                |reader, row| match reader.maxima(row).1 == f32::NEG_INFINITY {
                    true => more.first_possible(row.len()),
                    false => read(&self.draw, reader, row),
                },
            ),
            _ => read(&self.draw, reader, logits),
        };
        let logprobs = |top| read_logprobs(reader, logits, token, top);
        Drawn {
            token,
            logprobs: self.logprobs().and_then(logprobs),
        }
    }

    /// What it does to its row of logits before it draws; none where it changes
    /// nothing. Allocates three rows.
    #[must_use]
    pub fn adjustments(&self, vocab_size: usize) -> Option<Adjustments> {
        let more = self.more.as_ref().filter(|more| more.changes_logits())?;
        let sampling = &self.draw.sampling;
        let mut adjustments = Adjustments {
            bias: vec![0.0; vocab_size],
            repetition: vec![1.0; vocab_size],
            shift: vec![0.0; vocab_size],
        };
        more.add_bias(&mut adjustments.bias);
        for (token, count) in &more.counts {
            if let Some(place) = adjustments.shift.get_mut(*token as usize) {
                *place = more.shift(&self.draw, *count);
                adjustments.repetition[*token as usize] = sampling.repetition_penalty;
            }
        }
        more.rule_out(&mut adjustments.shift);
        Some(adjustments)
    }
}

impl More {
    fn changes_logits(&self) -> bool {
        !self.spec.bias.is_empty()
            || !self.counts.is_empty()
            || self.mask.is_some()
            || self.is_too_short && !self.spec.end_tokens.is_empty()
    }

    /// Tokens that a shorter vocabulary does not have are left out.
    fn apply(&self, draw: &Draw, row: &mut [f32]) {
        self.add_bias(row);
        let repetition = draw.sampling.repetition_penalty;
        for (token, count) in &self.counts {
            if let Some(logit) = row.get_mut(*token as usize) {
                *logit = penalized(*logit, repetition) + self.shift(draw, *count);
            }
        }
        self.rule_out(row);
    }

    fn add_bias(&self, row: &mut [f32]) {
        for (token, bias) in &self.spec.bias {
            if let Some(logit) = row.get_mut(*token as usize) {
                *logit += bias;
            }
        }
    }

    fn shift(&self, draw: &Draw, count: u32) -> f32 {
        let sampling = &draw.sampling;
        -(sampling.presence_penalty + sampling.frequency_penalty * count as f32)
    }

    fn rule_out(&self, row: &mut [f32]) {
        if self.is_too_short {
            for end in &self.spec.end_tokens {
                if let Some(logit) = row.get_mut(*end as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(mask) = &self.mask {
            mask.apply(row);
        }
    }

    fn first_possible(&self, vocab_size: usize) -> TokenId {
        let mut row = vec![0.0; vocab_size];
        self.add_bias(&mut row);
        self.rule_out(&mut row);
        let first = row.iter().position(|logit| *logit > f32::NEG_INFINITY);
        first.unwrap_or(0) as TokenId
    }
}
