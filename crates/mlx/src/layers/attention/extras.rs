//! The additions of families to plain attention: for the kernel, and composed of MLX's operations.

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast, ops};

use super::Shape;
use crate::device::ops::slice;
use motet_kernels::attend as kernel;
use motet_weights::{Attention, PositionScale, QkNorm};

/// The vectors of one layer's attention.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerVectors {
    /// `[head_dim]`, or `[heads * head_dim]` for a norm of the whole row.
    pub(crate) query_norm: Option<Array>,
    /// `[head_dim]`, or `[kv_heads * head_dim]` for a norm of the whole row.
    pub(crate) key_norm: Option<Array>,
    /// `[heads]`.
    pub(crate) sinks: Option<Array>,
}

/// The additions of a family to plain attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extras {
    qk_norm: QkNorm,
    norm_eps: f32,
    clip: Option<f32>,
    position_scale: Option<PositionScale>,
    pub(super) softcap: Option<f32>,
    sinks: bool,
    /// Columns of a packed row after queries, keys and values.
    trailing_columns: usize,
}

impl LayerVectors {
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let norms = self.query_norm.iter().chain(&self.key_norm);
        norms.chain(&self.sinks)
    }
}

impl Extras {
    pub(super) fn of(attention: &Attention, norm_eps: f32) -> Self {
        let gate = usize::from(attention.output_gate);
        Self {
            qk_norm: attention.qk_norm,
            norm_eps,
            clip: attention.clip,
            position_scale: attention.position_scale,
            softcap: attention.softcap,
            sinks: attention.sinks,
            trailing_columns: gate * attention.heads * attention.head_dim,
        }
    }

    /// Whether the scores' softmax is the usual one.
    pub(super) fn has_plain_softmax(&self) -> bool {
        self.softcap.is_none() && !self.sinks
    }

    pub(super) fn for_kernel(&self) -> kernel::Extras {
        let epsilon = self.norm_eps;
        kernel::Extras {
            qk_norm: match self.qk_norm {
                QkNorm::None => kernel::QkNorm::None,
                QkNorm::PerHead => kernel::QkNorm::PerHead { epsilon },
                QkNorm::WholeRow => kernel::QkNorm::WholeRow { epsilon },
            },
            clip: self.clip,
            position_scale: self.position_scale.map(|scale| kernel::PositionScale {
                beta: scale.beta,
                original_tokens: scale.original_tokens,
            }),
            softcap: self.softcap,
            sinks: self.sinks,
            trailing_columns: self.trailing_columns,
        }
    }

    /// Queries, keys and values before the rotation, `[rows, packed heads * head_dim]`:
    /// normalised, clipped, and scaled by `positions`.
    pub(super) fn prepare(
        &self,
        shape: &Shape,
        packed: &Array,
        vectors: &LayerVectors,
        positions: impl Iterator<Item = usize>,
    ) -> Result<Array, Exception> {
        let rows = packed.dim(0);
        let dim = shape.head_dim;
        let part = |from: i32, to: i32| slice(packed, [0, from * dim], [rows, to * dim]);
        let (queries, keys) = (shape.heads, shape.rotated_heads());
        let packed_heads = shape.packed_heads();
        if self.qk_norm == QkNorm::None && self.clip.is_none() && self.position_scale.is_none() {
            return match self.trailing_columns {
                0 => Ok(packed.clone()),
                _ => part(0, packed_heads),
            };
        }
        let query = self.normed(part(0, queries)?, vectors.query_norm.as_ref(), dim)?;
        let key = self.normed(part(queries, keys)?, vectors.key_norm.as_ref(), dim)?;
        let mut parts = [query, key, part(keys, packed_heads)?];
        if let Some(clip) = self.clip {
            for part in &mut parts {
                *part = ops::clip(&*part, (-clip, clip))?;
            }
        }
        if let Some(scale) = self.position_scale {
            let factors: Vec<f32> = positions.map(|position| scale.at(position)).collect();
            let factors = Array::from_slice(&factors, &[rows, 1]).as_dtype(packed.dtype())?;
            parts[0] = parts[0].multiply(factors)?;
        }
        ops::concatenate(&parts, 1)
    }

    fn normed(&self, part: Array, weight: Option<&Array>, dim: i32) -> Result<Array, Exception> {
        let shape = [part.dim(0), part.dim(1)];
        match self.qk_norm {
            QkNorm::None => Ok(part),
            QkNorm::WholeRow => fast::rms_norm(&part, weight, self.norm_eps),
            QkNorm::PerHead => {
                let heads = part.reshape(&[shape[0], shape[1] / dim, dim])?;
                fast::rms_norm(&heads, weight, self.norm_eps)?.reshape(&shape)
            }
        }
    }
}

/// The sinks' column of scores `[kv_heads, rows * queries per key, keys]`: for each row, the logit
/// of its head.
pub(super) fn sink_column(shape: &Shape, sinks: &Array, rows: i32) -> Result<Array, Exception> {
    let shared = shape.queries_per_key();
    let heads = sinks.reshape(&[shape.kv_heads, 1, shared])?;
    ops::broadcast_to(&heads, &[shape.kv_heads, rows / shared, shared])?.reshape(&[
        shape.kv_heads,
        rows,
        1,
    ])
}

/// `cap * tanh(scores / cap)`.
pub(super) fn softcapped(scores: Array, cap: Option<f32>) -> Result<Array, Exception> {
    let Some(cap) = cap else {
        return Ok(scores);
    };
    let cap = Array::from_f32(cap).as_dtype(scores.dtype())?;
    ops::tanh(scores.divide(&cap)?)?.multiply(&cap)
}
