//! A mixture of experts. Every expert computes every row, times a share that is 0 where the row
//! has not chosen it.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{put_along_axis, take_along_axis};
use mlx_rs::{Array, Dtype, ops};

use crate::device::ops::slice;
use crate::layers::blocks::expert_stacks::ExpertStacks;
use motet_weights::{Experts, Routing};

/// The share of each expert in each row, `[rows, experts]`, from the router's logits.
pub(in crate::layers::blocks) fn shares(
    experts: &Experts,
    logits: &Array,
) -> Result<Array, Exception> {
    let logits = logits.as_dtype(Dtype::Float32)?;
    let (rows, count) = (logits.dim(0), logits.dim(1));
    let scores = match experts.routing {
        Routing::SoftmaxAll { .. } => ops::softmax_axis(&logits, -1, true)?,
        Routing::SoftmaxChosen => logits,
    };
    // A stable sort of the negated scores: of equal ones, the lower index comes first.
    let order = ops::argsort_axis(scores.negative()?, -1)?;
    let chosen = slice(&order, [0, 0], [rows, experts.chosen as i32])?;
    let mut shares = take_along_axis(&scores, &chosen, -1)?;
    match experts.routing {
        Routing::SoftmaxAll { normalised: false } => {}
        Routing::SoftmaxAll { normalised: true } => {
            shares = shares.divide(ops::sum_axis(&shares, -1, true)?)?;
        }
        Routing::SoftmaxChosen => shares = ops::softmax_axis(&shares, -1, true)?,
    }
    let zeros = ops::zeros_dtype(&[rows, count], Dtype::Float32)?;
    put_along_axis(&zeros, &chosen, &shares, -1)
}

/// The shares' sum of the experts' outputs, `[rows, hidden]`. `activation` takes rows of
/// `gate | up`.
pub(in crate::layers::blocks) fn mixture(
    x: &Array,
    shares: &Array,
    stacks: &ExpertStacks,
    activation: impl FnOnce(&Array) -> Result<Array, Exception>,
) -> Result<Array, Exception> {
    let [gate_bias, up_bias, down_bias] = match &stacks.biases {
        Some(biases) => biases.each_ref().map(Some),
        None => [None; 3],
    };
    let product = |x: &Array, matrices: &Array, bias: Option<&Array>| {
        let rows = x.matmul(matrices.swap_axes(1, 2)?)?;
        match bias {
            Some(bias) => rows.add(ops::expand_dims(bias, 1)?),
            None => Ok(rows),
        }
    };
    let x = ops::expand_dims(x, 0)?;
    let gate = product(&x, &stacks.gate, gate_bias)?;
    let up = product(&x, &stacks.up, up_bias)?;
    let inner = activation(&ops::concatenate(&[gate, up], 2)?)?;
    let outputs = product(&inner, &stacks.down, down_bias)?;
    let shares = ops::expand_dims(shares.transpose()?, 2)?;
    ops::sum_axis(
        outputs.multiply(shares.as_dtype(outputs.dtype())?)?,
        0,
        false,
    )
}
