//! The norm and the gate behind a recurrence.

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast};

use super::silu;

/// `rms_norm(x) * silu(gate)` of each head: `x` and `gate` are `[rows, heads * dim]`, `weight` is
/// `[dim]`.
pub(in crate::layers::blocks) fn norm_then_gate(
    x: &Array,
    gate: &Array,
    weight: &Array,
    eps: f32,
) -> Result<Array, Exception> {
    let shape = [x.dim(0), x.dim(1)];
    let heads = x.reshape(&[shape[0], -1, weight.dim(0)])?;
    let normed = fast::rms_norm(&heads, Some(weight), eps)?.reshape(&shape)?;
    normed.multiply(silu(gate)?)
}

/// `rms_norm(x * silu(gate))` of whole rows: `x` and `gate` are `[rows, width]`, `weight` is
/// `[width]`.
pub(in crate::layers::blocks) fn gate_then_norm(
    x: &Array,
    gate: &Array,
    weight: &Array,
    eps: f32,
) -> Result<Array, Exception> {
    fast::rms_norm(x.multiply(silu(gate)?)?, Some(weight), eps)
}
