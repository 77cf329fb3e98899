//! Softmax attention with everything that varies between families.

use super::Rope;

/// Grouped-query attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Dimensions of one head, an even number. `heads * head_dim` need not be the hidden size.
    pub head_dim: usize,
    /// Factor of the scores; usually `head_dim^-0.5`.
    pub scale: f32,
    /// A token sees this many tokens, itself included. `None` means all.
    pub window: Option<usize>,
    /// Rotary embeddings of queries and keys. `None` if positions are not encoded.
    pub rope: Option<Rope>,
    /// The projections with a bias.
    pub biases: Biases,
    /// The norm of queries and keys, before their rotation.
    pub qk_norm: QkNorm,
    /// Whether the output of each head is multiplied by `sigmoid` of a gate, number by number.
    /// The gate is a fourth projection, as wide as the queries.
    pub output_gate: bool,
    /// Whether each head has a logit of its own that joins the softmax's sum ("sink").
    pub sinks: bool,
    /// Scores `s` become `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// Queries, keys and values are clamped to at most this absolute value.
    pub clip: Option<f32>,
    /// A factor of the queries that grows with the position.
    pub position_scale: Option<PositionScale>,
}

/// Projections of attention that have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// None of them.
    None,
    /// Queries, keys and values.
    QueryKeyValue,
    /// Queries, keys, values and the output.
    All,
}

/// The root-mean-square norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Over each head; weights of `head_dim` numbers.
    PerHead,
    /// Over all heads together; weights of `heads * head_dim` and `kv_heads * head_dim` numbers.
    WholeRow,
}

/// Queries at position `p` are multiplied by `1 + beta * ln(1 + floor(p / original_tokens))`
/// (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// Factor of the logarithm.
    pub beta: f32,
    /// Context of the training before its extension, in tokens.
    pub original_tokens: usize,
}

impl PositionScale {
    /// The factor at `position`.
    #[must_use]
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.beta * (1.0 + (position / self.original_tokens) as f32).ln()
    }
}

impl Attention {
    /// Attention as in Llama: full, half-split rotation of whole heads, no bias.
    #[must_use]
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize, rope: Rope) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).sqrt().recip(),
            window: None,
            rope: Some(rope),
            biases: Biases::None,
            qk_norm: QkNorm::None,
            output_gate: false,
            sinks: false,
            softcap: None,
            clip: None,
            position_scale: None,
        }
    }
}
