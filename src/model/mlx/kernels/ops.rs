//! The kernels as operations of an MLX graph, shapes checked.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use super::super::bridge::{Kernel, View, ViewMut, apply};
use super::norm::{self, Norm};
use super::pool::Pool;
use super::silu;

/// `silu(gate) * up`, where the last axis of `gate_up` holds `gate | up`
/// (`[..., 2 * width]` to `[..., width]`), as one operation.
///
/// # Errors
///
/// When the last axis cannot be halved, or as for [`apply`].
pub fn silu_mul(gate_up: &Array, stream: &Stream) -> Result<Array, Exception> {
    let mut shape = gate_up.shape().to_vec();
    match shape.last_mut() {
        Some(last) if *last % 2 == 0 => *last /= 2,
        _ => {
            return Err(Exception::custom(format!(
                "silu_mul: cannot halve {shape:?}"
            )));
        }
    }
    one(apply(SiluMul, &[gate_up], &[&shape], stream)?)
}

/// Root-mean-square normalisation over the last axis of `input` (`[..., width]`),
/// times `weight` (`[width]`) where given, as one operation.
///
/// # Errors
///
/// When `weight` has another shape, or as for [`apply`].
pub fn rms_norm(
    input: &Array,
    weight: Option<&Array>,
    epsilon: f32,
    stream: &Stream,
) -> Result<Array, Exception> {
    check_weight("rms_norm", input, weight)?;
    let inputs: Vec<&Array> = [input].into_iter().chain(weight).collect();
    one(apply(
        RmsNorm { epsilon },
        &inputs,
        &[input.shape()],
        stream,
    )?)
}

/// `input + delta`, and its root-mean-square normalisation over the last axis,
/// times `weight` (`[width]`) where given, as one operation: what stands between
/// any two blocks of a transformer with pre-normalisation.
///
/// # Errors
///
/// When the shapes differ or `weight` has another one, or as for [`apply`].
pub fn add_rms_norm(
    input: &Array,
    delta: &Array,
    weight: Option<&Array>,
    epsilon: f32,
    stream: &Stream,
) -> Result<(Array, Array), Exception> {
    check_weight("add_rms_norm", input, weight)?;
    let shape = input.shape();
    if delta.shape() != shape {
        let found = delta.shape();
        return Err(Exception::custom(format!(
            "add_rms_norm: {shape:?} and {found:?} differ"
        )));
    }
    let inputs: Vec<&Array> = [input, delta].into_iter().chain(weight).collect();
    let outputs = apply(AddRmsNorm { epsilon }, &inputs, &[shape, shape], stream)?;
    let [sum, normed] = <[Array; 2]>::try_from(outputs).expect("two shapes make two outputs");
    Ok((sum, normed))
}

fn check_weight(operation: &str, input: &Array, weight: Option<&Array>) -> Result<(), Exception> {
    let shape = input.shape();
    let Some(&width) = shape.last().filter(|width| **width > 0) else {
        return Err(Exception::custom(format!(
            "{operation}: {shape:?} has no row to normalise"
        )));
    };
    match weight {
        Some(weight) if weight.shape() != [width] => {
            let found = weight.shape();
            Err(Exception::custom(format!(
                "{operation}: the weight's shape is {found:?}, expected [{width}]"
            )))
        }
        _ => Ok(()),
    }
}

fn one(outputs: Vec<Array>) -> Result<Array, Exception> {
    Ok(outputs
        .into_iter()
        .next()
        .expect("one shape makes one output"))
}

struct SiluMul;

impl Kernel for SiluMul {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let width = *outputs[0]
            .shape
            .last()
            .expect("checked when the operation was made");
        silu::silu_mul(Pool::global(), &inputs[0].data, width, outputs[0].data);
    }
}

struct RmsNorm {
    epsilon: f32,
}

impl Kernel for RmsNorm {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let norm = norm_of(&inputs[0], inputs.get(1), self.epsilon);
        norm::rms_norm(Pool::global(), norm, &inputs[0].data, outputs[0].data);
    }
}

struct AddRmsNorm {
    epsilon: f32,
}

impl Kernel for AddRmsNorm {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let norm = norm_of(&inputs[0], inputs.get(2), self.epsilon);
        let [sum, normed] = outputs else {
            unreachable!("made with two outputs")
        };
        let (input, delta) = (&inputs[0].data, &inputs[1].data);
        norm::add_rms_norm(Pool::global(), norm, input, delta, sum.data, normed.data);
    }
}

fn norm_of<'a>(input: &View<'_>, weight: Option<&'a View<'_>>, epsilon: f32) -> Norm<'a> {
    Norm {
        width: *input
            .shape
            .last()
            .expect("checked when the operation was made"),
        weight: weight.map(|weight| &*weight.data),
        epsilon,
    }
}
