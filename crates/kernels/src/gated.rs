//! Gated activations: those of feed-forward layers (Shazeer 2020), and the output gate of
//! attention.

use motet_formats::simd::{InstructionSet, Job, Simd, dispatch, dispatch_on, tanh};

use super::pool::Pool;

/// Numbers that one thread takes at a time, enough that the cost of dispatching is negligible.
const CHUNK: usize = 16 << 10;

/// The activation of a gated feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up` (SwiGLU): Llama, Qwen, Mistral and most others.
    Silu,
    /// `gelu(gate) * up` (GeGLU) with the approximation of GELU by a hyperbolic tangent
    /// (Hendrycks and Gimpel 2016): Gemma.
    GeluTanh,
    /// `(up + 1) * gate * sigmoid(alpha * gate)`, where `gate` is at most `limit` and `up` is
    /// clamped to plus and minus `limit`: gpt-oss, with 1.702 and 7.
    ClampedSwiglu {
        /// Factor of the gate in the sigmoid.
        alpha: f32,
        /// Bound of gate and up.
        limit: f32,
    },
}

/// Columns of rows that are wider.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// The rows.
    pub rows: &'a [f32],
    /// Numbers in a row.
    pub stride: usize,
    /// The first of the columns.
    pub first: usize,
}

/// `activation` of each row. A row of `gate_up` is `gate | up`, each of `width` numbers,
/// and a row of `output` has `width`.
///
/// # Panics
///
/// When the lengths do not fit each other.
pub fn gated(
    pool: &Pool,
    activation: Activation,
    gate_up: &[f32],
    width: usize,
    output: &mut [f32],
) {
    match activation {
        Activation::Silu => run(pool, Silu, gate_up, width, output),
        Activation::GeluTanh => run(pool, GeluTanh, gate_up, width, output),
        Activation::ClampedSwiglu { alpha, limit } => {
            run(pool, ClampedSwiglu { alpha, limit }, gate_up, width, output);
        }
    }
}

/// As [`gated`], on this thread and with these instructions.
pub(crate) fn gated_on(
    set: InstructionSet,
    activation: Activation,
    gate_up: &[f32],
    width: usize,
    output: &mut [f32],
) {
    fn on<G: Gate>(
        set: InstructionSet,
        gate: G,
        gate_up: &[f32],
        width: usize,
        output: &mut [f32],
    ) {
        assert_eq!(gate_up.len(), 2 * output.len());
        let rows = Rows {
            gate,
            gate_up,
            width,
            output,
        };
        dispatch_on(set, rows);
    }
    match activation {
        Activation::Silu => on(set, Silu, gate_up, width, output),
        Activation::GeluTanh => on(set, GeluTanh, gate_up, width, output),
        Activation::ClampedSwiglu { alpha, limit } => {
            on(set, ClampedSwiglu { alpha, limit }, gate_up, width, output);
        }
    }
}

/// `input * sigmoid(gate)`: the output gate of attention (Qiu et al. 2025, "Gated Attention for
/// Large Language Models"). `input` and `output` are `[rows, width]`; `gate` has `width` columns
/// for each row.
///
/// # Panics
///
/// When the lengths do not fit each other.
pub fn sigmoid_mul(
    pool: &Pool,
    input: &[f32],
    gate: Columns<'_>,
    width: usize,
    output: &mut [f32],
) {
    assert_eq!(input.len(), output.len());
    assert_eq!(output.len() % width.max(1), 0);
    if output.is_empty() {
        return;
    }
    assert!(gate.first + width <= gate.stride, "{} columns", gate.stride);
    assert_eq!(gate.rows.len(), output.len() / width * gate.stride);
    let rows = (CHUNK / width).max(1);
    pool.for_each_chunk([output], [rows * width], |index, [output]| {
        let input = &input[index * rows * width..][..output.len()];
        let gate = Columns {
            rows: &gate.rows[index * rows * gate.stride..],
            ..gate
        };
        dispatch(Sigmoids {
            input,
            gate,
            width,
            output,
        });
    });
}

/// `cap * tanh(input / cap)` of each number: the softcap of Gemma 2's logits.
///
/// # Panics
///
/// When the lengths differ.
pub fn softcap(pool: &Pool, cap: f32, input: &[f32], output: &mut [f32]) {
    assert_eq!(input.len(), output.len());
    pool.for_each_chunk([output], [CHUNK], |index, [output]| {
        let input = &input[index * CHUNK..][..output.len()];
        dispatch(Softcap { cap, input, output });
    });
}

/// A gated activation, chosen when a kernel is compiled.
pub(crate) trait Gate: Copy + Sync {
    /// The activation of gates and ups, lane by lane.
    fn apply<S: Simd>(self, simd: S, gate: S::Vector, up: S::Vector) -> S::Vector;
}

