//! The kernels as operations of an MLX graph, with their shapes checked.

mod activations;
mod check;
pub mod experts;
mod gated_norm;
mod layer;
pub(crate) mod layer_end;
pub mod recurrent;
mod stored;
mod turn;

use std::sync::Arc;

use half::{bf16, f16};
use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use crate::device::bridge::{Buffer, Kernel, View, ViewMut, apply, apply_in_place};
use motet_kernels::attend::{
    self, AttendPlan, Cache, CacheMut, CacheNumber, Heads, LayerInputs, QkNorm,
};
use motet_kernels::linear::linear as project;
use motet_kernels::norm::{self, Norm};
use motet_kernels::pool::Pool;
use motet_kernels::{Int8, Rows};
use motet_model::CacheKind;

pub use self::activations::{gated, sigmoid_mul, silu_mul, softcap};
pub use self::check::Columns;
pub use self::gated_norm::{NormOptions, gated_rms_norm};
pub use self::layer::LayerArrays;
pub(crate) use self::stored::{stored_linear, stored_rows};
pub(crate) use self::turn::turn_back;

/// `input` (`[..., width]`) times the transpose of `weight` (`[n, width]`, as
/// checkpoints store it), plus `bias` (`[n]`) where given, as one operation.
///
/// # Errors
///
/// When the shapes do not fit or `width` is not a multiple of 16, or as for
/// [`apply`].
pub fn linear(
    input: &Array,
    weight: &Array,
    bias: Option<&Array>,
    stream: &Stream,
) -> Result<Array, Exception> {
    let mut shape = input.shape().to_vec();
    let (Some(last), &[n, width]) = (shape.last_mut(), weight.shape()) else {
        let found = [input.shape(), weight.shape()];
        return Err(Exception::custom(format!(
            "linear: {found:?} are not rows and a matrix"
        )));
    };
    if *last != width || width == 0 || width % 16 != 0 || bias.is_some_and(|b| b.shape() != [n]) {
        let (input, bias) = (input.shape(), bias.map(Array::shape));
        return Err(Exception::custom(format!(
            "linear: input {input:?}, weight {:?} and bias {bias:?} do not fit, or the width is \
             not a multiple of 16",
            [n, width]
        )));
    }
    *last = n;
    let inputs: Vec<&Array> = [input, weight].into_iter().chain(bias).collect();
    one(apply(Linear, &inputs, &[&shape], stream)?)
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

/// `input + delta`, and its root-mean-square normalisation over the last axis, times `weight`
/// (`[width]`) where given, as one operation. A transformer with pre-normalisation has this
/// between any two blocks.
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

/// [`attend_layer`] for plain attention, which reads nothing but `packed`.
///
/// # Errors
///
/// As for [`attend_layer`].
pub fn attend(
    plan: &Arc<AttendPlan>,
    packed: &Array,
    segments: &[(&Array, &Array)],
    tails: &[(Buffer, Buffer)],
    stream: &Stream,
) -> Result<Array, Exception> {
    let layer = LayerArrays {
        packed,
        query_norm: None,
        key_norm: None,
        sinks: None,
    };
    attend_layer(plan, layer, segments, tails, stream)
}

/// Attention of all rows of a step in one layer, as one operation: normalises and rotates queries
/// and keys, appends keys and values to each span's tail in place, and attends.
///
/// * `layer`: the rows, and the weights that the plan's extras ask for.
/// * `segments`: keys and values of each segment of the plan, in its order, each `[kv heads,
///   tokens or more, head dim]`.
/// * `tails`: keys and values of each span's tail, in the order of the spans, each `[kv heads,
///   capacity, head dim]` with capacity for the span's rows.
///
/// Arrays are `f32`. Where the plan's [`cached`](attend::Attention::cached) is another kind,
/// each `f32` of `segments` and `tails` holds the bits of two or four numbers side by side, so that
/// a head is as wide as [`row_bytes`](CacheKind::row_bytes) says.
///
/// Returns `[rows, query heads * head dim]`. The tails are written even if the result is never
/// read, but only if it is evaluated.
///
/// # Errors
///
/// When a shape does not fit the plan, and as for [`apply`].
pub fn attend_layer(
    plan: &Arc<AttendPlan>,
    layer: LayerArrays<'_>,
    segments: &[(&Array, &Array)],
    tails: &[(Buffer, Buffer)],
    stream: &Stream,
) -> Result<Array, Exception> {
    let packed = layer.packed;
    let Heads { query, kv, dim } = plan.attention().heads;
    let reject = |what: &str, found: &[i32], expected: &[usize]| {
        let why = format!("attend: {what} is {found:?}, expected {expected:?}");
        Err(Exception::custom(why))
    };
    let expected = [plan.rows(), plan.attention().row_width()];
    if !same(packed.shape(), &expected) {
        return reject("the packed projection", packed.shape(), &expected);
    }
    let weights = layer.weights(plan)?;
    if segments.len() != plan.segments() || tails.len() != plan.tail_tokens().len() {
        let found = [segments.len() as i32, tails.len() as i32];
        let expected = [plan.segments(), plan.tail_tokens().len()];
        return reject("the number of segments and tails", &found, &expected);
    }
    let needed = (0..segments.len()).map(|index| plan.segment_tokens(index));
    let caches = segments.iter().copied().zip(needed);
    let tail_caches = tails
        .iter()
        .map(|(keys, values)| (keys.array(), values.array()))
        .zip(plan.tail_tokens());
    let width = plan.attention().cached.row_bytes(dim) / size_of::<f32>();
    for ((keys, values), tokens) in caches.chain(tail_caches) {
        let has_capacity = |shape: &[i32]| {
            same(
                shape,
                &[
                    kv,
                    shape.get(1).map_or(0, |capacity| *capacity as usize),
                    width,
                ],
            ) && shape[1] as usize >= tokens
        };
        if !has_capacity(keys.shape()) || values.shape() != keys.shape() {
            return reject(
                "a cache of keys or values",
                keys.shape(),
                &[kv, tokens, width],
            );
        }
    }
    let pairs = segments.iter().flat_map(|&(keys, values)| [keys, values]);
    let inputs = [packed].into_iter().chain(weights).chain(pairs);
    let inputs: Vec<&Array> = inputs.collect();
    let tails = tails.iter().flat_map(|(keys, values)| [keys, values]);
    let tails: Vec<&Buffer> = tails.collect();
    let shape = [plan.rows() as i32, (query * dim) as i32];
    let kernel = Attend {
        plan: Arc::clone(plan),
    };
    one(apply_in_place(kernel, &inputs, &tails, &[&shape], stream)?)
}

fn same(shape: &[i32], expected: &[usize]) -> bool {
    shape
        .iter()
        .map(|size| *size as usize)
        .eq(expected.iter().copied())
}

struct Attend {
    plan: Arc<AttendPlan>,
}

impl Kernel for Attend {
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        match self.plan.attention().cached {
            CacheKind::F32 => self.run_typed::<f32>(inputs, in_place, outputs),
            CacheKind::Bf16 => self.run_typed::<bf16>(inputs, in_place, outputs),
            CacheKind::F16 => self.run_typed::<f16>(inputs, in_place, outputs),
            CacheKind::Int8 => self.run_typed::<Int8>(inputs, in_place, outputs),
        }
    }
}

