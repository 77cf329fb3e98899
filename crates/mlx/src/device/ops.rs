//! The operations that a layer is made of.
//!
//! This module holds two kinds of operations. Some are missing from mlx-rs as single operations
//! (slices of any axes, and updates of them). The others are composed of several MLX operations
//! where one kernel of this crate could do the same. An operation costs about three
//! microseconds on the CPU whatever its size, so each must earn its place.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, Stream, fast, ops};

use super::profile::{self, Op};
use crate::device::kernel_ops;
use crate::device::stored_matrix::StoredMatrix;
use motet_kernels::Arithmetic;
use motet_weights::Activation;

/// `array[start[0]..stop[0], start[1]..stop[1], ..]`: a view.
pub(crate) fn slice<const N: usize>(
    array: &Array,
    start: [i32; N],
    stop: [i32; N],
) -> Result<Array, Exception> {
    let strides = [1; N];
    let stream = Stream::thread_local_or_default();
    // SAFETY: the pointers are to arrays of the lengths beside them, and the array and the
    // stream outlive the call.
    made("slice", |result| unsafe {
        mlx_sys::mlx_slice(
            result,
            array.as_ptr(),
            start.as_ptr(),
            N,
            stop.as_ptr(),
            N,
            strides.as_ptr(),
            N,
            stream.as_ptr(),
        )
    })
}

/// `array` with `update` written to `array[start[0]..stop[0], ..]`. Written in place if only
/// the graph still holds `array`; otherwise `array` is copied.
pub(crate) fn slice_update<const N: usize>(
    array: &Array,
    update: &Array,
    start: [i32; N],
    stop: [i32; N],
) -> Result<Array, Exception> {
    let strides = [1; N];
    let stream = Stream::thread_local_or_default();
    // SAFETY: as in `slice`.
    made("slice_update", |result| unsafe {
        mlx_sys::mlx_slice_update(
            result,
            array.as_ptr(),
            update.as_ptr(),
            start.as_ptr(),
            N,
            stop.as_ptr(),
            N,
            strides.as_ptr(),
            N,
            stream.as_ptr(),
        )
    })
}

/// `a ^ b` of whole numbers.
pub(crate) fn bitwise_xor(a: &Array, b: &Array) -> Result<Array, Exception> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: the arrays and the stream outlive the call.
    made("bitwise_xor", |result| unsafe {
        mlx_sys::mlx_bitwise_xor(result, a.as_ptr(), b.as_ptr(), stream.as_ptr())
    })
}

/// `a >> b` of whole numbers.
pub(crate) fn right_shift(a: &Array, b: &Array) -> Result<Array, Exception> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: as in `bitwise_xor`.
    made("right_shift", |result| unsafe {
        mlx_sys::mlx_right_shift(result, a.as_ptr(), b.as_ptr(), stream.as_ptr())
    })
}

/// Tokens `from..to` of `[heads, tokens, dim]`: a view.
pub(crate) fn tokens(array: &Array, from: usize, to: usize) -> Result<Array, Exception> {
    let (heads, dim) = (array.dim(0), array.dim(2));
    slice(array, [0, from as i32, 0], [heads, to as i32, dim])
}

/// `array` (`[heads, tokens, dim]`) with `new` from token `at` on. Written in place where
/// nothing else holds `array`. The result is never a view of `new`.
pub(crate) fn put_tokens(array: &Array, new: &Array, at: usize) -> Result<Array, Exception> {
    let (heads, added, dim) = (new.dim(0), new.dim(1), new.dim(2));
    if added == array.dim(1) {
        // MLX would return `new` itself as the result, with the buffer that it lies in.
        return new.contiguous();
    }
    let (start, stop) = (at as i32, at as i32 + added);
    slice_update(array, new, [0, start, 0], [heads, stop, dim])
}

/// The operations that this crate has kernels for, by kernel where one is available.
#[derive(Debug)]
pub(crate) struct Ops {
    /// The CPU stream that the kernels run on. None to compose MLX's operations.
    pub(crate) kernels: Option<Stream>,
    /// How the kernels compute products with quantised weights.
    pub(crate) arithmetic: Arithmetic,
}

pub(crate) use crate::device::stored_matrix::KERNEL_GRAIN;

/// The largest finite number of half precision.
const F16_MAX: f32 = 65_504.0;

