//! A mixture of experts as one operation of an MLX graph, with its shapes checked.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use motet_kernels::experts::{self, ExpertBiases, Experts, Routing};
use motet_kernels::gated::Activation;
use motet_kernels::pool::Pool;
use motet_kernels::{Arithmetic, Rows};

use super::check::Check;
use super::one;
use crate::device::bridge::{Kernel, View, ViewMut, apply};
use crate::device::stored_matrix::StoredMatrix;

/// The kernel needs widths that are a multiple of this.
const GRAIN: usize = 16;

/// The weights of the experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertWeights<'a> {
    /// `[experts, inner, hidden]`: the gates.
    pub gate: &'a Array,
    /// `[experts, inner, hidden]`: the projections to the numbers that are gated.
    pub up: &'a Array,
    /// `[experts, hidden, inner]`: the last projections.
    pub down: &'a Array,
    /// `[experts, inner]`, `[experts, inner]` and `[experts, hidden]`: the biases of gate, up and
    /// down.
    pub biases: Option<[&'a Array; 3]>,
}

/// The weights of the experts, as their files store them.
#[derive(Clone, Debug)]
pub(crate) struct StoredExperts<'a> {
    /// Gate, up and down, as in [`ExpertWeights`], with the rows of all experts stacked.
    pub(crate) matrices: [StoredMatrix; 3],
    /// As in [`ExpertWeights`].
    pub(crate) biases: Option<[&'a Array; 3]>,
    /// Factor of the output.
    pub(crate) output_scale: f32,
    /// How the products are computed.
    pub(crate) arithmetic: Arithmetic,
}

/// How rows use the experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertOptions {
    /// Number of experts.
    pub count: usize,
    /// Experts that each row uses.
    pub per_row: usize,
    /// Numbers between the projections; a multiple of 16.
    pub inner: usize,
    /// How the router's logits become shares.
    pub routing: Routing,
    /// The function between the projections.
    pub activation: Activation,
}

/// Sends each row of `input` (`[rows, hidden]`) through the experts that the router's `logits`
/// (`[rows, experts]`) choose, and adds their outputs times their shares
/// ([`experts`](experts::experts)). Returns `[rows, hidden]`.
///
/// # Errors
///
/// When the shapes do not fit, `hidden` or `inner` is not a multiple of 16, or more experts are
/// chosen than there are, and as for [`apply`].
pub fn experts(
    options: ExpertOptions,
    input: &Array,
    logits: &Array,
    weights: ExpertWeights<'_>,
    stream: &Stream,
) -> Result<Array, Exception> {
    let check = Check("experts");
    let width = check_rows(&check, options, input, logits)?;
    let (count, inner) = (options.count, options.inner);
    let mut inputs = vec![input, logits];
    for (what, matrices, rows, width) in [
        ("gate", weights.gate, inner, width),
        ("up", weights.up, inner, width),
        ("down", weights.down, width, inner),
    ] {
        let shape = [count, rows, width].map(|size| size as i32);
        if matrices.shape() != shape {
            return check.reject(what, matrices, &format!("{shape:?}"));
        }
        inputs.push(matrices);
    }
    if let Some(biases) = weights.biases {
        check_biases(&check, options, biases, width)?;
        inputs.extend(biases);
    }
    let kernel = Mixture {
        options,
        stored: None,
        output_scale: 1.0,
        arithmetic: Arithmetic::Exact,
    };
    one(apply(kernel, &inputs, &[input.shape()], stream)?)
}