#[derive(Clone, Copy, Debug)]
struct Silu;

#[derive(Clone, Copy, Debug)]
struct GeluTanh;

#[derive(Clone, Copy, Debug)]
struct ClampedSwiglu {
    alpha: f32,
    limit: f32,
}

impl Gate for Silu {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, gate: S::Vector, up: S::Vector) -> S::Vector {
        simd.div(simd.mul(gate, up), sigmoid_denominator(simd, gate))
    }
}

impl Gate for GeluTanh {
    /// With `1 + tanh(x) = 2 * sigmoid(2 x)`, which loses no digits where the tangent is near -1.
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, gate: S::Vector, up: S::Vector) -> S::Vector {
        // sqrt(2 / pi), twice.
        const FACTOR: f32 = 2.0 * 0.797_884_6;
        const CUBIC: f32 = FACTOR * 0.044_715;
        let factor = simd.mul_add(simd.mul(gate, gate), simd.splat(CUBIC), simd.splat(FACTOR));
        let gelu = simd.div(gate, sigmoid_denominator(simd, simd.mul(gate, factor)));
        simd.mul(gelu, up)
    }
}

impl Gate for ClampedSwiglu {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, gate: S::Vector, up: S::Vector) -> S::Vector {
        // In this order NaN stays NaN.
        let [most, least] = [self.limit, -self.limit].map(|limit| simd.splat(limit));
        let gate = simd.min(most, gate);
        let up = simd.min(most, simd.max(least, up));
        let denominator = sigmoid_denominator(simd, simd.mul(gate, simd.splat(self.alpha)));
        simd.mul(simd.add(up, simd.splat(1.0)), simd.div(gate, denominator))
    }
}

/// The denominator of the logistic function: `1 + e^-x`.
#[inline(always)]
fn sigmoid_denominator<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let one = simd.splat(1.0);
    simd.add(one, simd.exp(simd.sub(simd.splat(0.0), x)))
}

fn run<G: Gate>(pool: &Pool, gate: G, gate_up: &[f32], width: usize, output: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * output.len());
    assert_eq!(output.len() % width.max(1), 0);
    if output.is_empty() {
        return;
    }
    let rows = (CHUNK / width).max(1);
    pool.for_each_chunk([output], [rows * width], |index, [output]| {
        let gate_up = &gate_up[index * rows * 2 * width..][..2 * output.len()];
        dispatch(Rows {
            gate,
            gate_up,
            width,
            output,
        });
    });
}

struct Rows<'a, G> {
    gate: G,
    gate_up: &'a [f32],
    width: usize,
    output: &'a mut [f32],
}

impl<G: Gate> Job for Rows<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.width;
        let rows = self.gate_up.chunks_exact(2 * width);
        for (gate_up, output) in rows.zip(self.output.chunks_exact_mut(width)) {
            let (gate, up) = gate_up.split_at(width);
            let parts = gate.chunks(S::LANES).zip(up.chunks(S::LANES));
            for ((gate, up), output) in parts.zip(output.chunks_mut(S::LANES)) {
                let (gate, up) = (simd.load_part(gate), simd.load_part(up));
                simd.store_part(output, self.gate.apply(simd, gate, up));
            }
        }
    }
}

struct Sigmoids<'a> {
    input: &'a [f32],
    gate: Columns<'a>,
    width: usize,
    output: &'a mut [f32],
}

impl Job for Sigmoids<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.input.chunks_exact(self.width);
        let gates = self.gate.rows.chunks_exact(self.gate.stride);
        let outputs = self.output.chunks_exact_mut(self.width);
        for ((input, gate), output) in rows.zip(gates).zip(outputs) {
            let gate = &gate[self.gate.first..][..self.width];
            let parts = input.chunks(S::LANES).zip(gate.chunks(S::LANES));
            for ((x, gate), output) in parts.zip(output.chunks_mut(S::LANES)) {
                let (x, gate) = (simd.load_part(x), simd.load_part(gate));
                simd.store_part(output, simd.div(x, sigmoid_denominator(simd, gate)));
            }
        }
    }
}

struct Softcap<'a> {
    cap: f32,
    input: &'a [f32],
    output: &'a mut [f32],
}

impl Job for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let cap = simd.splat(self.cap);
        let parts = self.input.chunks(S::LANES);
        for (x, output) in parts.zip(self.output.chunks_mut(S::LANES)) {
            let fraction = simd.div(simd.load_part(x), cap);
            simd.store_part(output, simd.mul(cap, tanh(simd, fraction)));
        }
    }
}

#[cfg(test)]
mod tests;