impl Attend {
    /// Attends over keys and values of this type.
    fn run_typed<N: CacheNumber>(
        &self,
        inputs: &[View<'_>],
        in_place: &mut [ViewMut<'_>],
        outputs: &mut [ViewMut<'_>],
    ) {
        let [packed, rest @ ..] = inputs else {
            unreachable!("the operation has the packed projection as its input")
        };
        let extras = &self.plan.attention().extras;
        let norms = 2 * usize::from(extras.qk_norm != QkNorm::None);
        let (norms, rest) = rest.split_at(norms);
        let (sinks, segments) = rest.split_at(usize::from(extras.sinks));
        let layer = LayerInputs {
            packed: &packed.data,
            query_norm: norms.first().map(|norm| &*norm.data),
            key_norm: norms.last().map(|norm| &*norm.data),
            sinks: sinks.first().map(|sinks| &*sinks.data),
        };
        let segments: Vec<Cache<'_, N>> = segments
            .chunks_exact(2)
            .map(|pair| Cache {
                keys: bytemuck::cast_slice(&pair[0].data),
                values: bytemuck::cast_slice(&pair[1].data),
                capacity: pair[0].shape[1],
            })
            .collect();
        let mut tails: Vec<CacheMut<'_, N>> = in_place
            .chunks_exact_mut(2)
            .map(|pair| {
                let [keys, values] = pair else {
                    unreachable!("the chunks have two elements")
                };
                CacheMut {
                    capacity: keys.shape[1],
                    keys: bytemuck::cast_slice_mut(keys.data),
                    values: bytemuck::cast_slice_mut(values.data),
                }
            })
            .collect();
        let output = &mut outputs[0].data;
        attend::attend(
            Pool::global(),
            &self.plan,
            layer,
            &segments,
            &mut tails,
            output,
        );
    }
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

struct Linear;

impl Kernel for Linear {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [input, weight, bias @ ..] = inputs else {
            unreachable!("the operation has an input and a weight")
        };
        let bias = bias.first().map(|bias| &*bias.data);
        let width = weight.shape[1];
        let output = &mut outputs[0].data;
        project(
            Pool::global(),
            &input.data,
            &[Rows::from_f32(&weight.data, width)],
            bias,
            output,
        );
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
            unreachable!("the operation has two outputs")
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
            .expect("the lengths were checked when the operation was built"),
        weight: weight.map(|weight| &*weight.data),
        epsilon,
    }
}