/// [`experts`] whose matrices are as their files store them.
///
/// # Errors
///
/// As for [`experts`].
pub(crate) fn stored_experts(
    options: ExpertOptions,
    input: &Array,
    logits: &Array,
    weights: StoredExperts<'_>,
    stream: &Stream,
) -> Result<Array, Exception> {
    let check = Check("stored_experts");
    let width = check_rows(&check, options, input, logits)?;
    let (count, inner) = (options.count, options.inner);
    for (matrix, expected) in weights.matrices.iter().zip([
        [count * inner, width],
        [count * inner, width],
        [count * width, inner],
    ]) {
        let found = [matrix.rows(), matrix.columns()];
        if found != expected {
            return Err(check.wrong(&format!("a matrix is {found:?}, expected {expected:?}")));
        }
    }
    let mut inputs = vec![input, logits];
    if let Some(biases) = weights.biases {
        check_biases(&check, options, biases, width)?;
        inputs.extend(biases);
    }
    let kernel = Mixture {
        options,
        stored: Some(weights.matrices),
        output_scale: weights.output_scale,
        arithmetic: weights.arithmetic,
    };
    one(apply(kernel, &inputs, &[input.shape()], stream)?)
}

/// Checks rows and logits, and returns the width of a row.
fn check_rows(
    check: &Check,
    options: ExpertOptions,
    input: &Array,
    logits: &Array,
) -> Result<usize, Exception> {
    let ExpertOptions {
        count,
        per_row,
        inner,
        ..
    } = options;
    let &[rows, hidden] = input.shape() else {
        return check.reject("input", input, "[rows, hidden]");
    };
    let width = hidden as usize;
    let whole = |width: usize| width > 0 && width.is_multiple_of(GRAIN);
    if !whole(width) || !whole(inner) {
        return Err(check.wrong(&format!(
            "a hidden width of {width} and an inner width of {inner}: multiples of {GRAIN} expected"
        )));
    }
    if !(1..=count).contains(&per_row) {
        return Err(check.wrong(&format!("a row uses {per_row} of {count} experts")));
    }
    if logits.shape() != [rows, count as i32] {
        return check.reject("logits", logits, &format!("[{rows}, {count}]"));
    }
    Ok(width)
}

fn check_biases(
    check: &Check,
    options: ExpertOptions,
    biases: [&Array; 3],
    width: usize,
) -> Result<(), Exception> {
    let ExpertOptions { count, inner, .. } = options;
    for (bias, width) in biases.iter().zip([inner, inner, width]) {
        if bias.shape() != [count as i32, width as i32] {
            return check.reject("a bias", bias, &format!("[{count}, {width}]"));
        }
    }
    Ok(())
}

struct Mixture {
    options: ExpertOptions,
    /// Gate, up and down. None if they are inputs.
    stored: Option<[StoredMatrix; 3]>,
    /// Factor of the output.
    output_scale: f32,
    arithmetic: Arithmetic,
}

impl Kernel for Mixture {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [input, logits, weights @ ..] = inputs else {
            unreachable!("the operation has an input and logits")
        };
        let width = input.shape[1];
        let inner = self.options.inner;
        let (matrices, biases) = match &self.stored {
            Some(matrices) => (matrices.each_ref().map(StoredMatrix::parts), weights),
            None => {
                let (matrices, biases) = weights.split_at(3);
                let widths = [width, width, inner];
                let rows = |at: usize| vec![Rows::from_f32(&matrices[at].data, widths[at])];
                ([rows(0), rows(1), rows(2)], biases)
            }
        };
        let [gate, up, down] = &matrices;
        let biases = match biases {
            [gate, up, down] => Some(ExpertBiases {
                gate: &gate.data,
                up: &up.data,
                down: &down.data,
            }),
            _ => None,
        };
        let ExpertOptions {
            count,
            per_row,
            routing,
            activation,
            ..
        } = self.options;
        let layer = Experts {
            count,
            hidden: width,
            inner,
            gate,
            up,
            down,
            biases,
            activation,
            arithmetic: self.arithmetic,
        };
        let pool = Pool::global();
        let choice = experts::choose(pool, routing, &logits.data, count, per_row);
        let output = &mut *outputs[0].data;
        experts::experts(pool, &layer, &input.data, &choice, output);
        if self.output_scale != 1.0 {
            output.iter_mut().for_each(|y| *y *= self.output_scale);
        }
    }
}
