//! Attention by MLX's fused kernel, which GPUs have. It serves spans whose path is only their
//! tail and whose keys are hidden by nothing but causality.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};

use super::{Shape, key_rows, query_rows};
use crate::device::ops::concatenate;
use crate::state::batch_rows::{KvBatch, KvSpan};
use crate::state::layer_state::State;

/// Whether the kernel can compute the whole batch.
pub(super) fn fits(shape: &Shape, batch: &KvBatch) -> bool {
    shape.window.is_none() && batch.segments.is_empty()
}

/// As [`composed::attend`](super::composed::attend).
pub(super) fn attend(
    shape: &Shape,
    batch: &KvBatch,
    queries: &Array,
    tails: &[State],
) -> Result<Array, Exception> {
    let spans = batch.spans.iter().zip(tails);
    let attended = spans
        .map(|(span, tail)| attend_span(shape, span, queries, tail))
        .collect::<Result<_, _>>()?;
    concatenate(attended, 1)
}

fn attend_span(
    shape: &Shape,
    span: &KvSpan,
    queries: &Array,
    tail: &State,
) -> Result<Array, Exception> {
    let (kv_heads, dim) = (shape.kv_heads, shape.head_dim);
    let (rows, shared) = (span.rows.len() as i32, shape.queries_per_key());
    let queries = query_rows(shape, queries, &span.rows)?
        .reshape(&[kv_heads, rows, shared, dim])?
        .swap_axes(1, 2)?
        .reshape(&[1, kv_heads * shared, rows, dim])?;
    let keys = 0..span.held + span.rows.len();
    let causal = (rows > 1).then_some(ScaledDotProductAttentionMask::Causal);
    scaled_dot_product_attention(
        queries,
        key_rows(&tail.keys, &keys)?.expand_dims(0)?,
        key_rows(&tail.values, &keys)?.expand_dims(0)?,
        shape.scale,
        causal,
        None,
    )?
    .reshape(&[kv_heads, shared, rows, dim])?
    .swap_axes(1, 2)?
    .reshape(&[kv_heads, rows * shared, dim])
}
