//! The kernels of recurrent layers as operations of an MLX graph, with their shapes checked.
//!
//! The state of a sequence is a [`Buffer`] that kernels change in place. It is all zeros before
//! the first token.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use motet_kernels::delta_net::{self, DeltaNet, DeltaRows};
use motet_kernels::mamba2::{self, Mamba2};
use motet_kernels::pool::Pool;
use motet_kernels::short_conv::{self, ConvKind, KERNEL_MAX, ShortConv};
use motet_kernels::spans::SpanState;

use super::check::{Check, Columns, columns};
use super::one;
use crate::device::bridge::{Buffer, Kernel, View, ViewMut, apply_in_place};

/// The kernels need vectors of a state to be a multiple of this.
const GRAIN: usize = 16;

/// One sequence's part of a step. The rows of a span follow those of the span before it.
#[derive(Clone, Copy, Debug)]
pub struct SpanBuffer<'a> {
    /// Rows of the span.
    pub rows: usize,
    /// The sequence's recurrent state, of any shape. No two spans of a step share one.
    pub state: &'a Buffer,
}

/// The sizes of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSizes {
    /// Query and key heads; divides `value_heads`.
    pub key_heads: usize,
    /// Value heads. Key head `j` serves the value heads from `j * value_heads / key_heads` on.
    pub value_heads: usize,
    /// Numbers of a query or key head.
    pub key_dim: usize,
    /// Numbers of a value head; a multiple of 16.
    pub value_dim: usize,
}

/// The inputs of a gated delta net.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs<'a> {
    /// Columns `queries | keys | values`, after the convolution.
    pub qkv: Columns<'a>,
    /// `value_heads` columns: the input of the decay.
    pub decay: Columns<'a>,
    /// `value_heads` columns: the input of beta.
    pub beta: Columns<'a>,
    /// `[value_heads]`: the decay rates, at most 0.
    pub decay_rates: &'a Array,
    /// `[value_heads]`: added to the input of the decay.
    pub time_step_bias: &'a Array,
}

/// The sizes and limits of a Mamba 2 layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaSizes {
    /// Heads.
    pub heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Groups of neighbouring heads that share `B` and `C`; divides `heads`.
    pub groups: usize,
    /// Numbers of state for each number of a head; a multiple of 16.
    pub state_size: usize,
    /// Bounds of the time step after softplus.
    pub time_step_limits: (f32, f32),
}

/// The inputs of a Mamba 2 layer.
#[derive(Clone, Copy, Debug)]
pub struct MambaInputs<'a> {
    /// Columns `x | B | C`, after the convolution.
    pub input: Columns<'a>,
    /// `heads` columns.
    pub time_steps: Columns<'a>,
    /// `[heads]`: the decay rates, at most 0.
    pub decay_rates: &'a Array,
    /// `[heads]`: the share of the input that passes by the state.
    pub skip: &'a Array,
    /// `[heads]`: added to the time steps before softplus.
    pub time_step_bias: &'a Array,
}

