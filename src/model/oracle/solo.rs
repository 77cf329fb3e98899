//! What a sequence must produce, reckoned from its tokens alone.
//!
//! Shares with the model the definition of a row's hash and of the vocabulary,
//! and nothing that touches cached state: no folds, no segments, no tails.

use super::config::OracleConfig;
use super::hash;
use super::vocabulary::Vocabulary;
use crate::TokenId;
use crate::model::LayerKind;
use crate::model::sampling::{Draw, Sampling};

impl OracleConfig {
    /// The `tokens` tokens that an oracle of this configuration must produce
    /// after `prompt`, whatever was cached, shared or moved: the truth for tests.
    ///
    /// It does not stop at end tokens; a sequence that does has the same tokens
    /// up to there. Linear in the tokens for full and recurrent layers.
    ///
    /// # Panics
    ///
    /// When the prompt is empty or the configuration is not valid.
    #[must_use]
    pub fn solo(&self, prompt: &[TokenId], tokens: usize, sampling: Sampling) -> Vec<TokenId> {
        assert!(!prompt.is_empty(), "a prompt has at least one token");
        let mut soloist = Soloist::new(self);
        let mut row = 0;
        for &token in prompt {
            row = soloist.row(token);
        }
        let mut output = Vec::with_capacity(tokens);
        for index in 0..tokens as u64 {
            let token = soloist.vocabulary.draw(row, &Draw { sampling, index });
            output.push(token);
            row = soloist.row(token);
        }
        output
    }

    /// The logits after each of `tokens`, row-major `[tokens, vocabulary]`.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid.
    #[must_use]
    pub fn solo_logits(&self, tokens: &[TokenId]) -> Vec<f32> {
        let mut soloist = Soloist::new(self);
        let mut logits = Vec::with_capacity(tokens.len() * self.vocab_size);
        for &token in tokens {
            let row = soloist.row(token);
            soloist.vocabulary.push_logits(row, &mut logits);
        }
        logits
    }
}

/// One sequence, with everything that it ever computed.
struct Soloist<'a> {
    config: &'a OracleConfig,
    vocabulary: Vocabulary,
    tokens: u64,
    layers: Vec<SoloLayer>,
}

#[derive(Clone, Default)]
struct SoloLayer {
    entries: Vec<u64>,
    /// The polynomial of all entries.
    whole: u64,
}

impl<'a> Soloist<'a> {
    fn new(config: &'a OracleConfig) -> Soloist<'a> {
        config
            .validate()
            .expect("a truth is asked of a valid configuration");
        Soloist {
            config,
            vocabulary: config.vocabulary(),
            tokens: 0,
            layers: vec![SoloLayer::default(); config.layers.len()],
        }
    }

    /// The hash of the row of `token`, which comes next.
    fn row(&mut self, token: TokenId) -> u64 {
        let mut row = hash::embed(self.config.seed, token, self.tokens);
        self.tokens += 1;
        for (layer, kind) in self.config.layers.iter().enumerate() {
            let SoloLayer { entries, whole } = &mut self.layers[layer];
            let past = match kind {
                LayerKind::Full => *whole,
                LayerKind::Window { tokens } => {
                    let first = entries.len().saturating_sub(tokens - 1);
                    entries[first..].iter().copied().fold(0, append)
                }
                LayerKind::Recurrent => entries.last().copied().unwrap_or(0),
            };
            row = hash::entry(layer, row, past);
            entries.push(row);
            *whole = append(*whole, row);
        }
        row
    }
}

fn append(polynomial: u64, entry: u64) -> u64 {
    polynomial.wrapping_mul(hash::BASE).wrapping_add(entry)
}
