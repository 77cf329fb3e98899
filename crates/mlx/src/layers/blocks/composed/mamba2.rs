//! Mamba 2's recurrence of one span (Dao and Gu 2024).

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::{columns, softplus};
use motet_weights::Mamba2;

/// A span's inputs: `heads | B | C` after the convolution (`[tokens, channels]`), and the raw time
/// steps (`[tokens, heads]`). The rest is `[heads]`.
pub(in crate::layers::blocks) struct Inputs<'a> {
    pub(in crate::layers::blocks) xbc: &'a Array,
    pub(in crate::layers::blocks) time_steps: &'a Array,
    pub(in crate::layers::blocks) time_step_bias: &'a Array,
    pub(in crate::layers::blocks) decay_rate: &'a Array,
    pub(in crate::layers::blocks) skip: &'a Array,
}

/// Runs the recurrence from `state` (`[heads, head_dim, state_size]`). Returns the outputs
/// (`[tokens, heads * head_dim]`) and the next state.
pub(in crate::layers::blocks) fn mamba2(
    net: &Mamba2,
    inputs: &Inputs<'_>,
    state: &Array,
) -> Result<(Array, Array), Exception> {
    let tokens = inputs.xbc.dim(0);
    let (heads, dim, size) = (net.heads as i32, net.head_dim as i32, net.state_size as i32);
    let (inner, shared) = (net.inner(), net.groups * net.state_size);
    let x = columns(inputs.xbc, 0, inner)?.reshape(&[tokens, heads, dim, 1])?;
    let of_groups = |from: usize| {
        let groups = net.groups as i32;
        let numbers = columns(inputs.xbc, from, from + shared)?;
        let numbers = numbers.reshape(&[tokens, groups, 1, size])?;
        ops::broadcast_to(&numbers, &[tokens, groups, heads / groups, size])?
            .reshape(&[tokens, heads, 1, size])
    };
    let (b, c) = (of_groups(inner)?, of_groups(inner + shared)?);
    let steps = softplus(&inputs.time_steps.add(inputs.time_step_bias)?)?;
    let steps = ops::clip(&steps, net.time_step)?;
    let per_head = [tokens, heads, 1, 1];
    let decay = ops::exp(steps.multiply(inputs.decay_rate)?)?.reshape(&per_head)?;
    let inputs_of = x.multiply(steps.reshape(&per_head)?)?.multiply(&b)?;
    let mut state = state.clone();
    let mut outputs = Vec::with_capacity(tokens as usize);
    for token in 0..tokens {
        let at = |array: &Array| super::delta_net::token_of(array, token);
        state = state.multiply(at(&decay)?)?.add(at(&inputs_of)?)?;
        outputs.push(state.matmul(at(&c)?.swap_axes(1, 2)?)?);
    }
    let passed = x.multiply(inputs.skip.reshape(&[1, heads, 1, 1])?)?;
    let outputs = ops::stack(&outputs, 0)?.add(passed)?;
    Ok((outputs.reshape(&[tokens, inner as i32])?, state))
}
