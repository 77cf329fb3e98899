//! The norm and the gate behind a recurrence as an operation of an MLX graph.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use motet_kernels::gated_norm::{self, GateOrder, GatedNorm};
use motet_kernels::pool::Pool;

use super::check::{Check, Columns, columns};
use super::one;
use crate::device::bridge::{Kernel, View, ViewMut, apply};

/// The form of a norm with a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormOptions {
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether the norm or the gate is applied first.
    pub order: GateOrder,
}

/// Root-mean-square normalisation of groups of numbers, with a gate
/// ([`gated_rms_norm`](gated_norm::gated_rms_norm)). `input` is `[rows, width]`, `gate` has
/// `width` columns, and `weight` is `[group]`, whose length divides `width`.
///
/// # Errors
///
/// When the shapes do not fit, and as for [`apply`].
pub fn gated_rms_norm(
    input: &Array,
    gate: Columns<'_>,
    weight: &Array,
    NormOptions { epsilon, order }: NormOptions,
    stream: &Stream,
) -> Result<Array, Exception> {
    let check = Check("gated_rms_norm");
    let &[rows, width] = input.shape() else {
        return check.reject("input", input, "[rows, width]");
    };
    let (width, group) = (width as usize, weight.size());
    check.vector("weight", weight, group)?;
    if group == 0 || width == 0 || !width.is_multiple_of(group) {
        return check.reject("input", input, &format!("rows in groups of {group}"));
    }
    check.columns("gate", gate, rows as usize, width)?;
    let operation = Gated {
        group,
        epsilon,
        order,
        first: gate.first,
    };
    let inputs = [input, gate.array, weight];
    one(apply(operation, &inputs, &[input.shape()], stream)?)
}

struct Gated {
    group: usize,
    epsilon: f32,
    order: GateOrder,
    first: usize,
}

impl Kernel for Gated {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [input, gate, weight] = inputs else {
            unreachable!("the operation has three inputs")
        };
        let norm = GatedNorm {
            group: self.group,
            weight: &weight.data,
            epsilon: self.epsilon,
            order: self.order,
        };
        let (width, gate) = (input.shape[1], columns(gate, self.first));
        let output = &mut *outputs[0].data;
        gated_norm::gated_rms_norm(Pool::global(), norm, &input.data, width, gate, output);
    }
}
