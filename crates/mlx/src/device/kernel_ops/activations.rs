//! Activations as operations of an MLX graph.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use super::one;
use crate::device::bridge::{Kernel, View, ViewMut, apply};
use motet_kernels::gated::{self, Activation, Columns};
use motet_kernels::pool::Pool;

/// `silu(gate) * up`, where the last axis of `gate_up` holds `gate | up`
/// (`[..., 2 * width]` to `[..., width]`), as one operation.
///
/// # Errors
///
/// As for [`gated()`].
pub fn silu_mul(gate_up: &Array, stream: &Stream) -> Result<Array, Exception> {
    gated(gate_up, Activation::Silu, stream)
}

/// A gated activation, where the last axis of `gate_up` holds `gate | up`
/// (`[..., 2 * width]` to `[..., width]`), as one operation.
///
/// # Errors
///
/// When the last axis cannot be halved, or as for [`apply`].
pub fn gated(gate_up: &Array, activation: Activation, stream: &Stream) -> Result<Array, Exception> {
    let mut shape = gate_up.shape().to_vec();
    match shape.last_mut() {
        Some(last) if *last % 2 == 0 => *last /= 2,
        _ => {
            return Err(Exception::custom(format!(
                "{activation:?}: cannot halve {shape:?}"
            )));
        }
    }
    one(apply(Gated { activation }, &[gate_up], &[&shape], stream)?)
}

/// `input * sigmoid(gate)`, as one operation. `input` is `[rows, width]`; the gate is `width`
/// columns of `packed` (`[rows, stride]`) from column `first` on, such as the trailing columns of
/// a fused projection.
///
/// # Errors
///
/// When the shapes do not fit, or as for [`apply`].
pub fn sigmoid_mul(
    input: &Array,
    packed: &Array,
    first: usize,
    stream: &Stream,
) -> Result<Array, Exception> {
    let fits = match (input.shape(), packed.shape()) {
        (&[rows, width], &[packed_rows, stride]) => {
            rows == packed_rows && first + width as usize <= stride as usize
        }
        _ => false,
    };
    if !fits {
        let found = [input.shape(), packed.shape()];
        return Err(Exception::custom(format!(
            "sigmoid_mul: {found:?} are not rows and as many rows with gates from column {first} on"
        )));
    }
    let inputs = [input, packed];
    one(apply(
        SigmoidMul { first },
        &inputs,
        &[input.shape()],
        stream,
    )?)
}

/// `cap * tanh(input / cap)` of each number, as one operation.
///
/// # Errors
///
/// When `cap` is not positive and finite, or as for [`apply`].
pub fn softcap(input: &Array, cap: f32, stream: &Stream) -> Result<Array, Exception> {
    if !(cap > 0.0 && cap.is_finite()) {
        return Err(Exception::custom(format!(
            "softcap: the cap is {cap}, expected a positive number"
        )));
    }
    one(apply(Softcap { cap }, &[input], &[input.shape()], stream)?)
}

struct Gated {
    activation: Activation,
}

impl Kernel for Gated {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let width = *outputs[0]
            .shape
            .last()
            .expect("the lengths were checked when the operation was built");
        let gate_up = &inputs[0].data;
        gated::gated(
            Pool::global(),
            self.activation,
            gate_up,
            width,
            outputs[0].data,
        );
    }
}

struct SigmoidMul {
    first: usize,
}

impl Kernel for SigmoidMul {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [input, packed] = inputs else {
            unreachable!("the operation has two inputs")
        };
        let gate = Columns {
            rows: &packed.data,
            stride: packed.shape[1],
            first: self.first,
        };
        let width = input.shape[1];
        gated::sigmoid_mul(Pool::global(), &input.data, gate, width, outputs[0].data);
    }
}

struct Softcap {
    cap: f32,
}

impl Kernel for Softcap {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        gated::softcap(Pool::global(), self.cap, &inputs[0].data, outputs[0].data);
    }
}
