//! The configuration that every container's own is translated into.

use super::ModelError;
use super::fields::Fields;
use super::fingerprint::Fingerprint;
use motet_core::TokenId;

/// Most rows or columns that a matrix may claim to have.
pub(super) const DIMENSION_MAX: usize = 1 << 24;
/// Most heads, and most dimensions of a head.
pub(super) const HEADS_MAX: usize = 1 << 12;
/// Most layers that a model may claim to have.
pub(super) const LAYERS_MAX: usize = 1 << 12;
/// Longest context that a model may claim to have, in tokens.
pub(super) const CONTEXT_TOKENS_MAX: usize = 1 << 30;

/// The base of rotary embeddings where a file has none: Transformers' default and
/// llama.cpp's.
pub(super) const ROPE_THETA_DEFAULT: f32 = 10_000.0;

/// Shape and constants of a Llama-family model, the same whichever container
/// they came from.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// `llama` or `mistral`. GGUF files call both `llama`.
    pub architecture: String,
    /// A name for people: the folder's name, or what the GGUF file says.
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
    /// How those frequencies were changed for a longer context, if they were.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the output head is the embedding, so that there is no
    /// `lm_head.weight`.
    pub tied_embeddings: bool,
    /// Whether the query, key, value and output projections have biases.
    pub attention_bias: bool,
    /// Mistral's window: a token sees that many tokens, itself included.
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
    /// Llama 3.1's: low frequencies are divided by `factor`, high ones kept, and
    /// those between blended (the Llama 3 herd of models, 2024).
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

/// How a container spells the fields that [`LlamaConfig::check`] may complain of.
pub(super) struct Spelling {
    pub(super) kv_heads: &'static str,
    pub(super) head_dim: &'static str,
    pub(super) begin_token: &'static str,
    pub(super) end_tokens: &'static str,
}

impl LlamaConfig {
    /// What fields say about each other.
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
                "an even number, as rotary embeddings turn pairs",
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

    /// Everything that the model's arithmetic depends on.
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
