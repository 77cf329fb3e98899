//! A mixture of experts as one operation of an MLX graph, with its shapes checked.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use motet_kernels::experts::{self, ExpertBiases, Experts, Routing};
use motet_kernels::gated::Activation;
use motet_kernels::pool::Pool;

use super::check::Check;
use super::one;
use crate::bridge::{Kernel, View, ViewMut, apply};

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
        for (bias, width) in biases.iter().zip([inner, inner, width]) {
            if bias.shape() != [count as i32, width as i32] {
                return check.reject("a bias", bias, &format!("[{count}, {width}]"));
            }
        }
        inputs.extend(biases);
    }
    one(apply(
        Mixture { options },
        &inputs,
        &[input.shape()],
        stream,
    )?)
}

struct Mixture {
    options: ExpertOptions,
}

impl Kernel for Mixture {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [input, logits, gate, up, down, biases @ ..] = inputs else {
            unreachable!("the operation has an input, logits and three projections")
        };
        let ExpertOptions {
            count,
            per_row,
            inner,
            routing,
            activation,
        } = self.options;
        let biases = match biases {
            [gate, up, down] => Some(ExpertBiases {
                gate: &gate.data,
                up: &up.data,
                down: &down.data,
            }),
            _ => None,
        };
        let layer = Experts {
            count,
            hidden: input.shape[1],
            inner,
            gate: &gate.data,
            up: &up.data,
            down: &down.data,
            biases,
            activation,
        };
        let pool = Pool::global();
        let choice = experts::choose(pool, routing, &logits.data, count, per_row);
        experts::experts(pool, &layer, &input.data, &choice, outputs[0].data);
    }
}