impl Ops {
    /// `x` times the transpose of `matrix` (`[out, in]`), plus `bias`.
    /// `transposed` is that transpose, a view.
    pub(crate) fn linear(
        &self,
        x: &Array,
        matrix: &Array,
        transposed: &Array,
        bias: Option<&Array>,
    ) -> Result<Array, Exception> {
        match (&self.kernels, bias) {
            (Some(stream), _) if (matrix.dim(1) as usize).is_multiple_of(KERNEL_GRAIN) => {
                kernel_ops::linear(x, matrix, bias, stream)
            }
            (_, None) => x.matmul(transposed),
            (_, Some(bias)) => ops::addmm(bias, x, transposed, None, None),
        }
    }

    /// `x` times the transpose of `matrix`, times `factor`, plus `bias`. Needs the kernels: only
    /// they read matrices as their files store them.
    pub(crate) fn stored_linear(
        &self,
        x: &Array,
        matrix: &StoredMatrix,
        factor: Option<f32>,
        bias: Option<&Array>,
    ) -> Result<Array, Exception> {
        let stream = self.kernel_stream()?;
        kernel_ops::stored_linear(x, matrix, factor, bias, self.arithmetic, stream)
    }

    /// Rows `indices` of `matrix`. Needs the kernels.
    pub(crate) fn stored_rows(
        &self,
        matrix: &StoredMatrix,
        indices: &Array,
    ) -> Result<Array, Exception> {
        kernel_ops::stored_rows(matrix, indices, self.kernel_stream()?)
    }

    fn kernel_stream(&self) -> Result<&Stream, Exception> {
        let missing = || Exception::custom("a matrix is kept as stored, but there are no kernels");
        self.kernels.as_ref().ok_or_else(missing)
    }

    /// Root mean square normalisation over the last axis (Zhang and Sennrich
    /// 2019), times `weight` unless the next matrix has it folded in.
    pub(crate) fn rms_norm(
        &self,
        x: &Array,
        weight: Option<&Array>,
        eps: f32,
    ) -> Result<Array, Exception> {
        profile::op(Op::Norm, &[x], || match &self.kernels {
            Some(stream) => kernel_ops::rms_norm(x, weight, eps, stream),
            None => fast::rms_norm(x, weight, eps),
        })
    }

    /// `x + delta`, and its normalisation as by [`rms_norm`](Self::rms_norm). Any two blocks
    /// have this between them.
    pub(crate) fn add_rms_norm(
        &self,
        x: &Array,
        delta: &Array,
        weight: Option<&Array>,
        eps: f32,
    ) -> Result<(Array, Array), Exception> {
        profile::op(Op::AddNorm, &[x, delta], || {
            if let Some(stream) = &self.kernels {
                return kernel_ops::add_rms_norm(x, delta, weight, eps, stream);
            }
            let sum = x.add(delta)?;
            let normed = fast::rms_norm(&sum, weight, eps)?;
            Ok((sum, normed))
        })
    }

    /// The activation of rows `[gate | up]` (SwiGLU and its kin, Shazeer 2020).
    pub(crate) fn gated(
        &self,
        gate_up: &Array,
        activation: Activation,
    ) -> Result<Array, Exception> {
        profile::op(Op::Activation, &[gate_up], || {
            if let Some(stream) = &self.kernels {
                return kernel_ops::gated(gate_up, kernel_activation(activation), stream);
            }
            let axis = gate_up.ndim() as i32 - 1;
            let halves = ops::split_equal(gate_up, 2, axis)?;
            let (gate, up) = (&halves[0], &halves[1]);
            match activation {
                Activation::Silu => ops::sigmoid(gate)?.multiply(gate)?.multiply(up),
                Activation::GeluTanh => gelu_tanh(gate)?.multiply(up),
                Activation::ClampedSwiglu { alpha, limit } => {
                    let number = |number: f32| Array::from_f32(number).as_dtype(up.dtype());
                    let (most, least) = (number(limit)?, number(-limit)?);
                    let gate = ops::minimum(gate, &most)?;
                    let up = ops::minimum(ops::maximum(up, least)?, most)?;
                    let steep = gate.multiply(number(alpha)?)?;
                    let gated = ops::sigmoid(steep)?.multiply(&gate)?;
                    up.add(number(1.0)?)?.multiply(gated)
                }
            }
        })
    }

