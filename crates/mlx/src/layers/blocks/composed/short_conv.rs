//! The causal depthwise convolution of one span.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::rows;

/// Convolves the span's `input` (`[tokens, channels]`) with `weight` (`[kernel, channels]`), after
/// the last `kernel - 1` inputs of the past, `state` (`[kernel - 1, channels]`). Returns the
/// outputs and the next state.
pub(in crate::layers::blocks) fn short_conv(
    input: &Array,
    state: &Array,
    weight: &Array,
    bias: Option<&Array>,
) -> Result<(Array, Array), Exception> {
    let (tokens, kernel) = (input.dim(0) as usize, weight.dim(0) as usize);
    let all = ops::concatenate(&[state, input], 0)?;
    let mut sum: Option<Array> = bias.cloned();
    for offset in 0..kernel {
        let inputs = rows(&all, offset, offset + tokens)?;
        let term = inputs.multiply(rows(weight, offset, offset + 1)?)?;
        sum = Some(match sum {
            Some(sum) => sum.add(term)?,
            None => term,
        });
    }
    let next = rows(&all, tokens, tokens + kernel - 1)?;
    Ok((sum.expect("a kernel has a column"), next))
}
