//! The gated delta rule of one span (Yang, Kautz and Hatamizadeh 2024).

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::{columns, softplus};
use motet_weights::DeltaNet;

/// Added to the sum of squares before the root of a query's or key's length.
const LENGTH_EPS: f32 = 1e-6;

/// A span's inputs: `qkv` after the convolution (`[tokens, channels]`), and the raw inputs of the
/// decay and of the replaced share (`[tokens, value_heads]`).
pub(in crate::layers::blocks) struct Inputs<'a> {
    pub(in crate::layers::blocks) qkv: &'a Array,
    pub(in crate::layers::blocks) decay: &'a Array,
    pub(in crate::layers::blocks) beta: &'a Array,
    /// `[value_heads]`.
    pub(in crate::layers::blocks) decay_rate: &'a Array,
    /// `[value_heads]`.
    pub(in crate::layers::blocks) time_step_bias: &'a Array,
}

/// Runs the recurrence from `state` (`[value_heads, key_dim, value_dim]`). Returns the outputs
/// (`[tokens, value_heads * value_dim]`) and the next state.
pub(in crate::layers::blocks) fn delta_net(
    net: &DeltaNet,
    inputs: &Inputs<'_>,
    state: &Array,
) -> Result<(Array, Array), Exception> {
    let tokens = inputs.qkv.dim(0);
    let keys = net.key_heads * net.key_dim;
    let heads = |from: usize| {
        let columns = columns(inputs.qkv, from, from + keys)?;
        let shape = [tokens, net.key_heads as i32, 1, net.key_dim as i32];
        unit_length(&columns.reshape(&shape)?)
    };
    let spread = |heads: Array| {
        let repeats = (net.value_heads / net.key_heads) as i32;
        let shape = [tokens, net.key_heads as i32, repeats, net.key_dim as i32];
        let all = [tokens, net.value_heads as i32, 1, net.key_dim as i32];
        ops::broadcast_to(&heads, &shape)?.reshape(&all)
    };
    let scale = Array::from_f32((net.key_dim as f32).sqrt().recip());
    let queries = spread(heads(0)?.multiply(scale)?)?;
    let keys_of = spread(heads(keys)?)?;
    let values = columns(inputs.qkv, 2 * keys, net.channels())?;
    let shape = [tokens, net.value_heads as i32, 1, net.value_dim as i32];
    let values = values.reshape(&shape)?;
    let per_head = [tokens, net.value_heads as i32, 1, 1];
    let beta = ops::sigmoid(inputs.beta)?.reshape(&per_head)?;
    let steps = softplus(&inputs.decay.add(inputs.time_step_bias)?)?;
    let decay = ops::exp(steps.multiply(inputs.decay_rate)?)?.reshape(&per_head)?;
    let mut state = state.clone();
    let mut outputs = Vec::with_capacity(tokens as usize);
    for token in 0..tokens {
        let at = |array: &Array| token_of(array, token);
        let (key, value) = (at(&keys_of)?, at(&values)?);
        state = state.multiply(at(&decay)?)?;
        let old = key.matmul(&state)?;
        let change = value.subtract(old)?.multiply(at(&beta)?)?;
        state = state.add(key.swap_axes(1, 2)?.matmul(&change)?)?;
        outputs.push(at(&queries)?.matmul(&state)?);
    }
    let outputs = ops::stack(&outputs, 0)?;
    let width = (net.value_heads * net.value_dim) as i32;
    Ok((outputs.reshape(&[tokens, width])?, state))
}

/// Rows of the last axis at length 1.
fn unit_length(x: &Array) -> Result<Array, Exception> {
    let squares = ops::sum_axis(ops::square(x)?, -1, true)?;
    let length = ops::rsqrt(squares.add(Array::from_f32(LENGTH_EPS))?)?;
    x.multiply(length)
}

/// One token of `[tokens, heads, rows, columns]`: `[heads, rows, columns]`.
pub(super) fn token_of(array: &Array, token: i32) -> Result<Array, Exception> {
    let shape = [array.dim(1), array.dim(2), array.dim(3)];
    let [heads, rows, columns] = shape;
    crate::device::ops::slice(array, [token, 0, 0, 0], [token + 1, heads, rows, columns])?
        .reshape(&shape)
}
