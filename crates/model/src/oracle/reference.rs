//! Expected output of a sequence, computed from its tokens alone.
//!
//! It shares with the model the definition of a row's hash and of the vocabulary. It shares
//! nothing that touches cached state: no folds, no segments, no tails.

use std::ops::Range;

use super::config::OracleConfig;
use super::hash;
use super::vocabulary::Vocabulary;
use crate::sampling::{SampleInputs, logprobs_of};
use motet_protocol::TokenId;
use motet_protocol::{LayerKind, Sampling, TokenLogprobs, TokenSampling};

/// When a sequence shifts, and which tokens it keeps.
///
/// The slot shifts when it holds `context_tokens` tokens and another is to be evaluated. It
/// discards the oldest half of the tokens after the first `keep`. If the model can, their state
/// is removed; otherwise the tokens that stay are evaluated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShiftRule {
    /// Most tokens that the slot holds; more than `keep`.
    pub context_tokens: usize,
    /// Tokens at the start that stay.
    pub keep: usize,
}

/// One sequence with all entries that it ever computed: the reference for any history, a token at
/// a time.
#[derive(Clone, Debug)]
pub struct ReferenceRun {
    config: OracleConfig,
    vocabulary: Vocabulary,
    /// Tokens in its slot.
    tokens: Vec<TokenId>,
    layers: Vec<ReferenceLayer>,
    /// The hash of the last row.
    row: u64,
}

#[derive(Clone, Debug, Default)]
struct ReferenceLayer {
    entries: Vec<u64>,
    /// The polynomial of all entries.
    polynomial_of_all: u64,
}

impl OracleConfig {
    /// The `tokens` tokens that an oracle of this configuration must produce after `prompt`,
    /// whatever was cached, shared or moved: the reference for tests.
    ///
    /// It does not stop at end tokens; a sequence that does has the same tokens up to there.
    /// Linear in the tokens for full and recurrent layers.
    ///
    /// # Panics
    ///
    /// When the prompt is empty or the configuration is not valid.
    #[must_use]
    pub fn reference_tokens(
        &self,
        prompt: &[TokenId],
        tokens: usize,
        sampling: Sampling,
    ) -> Vec<TokenId> {
        output(
            ReferenceRun::new(self),
            prompt,
            tokens,
            sampling,
            ReferenceRun::evaluate,
        )
    }

    /// As [`reference_tokens`](Self::reference_tokens), for a sequence that shifts by `rule`. It
    /// does not matter how the prompt is cut into chunks: a slot is filled before it shifts.
    ///
    /// # Panics
    ///
    /// As [`reference_tokens`](Self::reference_tokens) does, and unless `rule.keep < rule.context_tokens`.
    #[must_use]
    pub fn reference_tokens_with_shifts(
        &self,
        prompt: &[TokenId],
        tokens: usize,
        sampling: Sampling,
        rule: ShiftRule,
    ) -> Vec<TokenId> {
        output(
            ReferenceRun::new(self),
            prompt,
            tokens,
            sampling,
            |reference_run, token| {
                if reference_run.tokens.len() == rule.context_tokens {
                    reference_run.shift(rule);
                }
                reference_run.evaluate(token);
            },
        )
    }

    /// The logits after each of `tokens`, row-major `[tokens, vocabulary]`.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid.
    #[must_use]
    pub fn reference_logits(&self, tokens: &[TokenId]) -> Vec<f32> {
        let mut reference_run = ReferenceRun::new(self);
        let mut logits = Vec::with_capacity(tokens.len() * self.vocab_size);
        for &token in tokens {
            reference_run.evaluate(token);
            reference_run.push_logits(&mut logits);
        }
        logits
    }
}

impl OracleConfig {
    /// The log probability of each of `tokens` from offset `first` on, after those before it,
    /// and those of the `top` likeliest tokens there.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid, or `first` is 0.
    #[must_use]
    pub fn reference_logprobs(
        &self,
        tokens: &[TokenId],
        first: usize,
        top: usize,
    ) -> Vec<TokenLogprobs> {
        assert!(first > 0, "no row comes before the first token");
        let logits = self.reference_logits(tokens);
        let rows = logits.chunks(self.vocab_size).skip(first - 1);
        let targets = tokens.iter().skip(first);
        let logprobs = rows.zip(targets).map(|(row, target)| {
            logprobs_of(row, *target, top).expect("a token of the vocabulary")
        });
        logprobs.collect()
    }

    /// The hidden states of `tokens`, one for each.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid.
    #[must_use]
    pub fn reference_hidden_states(&self, tokens: &[TokenId]) -> Vec<Vec<f64>> {
        let mut reference_run = ReferenceRun::new(self);
        let states = tokens.iter().map(|token| {
            reference_run.evaluate(*token);
            hash::hidden_state(reference_run.row).to_vec()
        });
        states.collect()
    }
}