/// Causal depthwise convolution of each span ([`short_conv`](short_conv::short_conv)), with
/// `weight` (`[kernel, channels]`) and `bias` (`[channels]`) where given.
///
/// The input has `channels` columns, or `3 * channels` where `kind` is [`ConvKind::Gated`]. The
/// state of a span is `[kernel - 1, channels]`. Returns `[rows, channels]`.
///
/// # Errors
///
/// When the shapes do not fit, and as for [`apply_in_place`].
pub fn short_conv(
    input: Columns<'_>,
    weight: &Array,
    bias: Option<&Array>,
    kind: ConvKind,
    spans: &[SpanBuffer<'_>],
    stream: &Stream,
) -> Result<Array, Exception> {
    let check = Check("short_conv");
    let &[kernel, channels] = weight.shape() else {
        return check.reject("weight", weight, "[kernel, channels]");
    };
    let (channels, kernel) = (channels as usize, kernel as usize);
    if !(2..=KERNEL_MAX).contains(&kernel) || channels == 0 {
        return check.reject("weight", weight, "[2 to 8, channels]");
    }
    let width = if kind == ConvKind::Gated { 3 } else { 1 } * channels;
    let rows = rows_of(&check, spans, (kernel - 1) * channels)?;
    check.columns("input", input, rows, width)?;
    if let Some(bias) = bias {
        check.vector("bias", bias, channels)?;
    }
    let operation = Conv {
        kind,
        first: input.first,
        spans: own(spans),
    };
    let inputs: Vec<&Array> = [input.array, weight].into_iter().chain(bias).collect();
    in_place(operation, &inputs, spans, [rows, channels], stream)
}

/// The gated delta rule over each span ([`delta_net`](delta_net::delta_net)).
///
/// The state of a span is `[value_heads, key_dim, value_dim]`. Returns `[rows, value_heads *
/// value_dim]`, before the norm and the gate.
///
/// # Errors
///
/// When the shapes do not fit, and as for [`apply_in_place`].
pub fn delta_net(
    sizes: DeltaSizes,
    inputs: DeltaInputs<'_>,
    spans: &[SpanBuffer<'_>],
    stream: &Stream,
) -> Result<Array, Exception> {
    let check = Check("delta_net");
    let DeltaSizes {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    } = sizes;
    let divides = key_heads > 0 && value_heads.is_multiple_of(key_heads);
    if !divides || value_heads == 0 || value_dim == 0 || !value_dim.is_multiple_of(GRAIN) {
        return Err(check.wrong(&format!(
            "{sizes:?}: key heads that divide the value heads and a value dim that is a multiple \
             of {GRAIN} are expected"
        )));
    }
    let width = value_heads * value_dim;
    let rows = rows_of(&check, spans, width * key_dim)?;
    check.columns("qkv", inputs.qkv, rows, 2 * key_heads * key_dim + width)?;
    check.columns("decay", inputs.decay, rows, value_heads)?;
    check.columns("beta", inputs.beta, rows, value_heads)?;
    check.vector("decay_rates", inputs.decay_rates, value_heads)?;
    check.vector("time_step_bias", inputs.time_step_bias, value_heads)?;
    let operation = Delta {
        sizes,
        first: [inputs.qkv, inputs.decay, inputs.beta].map(|columns| columns.first),
        spans: own(spans),
    };
    let arrays = [
        inputs.qkv.array,
        inputs.decay.array,
        inputs.beta.array,
        inputs.decay_rates,
        inputs.time_step_bias,
    ];
    in_place(operation, &arrays, spans, [rows, width], stream)
}

/// Mamba 2's recurrence over each span ([`mamba2`](mamba2::mamba2)).
///
/// The state of a span is `[heads, head_dim, state_size]`. Returns `[rows, heads * head_dim]`,
/// before the gate and the norm.
///
/// # Errors
///
/// When the shapes do not fit, and as for [`apply_in_place`].
pub fn mamba2(
    sizes: MambaSizes,
    inputs: MambaInputs<'_>,
    spans: &[SpanBuffer<'_>],
    stream: &Stream,
) -> Result<Array, Exception> {
    let check = Check("mamba2");
    let MambaSizes {
        heads,
        head_dim,
        groups,
        state_size,
        time_step_limits,
    } = sizes;
    let divides = groups > 0 && heads.is_multiple_of(groups);
    let ordered = time_step_limits.0 <= time_step_limits.1;
    let whole = state_size > 0 && state_size.is_multiple_of(GRAIN);
    if !divides || !ordered || !whole || heads * head_dim == 0 {
        return Err(check.wrong(&format!(
            "{sizes:?}: groups that divide the heads, a state size that is a multiple of {GRAIN} \
             and ordered limits are expected"
        )));
    }
    let width = heads * head_dim;
    let rows = rows_of(&check, spans, width * state_size)?;
    check.columns("input", inputs.input, rows, width + 2 * groups * state_size)?;
    check.columns("time_steps", inputs.time_steps, rows, heads)?;
    check.vector("decay_rates", inputs.decay_rates, heads)?;
    check.vector("skip", inputs.skip, heads)?;
    check.vector("time_step_bias", inputs.time_step_bias, heads)?;
    let operation = Mamba {
        sizes,
        first: [inputs.input, inputs.time_steps].map(|columns| columns.first),
        spans: own(spans),
    };
    let arrays = [
        inputs.input.array,
        inputs.time_steps.array,
        inputs.decay_rates,
        inputs.skip,
        inputs.time_step_bias,
    ];
    in_place(operation, &arrays, spans, [rows, width], stream)
}

/// The rows of all spans, whose states have `len` numbers each.
fn rows_of(check: &Check, spans: &[SpanBuffer<'_>], len: usize) -> Result<usize, Exception> {
    for span in spans {
        let found = span.state.array();
        if found.size() != len {
            return check.reject("a span's state", found, &format!("{len} numbers"));
        }
    }
    Ok(spans.iter().map(|span| span.rows).sum())
}

/// The rows of each span, for the kernel.
fn own(spans: &[SpanBuffer<'_>]) -> Vec<usize> {
    spans.iter().map(|span| span.rows).collect()
}

fn in_place(
    kernel: impl Kernel,
    inputs: &[&Array],
    spans: &[SpanBuffer<'_>],
    [rows, width]: [usize; 2],
    stream: &Stream,
) -> Result<Array, Exception> {
    let states: Vec<&Buffer> = spans.iter().map(|span| span.state).collect();
    let shape = [rows as i32, width as i32];
    one(apply_in_place(kernel, inputs, &states, &[&shape], stream)?)
}

/// The spans with their states.
fn states<'a>(spans: &[usize], in_place: &'a mut [ViewMut<'_>]) -> Vec<SpanState<'a>> {
    let pairs = spans.iter().zip(in_place);
    let span = |(&rows, state): (&usize, &'a mut ViewMut<'_>)| SpanState {
        rows,
        state: &mut *state.data,
    };
    pairs.map(span).collect()
}

struct Conv {
    kind: ConvKind,
    first: usize,
    spans: Vec<usize>,
}

impl Kernel for Conv {
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [input, weight, bias @ ..] = inputs else {
            unreachable!("the operation has an input and a weight")
        };
        let conv = ShortConv {
            weight: &weight.data,
            kernel: weight.shape[0],
            bias: bias.first().map(|bias| &*bias.data),
            kind: self.kind,
        };
        let mut spans = states(&self.spans, in_place);
        let input = columns(input, self.first);
        let output = &mut *outputs[0].data;
        short_conv::short_conv(Pool::global(), &conv, input, &mut spans, output);
    }
}

struct Delta {
    sizes: DeltaSizes,
    first: [usize; 3],
    spans: Vec<usize>,
}

impl Kernel for Delta {
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [qkv, decay, beta, rates, bias] = inputs else {
            unreachable!("the operation has five inputs")
        };
        let net = DeltaNet {
            key_heads: self.sizes.key_heads,
            value_heads: self.sizes.value_heads,
            key_dim: self.sizes.key_dim,
            value_dim: self.sizes.value_dim,
            decay_rates: &rates.data,
            time_step_bias: &bias.data,
        };
        let rows = DeltaRows {
            qkv: columns(qkv, self.first[0]),
            decay: columns(decay, self.first[1]),
            beta: columns(beta, self.first[2]),
        };
        let mut spans = states(&self.spans, in_place);
        let output = &mut *outputs[0].data;
        delta_net::delta_net(Pool::global(), &net, rows, &mut spans, output);
    }
}

struct Mamba {
    sizes: MambaSizes,
    first: [usize; 2],
    spans: Vec<usize>,
}

impl Kernel for Mamba {
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [input, time_steps, rates, skip, bias] = inputs else {
            unreachable!("the operation has five inputs")
        };
        let mamba = Mamba2 {
            heads: self.sizes.heads,
            head_dim: self.sizes.head_dim,
            groups: self.sizes.groups,
            state_size: self.sizes.state_size,
            decay_rates: &rates.data,
            skip: &skip.data,
            time_step_bias: &bias.data,
            time_step_limits: self.sizes.time_step_limits,
        };
        let mut spans = states(&self.spans, in_place);
        let [input, time_steps] = [
            columns(input, self.first[0]),
            columns(time_steps, self.first[1]),
        ];
        let output = &mut *outputs[0].data;
        mamba2::mamba2(
            Pool::global(),
            &mamba,
            input,
            time_steps,
            &mut spans,
            output,
        );
    }
}
