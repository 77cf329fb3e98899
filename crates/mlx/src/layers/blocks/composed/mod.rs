//! The blocks composed of MLX's operations: for GPUs, and as the reference of the kernels.
//!
//! Recurrent blocks compute one span after another, and within a span one token after another.

pub(super) mod delta_net;
pub(super) mod experts;
pub(super) mod gated_norm;
pub(super) mod mamba2;
pub(super) mod short_conv;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

/// `x * sigmoid(x)`.
pub(super) fn silu(x: &Array) -> Result<Array, Exception> {
    ops::sigmoid(x)?.multiply(x)
}

/// `ln(1 + e^x)`.
pub(super) fn softplus(x: &Array) -> Result<Array, Exception> {
    ops::logaddexp(x, Array::from_f32(0.0))
}

/// Columns `from..to` of `[rows, columns]`, in single precision.
pub(super) fn columns(rows: &Array, from: usize, to: usize) -> Result<Array, Exception> {
    crate::device::ops::slice(rows, [0, from as i32], [rows.dim(0), to as i32])?
        .as_dtype(Dtype::Float32)
}

/// Rows `from..to` of `[rows, columns]`: a view.
pub(super) fn rows(matrix: &Array, from: usize, to: usize) -> Result<Array, Exception> {
    crate::device::ops::slice(matrix, [from as i32, 0], [to as i32, matrix.dim(1)])
}