    /// `x * sigmoid(gate)`, where the gate is the columns of `rows` from `column` on.
    pub(crate) fn sigmoid_mul(
        &self,
        x: &Array,
        rows: &Array,
        column: usize,
    ) -> Result<Array, Exception> {
        profile::op(Op::OutputGate, &[x, rows], || {
            if let Some(stream) = &self.kernels {
                return kernel_ops::sigmoid_mul(x, rows, column, stream);
            }
            let (first, width) = (column as i32, x.dim(1));
            let gate = slice(rows, [0, first], [rows.dim(0), first + width])?;
            ops::sigmoid(&gate)?.multiply(x)
        })
    }

    /// `cap * tanh(x / cap)`.
    pub(crate) fn softcap(&self, x: &Array, cap: f32) -> Result<Array, Exception> {
        profile::op(Op::Softcap, &[x], || {
            if let Some(stream) = &self.kernels {
                return kernel_ops::softcap(x, cap, stream);
            }
            let cap = Array::from_f32(cap);
            ops::tanh(x.divide(&cap)?)?.multiply(&cap)
        })
    }
}

/// The approximation of GELU by a hyperbolic tangent (Hendrycks and Gimpel 2016).
fn gelu_tanh(x: &Array) -> Result<Array, Exception> {
    let number = |number: f32| Array::from_f32(number).as_dtype(x.dtype());
    let cubic = ops::square(x)?.multiply(x)?.multiply(number(0.044_715)?)?;
    let scale = number(std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2)?;
    let share = ops::tanh(x.add(cubic)?.multiply(scale)?)?.add(number(1.0)?)?;
    x.multiply(number(0.5)?)?.multiply(share)
}

/// The activation as this crate's kernels call it.
pub(crate) fn kernel_activation(activation: Activation) -> motet_kernels::gated::Activation {
    match activation {
        Activation::Silu => motet_kernels::gated::Activation::Silu,
        Activation::GeluTanh => motet_kernels::gated::Activation::GeluTanh,
        Activation::ClampedSwiglu { alpha, limit } => {
            motet_kernels::gated::Activation::ClampedSwiglu { alpha, limit }
        }
    }
}

/// The nearest numbers of this type. Numbers beyond the range of half precision become its
/// largest number, as in this crate's kernels.
pub(crate) fn narrowed(array: &Array, dtype: Dtype) -> Result<Array, Exception> {
    if dtype == Dtype::Float16 && array.dtype() != dtype {
        return ops::clip(array, (-F16_MAX, F16_MAX))?.as_dtype(dtype);
    }
    array.as_dtype(dtype)
}

/// Softmax over the last axis, in at least single precision.
pub(crate) fn softmax(scores: &Array) -> Result<Array, Exception> {
    ops::softmax_axis(scores, -1, true)
}

/// The arrays concatenated along `axis`. A single array is returned as it is.
pub(crate) fn concatenate(mut arrays: Vec<Array>, axis: i32) -> Result<Array, Exception> {
    match arrays.len() {
        1 => Ok(arrays.swap_remove(0)),
        _ => ops::concatenate(&arrays, axis),
    }
}

fn made(
    operation: &str,
    call: impl FnOnce(*mut mlx_sys::mlx_array) -> std::ffi::c_int,
) -> Result<Array, Exception> {
    // SAFETY: the call takes nothing; the handle is empty until the call fills it.
    let mut result = unsafe { mlx_sys::mlx_array_new() };
    let status = call(&mut result);
    // SAFETY: `result` is a handle that nothing else owns, empty or filled.
    let array = unsafe { Array::from_ptr(result) };
    match status {
        0 => Ok(array),
        status => Err(Exception::custom(format!(
            "{operation} failed with status {status}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_keep_the_type_of_their_input() {
        let ops = Ops {
            kernels: None,
            arithmetic: Arithmetic::Exact,
        };
        let numbers = Array::from_slice(&[-9.0_f32, 0.5, 9.0, 1.0], &[1, 4]);
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            let gate_up = numbers.as_dtype(dtype).unwrap();
            for activation in [
                Activation::Silu,
                Activation::GeluTanh,
                Activation::ClampedSwiglu {
                    alpha: 1.702,
                    limit: 7.0,
                },
            ] {
                let gated = ops.gated(&gate_up, activation).unwrap();
                assert_eq!(gated.dtype(), dtype, "{activation:?}");
            }
        }
    }
}
