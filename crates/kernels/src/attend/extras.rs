//! Additions of some families to plain attention.

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
