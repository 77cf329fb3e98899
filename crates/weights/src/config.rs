//! The configuration that each container's own configuration is translated into.

use super::ModelError;
use super::fields::Fields;
use super::fingerprint::Fingerprint;
use motet_core::TokenId;

/// Maximum rows or columns of a matrix.
pub(super) const DIMENSION_MAX: usize = 1 << 24;
/// Maximum heads, and maximum dimensions of a head.
pub(super) const HEADS_MAX: usize = 1 << 12;
/// Maximum layers.
pub(super) const LAYERS_MAX: usize = 1 << 12;
/// Maximum context, in tokens.
pub(super) const CONTEXT_TOKENS_MAX: usize = 1 << 30;

/// The base of rotary embeddings where a file sets none: the default of Transformers and
/// llama.cpp.
pub(super) const ROPE_THETA_DEFAULT: f32 = 10_000.0;

/// Shape and constants of a Llama-family model, in the same form for both containers.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// `llama` or `mistral`. GGUF files call both `llama`.
    pub architecture: String,
    /// A human-readable name: the folder's name, or the one in the GGUF file.
    pub name: String,
    /// Rows of the embedding; token ids are `0..vocab_size`.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Dimensions of one head, an even number. `heads * head_dim` need not be
    /// `hidden_size`.
    pub head_dim: usize,
    /// Longest sequence that the model was trained for, in tokens.
    pub context_tokens_max: usize,
    /// Added to the mean square before RMSNorm's root.
    pub rms_norm_eps: f32,
    /// Base of the rotary embeddings' frequencies.
    pub rope_theta: f32,
    /// Scaling of those frequencies for a longer context, if any.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the output head is the embedding. There is no `lm_head.weight` then.
    pub tied_embeddings: bool,
    /// Whether the query, key, value and output projections have biases.
    pub attention_bias: bool,
    /// Mistral's window: a token sees this many tokens, itself included.
    pub sliding_window: Option<usize>,
    /// Tokens that end an answer, in the file's order.
    pub end_tokens: Vec<TokenId>,
    /// The token that a text begins with.
    pub begin_token: Option<TokenId>,
}

/// A change to the frequencies of rotary embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions are divided by `factor` (Chen et al. 2023, position
    /// interpolation).
    Linear {
        /// At least 1 in practice; above 0.
        factor: f32,
    },
    /// Llama 3.1's scaling: low frequencies are divided by `factor`, high ones kept, and
    /// frequencies in between are blended (the Llama 3 herd of models, 2024).
    Llama3 {
        /// Divides frequencies whose wavelength is above
        /// `original_context_tokens / low_freq_factor`.
        factor: f32,
        /// See `factor`; below `high_freq_factor`.
        low_freq_factor: f32,
        /// Frequencies whose wavelength is below
        /// `original_context_tokens / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context of the training before the change, in tokens.
        original_context_tokens: usize,
    },
}

/// The names that a container gives the fields that [`LlamaConfig::check`] checks.
pub(super) struct Spelling {
    pub(super) kv_heads: &'static str,
    pub(super) head_dim: &'static str,
    pub(super) begin_token: &'static str,
    pub(super) end_tokens: &'static str,
}

impl LlamaConfig {
    /// Checks conditions between several fields.
    pub(super) fn check(
        &self,
        fields: &impl Fields,
        spelling: &Spelling,
    ) -> Result<(), ModelError> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(fields.wrong(
                spelling.kv_heads,
                format!("found {} for {} query heads", self.kv_heads, self.heads),
                "a divisor of the number of query heads",
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(fields.wrong(
                spelling.head_dim,
                format!("found {}", self.head_dim),
                "an even number, since rotary embeddings rotate pairs",
            ));
        }
        let begin = self.begin_token.map(|token| (spelling.begin_token, token));
        let ends = self
            .end_tokens
            .iter()
            .map(|token| (spelling.end_tokens, *token));
        for (name, token) in begin.into_iter().chain(ends) {
            if token as usize >= self.vocab_size {
                return Err(fields.wrong(
                    name,
                    format!("found {token}"),
                    format!("a token id below {}", self.vocab_size),
                ));
            }
        }
        Ok(())
    }

    /// Adds everything that the model's arithmetic depends on to the fingerprint.
    pub(super) fn describe(&self, fingerprint: &mut Fingerprint) {
        fingerprint.bytes(self.architecture.as_bytes());
        for count in [
            self.vocab_size,
            self.hidden_size,
            self.intermediate_size,
            self.layers,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.sliding_window.unwrap_or(0),
        ] {
            fingerprint.number(count as u64);
        }
        let scaling = match self.rope_scaling {
            None => [0.0; 4],
            Some(RopeScaling::Linear { factor }) => [factor, 0.0, 0.0, 0.0],
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context_tokens,
            }) => [
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context_tokens as f32,
            ],
        };
        for number in [self.rms_norm_eps, self.rope_theta]
            .into_iter()
            .chain(scaling)
        {
            fingerprint.number(u64::from(number.to_bits()));
        }
        fingerprint.number(u64::from(self.tied_embeddings));
        fingerprint.number(u64::from(self.attention_bias));
    }
}
