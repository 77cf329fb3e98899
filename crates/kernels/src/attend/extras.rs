//! Additions of some families to plain attention, and the numbers of a layer that they need.

use super::shape::{Attention, Heads, SpanRange};

/// Additions of a family to plain attention. The default adds nothing and costs nothing.
///
/// The order in a row: [`qk_norm`](Self::qk_norm), [`clip`](Self::clip), the rotation,
/// [`position_scale`](Self::position_scale), the scores, [`softcap`](Self::softcap), the mask, the
/// softmax with its [`sinks`](Self::sinks).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extras {
    /// Normalisation of queries and keys before the rotation.
    pub qk_norm: QkNorm,
    /// Normalised queries and keys, and values, are clamped to plus and minus this number
    /// (OLMoE's `clip_qkv`).
    pub clip: Option<f32>,
    /// A factor of the queries that grows with the position.
    pub position_scale: Option<PositionScale>,
    /// Each scaled score `s` becomes `softcap * tanh(s / softcap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Whether each query head has a logit that joins the softmax and has no value (gpt-oss;
    /// attention sinks, Xiao et al. 2023).
    pub sinks: bool,
    /// Columns of a packed row after queries, keys and values, which attention ignores: the
    /// output gate of Qwen3.5.
    pub trailing_columns: usize,
}

/// Root-mean-square normalisation of queries and keys (Henry et al. 2020; Zhang and Sennrich
/// 2019).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum QkNorm {
    /// None.
    #[default]
    None,
    /// Each head alone, with the same weights `[head dim]` for all heads (Qwen3, Gemma 3).
    PerHead {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// All heads of a row together, with weights `[heads * head dim]` (OLMo 2).
    WholeRow {
        /// Added to the mean square.
        epsilon: f32,
    },
}

/// The factor `1 + beta * ln(1 + floor(position / original_tokens))` of a row's queries (Llama 4,
/// Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// Growth with the logarithm of the position.
    pub beta: f32,
    /// Tokens of the context that the model was first trained with.
    pub original_tokens: usize,
}

/// The inputs of attention in one layer: its rows, and the weights that the plan's
/// [`Extras`] ask for.
#[derive(Clone, Copy, Debug)]
pub struct LayerInputs<'a> {
    /// `[rows, (query heads + 2 * kv heads) * head dim + trailing columns]`, each row
    /// queries | keys | values | trailing columns, before normalisation and rotation.
    pub packed: &'a [f32],
    /// Weights of the queries' normalisation: `[head dim]` or `[query heads * head dim]`.
    pub query_norm: Option<&'a [f32]>,
    /// Weights of the keys' normalisation: `[head dim]` or `[kv heads * head dim]`.
    pub key_norm: Option<&'a [f32]>,
    /// The logit of each query head's sink.
    pub sinks: Option<&'a [f32]>,
}

impl<'a> LayerInputs<'a> {
    /// The inputs of plain attention.
    #[must_use]
    pub fn plain(packed: &'a [f32]) -> LayerInputs<'a> {
        LayerInputs {
            packed,
            query_norm: None,
            key_norm: None,
            sinks: None,
        }
    }

    /// Panics unless the inputs are those that `attention` asks for, for so many rows.
    pub(super) fn check(&self, attention: &Attention, rows: usize) {
        let Heads { query, kv, dim } = attention.heads;
        assert_eq!(self.packed.len(), rows * attention.row_width());
        let norm_weights = match attention.extras.qk_norm {
            QkNorm::None => [None; 2],
            QkNorm::PerHead { .. } => [Some(dim); 2],
            QkNorm::WholeRow { .. } => [query * dim, kv * dim].map(Some),
        };
        let sinks = attention.extras.sinks.then_some(query);
        assert_eq!(
            [self.query_norm, self.key_norm, self.sinks].map(|of| of.map(<[f32]>::len)),
            [norm_weights[0], norm_weights[1], sinks],
            "weights of the queries' norm, of the keys' norm, and sinks"
        );
    }
}

impl Extras {
    /// Panics unless all numbers make sense.
    pub(super) fn check(&self) {
        let is_positive = |number: f32| number > 0.0 && number.is_finite();
        assert!(self.softcap.is_none_or(is_positive), "{self:?}");
        assert!(self.clip.is_none_or(|clip| clip >= 0.0), "{self:?}");
        let known = self
            .position_scale
            .is_none_or(|scale| scale.original_tokens > 0);
        assert!(known, "{self:?}");
    }
}

/// The factor of each row's queries; empty where it is 1 for all.
pub(super) fn position_scales(extras: &Extras, spans: &[SpanRange]) -> Vec<f32> {
    let Some(PositionScale {
        beta,
        original_tokens,
    }) = extras.position_scale
    else {
        return Vec::new();
    };
    let positions = spans.iter().flat_map(|span| {
        let first = span.tail.start + span.tail.tokens;
        first..first + span.rows
    });
    let scale = |position: usize| 1.0 + beta * (1.0 + (position / original_tokens) as f32).ln();
    positions.map(scale).collect()
}