impl ShiftRule {
    /// Number of tokens that a shift discards.
    ///
    /// # Panics
    ///
    /// Unless `keep < context_tokens`.
    #[must_use]
    pub fn discarded(&self) -> usize {
        let free = self.context_tokens.checked_sub(self.keep);
        let free = free.filter(|free| *free > 0);
        (free.expect("a slot holds more than it keeps") / 2).max(1)
    }
}

impl ReferenceRun {
    /// A sequence of an oracle of this configuration, before its first token.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid.
    #[must_use]
    pub fn new(config: &OracleConfig) -> ReferenceRun {
        config
            .validate()
            .expect("the reference needs a valid configuration");
        ReferenceRun {
            config: config.clone(),
            vocabulary: config.vocabulary(),
            tokens: Vec::new(),
            layers: vec![ReferenceLayer::default(); config.layers.len()],
            row: 0,
        }
    }

    /// The tokens that its slot holds.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Evaluates `token`, the next one.
    pub fn evaluate(&mut self, token: TokenId) {
        let mut row = hash::embed(self.config.seed, token, self.tokens.len() as u64);
        self.tokens.push(token);
        for (layer, kind) in self.config.layers.iter().enumerate() {
            let ReferenceLayer {
                entries,
                polynomial_of_all,
            } = &mut self.layers[layer];
            let past = match kind {
                LayerKind::Full => *polynomial_of_all,
                LayerKind::Window { tokens } => {
                    let first = entries.len().saturating_sub(tokens - 1);
                    polynomial(&entries[first..])
                }
                LayerKind::Recurrent => entries.last().copied().unwrap_or(0),
            };
            row = hash::entry(layer, row, past);
            entries.push(row);
            *polynomial_of_all = append(*polynomial_of_all, row);
        }
        self.row = row;
    }

    /// Appends the logits after the token that was evaluated last.
    pub fn push_logits(&self, logits: &mut Vec<f32>) {
        self.vocabulary.push_logits(self.row, logits);
    }

    /// Removes the tokens at these offsets, as [`Model::remove`] does. Layers that are not of
    /// full attention can only be truncated.
    ///
    /// # Panics
    ///
    /// When the range is outside the slot, or tokens follow and a layer cannot be shifted.
    ///
    /// [`Model::remove`]: crate::Model::remove
    pub fn remove(&mut self, removed: Range<usize>) {
        assert!(
            removed.is_empty() || removed.end == self.tokens.len() || self.shifts(),
            "only full attention's state can be moved"
        );
        self.tokens.drain(removed.clone());
        for ReferenceLayer {
            entries,
            polynomial_of_all,
        } in &mut self.layers
        {
            entries.drain(removed.clone());
            for entry in &mut entries[removed.start..] {
                *entry = hash::turned_back(*entry, removed.len());
            }
            *polynomial_of_all = polynomial(entries);
        }
    }

    /// Discards tokens by `rule`, and removes their state if the model can.
    ///
    /// # Panics
    ///
    /// Unless `rule.keep < rule.context_tokens`.
    pub fn shift(&mut self, rule: ShiftRule) {
        let removed = rule.keep..rule.keep + rule.discarded();
        if self.shifts() {
            self.remove(removed);
            return;
        }
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.drain(removed);
        *self = ReferenceRun::new(&self.config);
        for token in tokens {
            self.evaluate(token);
        }
    }

    fn shifts(&self) -> bool {
        let full = |kind: &LayerKind| *kind == LayerKind::Full;
        self.config.can_shift && self.config.layers.iter().all(full)
    }
}

/// Evaluates the prompt, and then each token that is sampled.
fn output(
    mut reference_run: ReferenceRun,
    prompt: &[TokenId],
    tokens: usize,
    sampling: Sampling,
    evaluate: impl Fn(&mut ReferenceRun, TokenId),
) -> Vec<TokenId> {
    assert!(!prompt.is_empty(), "a prompt has at least one token");
    for &token in prompt {
        evaluate(&mut reference_run, token);
    }
    let mut output = Vec::with_capacity(tokens);
    for position in (prompt.len() as u64..).take(tokens) {
        let sample_inputs = SampleInputs::plain(TokenSampling { sampling, position });
        let sampled = reference_run
            .vocabulary
            .sample(reference_run.row, &sample_inputs);
        let token = sampled.token;
        output.push(token);
        evaluate(&mut reference_run, token);
    }
    output
}

fn polynomial(entries: &[u64]) -> u64 {
    entries.iter().copied().fold(0, append)
}

fn append(polynomial: u64, entry: u64) -> u64 {
    polynomial.wrapping_mul(hash::BASE).wrapping_add(entry)
}
