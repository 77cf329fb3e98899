//! The operations that a layer is made of.
//!
//! Two things are gathered here: what mlx-rs does not offer as one operation
//! (slices of any axes, and updates of them), and what this backend composes of
//! several operations and a kernel of its own could do in one. An operation costs
//! about three microseconds on the CPU whatever its size, so each must earn its
//! place.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, fast, ops};

/// `array[start[0]..stop[0], start[1]..stop[1], ..]`: a view.
pub(super) fn slice<const N: usize>(
    array: &Array,
    start: [i32; N],
    stop: [i32; N],
) -> Result<Array, Exception> {
    let strides = [1; N];
    let stream = Stream::thread_local_or_default();
    // SAFETY: the pointers are to arrays of the lengths that stand beside them,
    // and the array and the stream outlive the call.
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

/// `array` with `update` written to `array[start[0]..stop[0], ..]`. Written in
/// place when the graph is all that still holds `array`; else `array` is copied.
pub(super) fn slice_update<const N: usize>(
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

/// Root mean square normalisation over the last axis (Zhang and Sennrich 2019),
/// scaled by `weight` unless the next matrix has it folded in.
pub(super) fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array, Exception> {
    fast::rms_norm(x, weight, eps)
}

/// `silu(gate) * up` (SwiGLU, Shazeer 2020) of rows `[gate | up]`.
pub(super) fn silu_mul(gate_up: &Array) -> Result<Array, Exception> {
    let (rows, width) = (gate_up.dim(0), gate_up.dim(1));
    let gate = slice(gate_up, [0, 0], [rows, width / 2])?;
    let up = slice(gate_up, [0, width / 2], [rows, width])?;
    ops::sigmoid(&gate)?.multiply(&gate)?.multiply(&up)
}

/// Softmax over the last axis, in at least single precision.
pub(super) fn softmax(scores: &Array) -> Result<Array, Exception> {
    ops::softmax_axis(scores, -1, true)
}

/// The arrays one after another along `axis`; a single one as it is.
pub(super) fn concatenate(mut arrays: Vec<Array>, axis: i32) -> Result<Array, Exception> {
    match arrays.len() {
        1 => Ok(arrays.swap_remove(0)),
        _ => ops::concatenate(&arrays, axis),
    }
}

fn made(
    operation: &str,
    call: impl FnOnce(*mut mlx_sys::mlx_array) -> std::ffi::c_int,
) -> Result<Array, Exception> {
    // SAFETY: takes nothing; the handle is empty until the call fills it.
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
