//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024), as in Qwen3-Next and Qwen3.5.
//!
//! A head keeps a matrix `S` (`[key dim, value dim]`) that maps keys to values. Each token lets
//! the matrix decay, looks up the value of its key, and replaces a share `beta` of it by its own:
//!
//! ```text
//! S = e^(A * softplus(a + dt_bias)) * S
//! S = S + k (beta * (v - S'k))'            beta = sigmoid(b)
//! o = S'q                                  q, k of unit length, q / sqrt(key dim)
//! ```
//!
//! The recurrence is computed token by token, also for long prompts. On a CPU it is a small part
//! of a step, and unlike the form in chunks its result does not depend on how a sequence was cut
//! into steps.

use std::ops::Range;

use motet_formats::simd::{InstructionSet, Job, LANES_MAX, Simd, dispatch_on};

use super::gates::{sigmoid, softplus};
use super::pool::Pool;
use super::scratch::{self, Scratch};
use super::spans::{Columns, SpanPart, SpanState, split_spans, spread_heads};
use super::split::Split;

/// Added to the sum of the squares of a query or a key before the root.
const EPSILON: f32 = 1e-6;

/// Vectors of a row of the state that are computed together.
const VECTORS: usize = 8;

/// Numbers by which the first token's state is prefetched ahead.
const AHEAD: usize = 1024;

/// The heads of a delta net and their parameters.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet<'a> {
    /// Query and key heads; divides `value_heads`.
    pub key_heads: usize,
    /// Value heads. Key head `j` serves the value heads from `j * value_heads / key_heads` on.
    pub value_heads: usize,
    /// Numbers of a query or key head.
    pub key_dim: usize,
    /// Numbers of a value head; a multiple of 16.
    pub value_dim: usize,
    /// `[value_heads]`: the decay rates `A`, at most 0.
    pub decay_rates: &'a [f32],
    /// `[value_heads]`: `dt_bias`.
    pub time_step_bias: &'a [f32],
}

/// The inputs of a delta net, one row for each token.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRows<'a> {
    /// [`DeltaNet::input_width`] columns `queries | keys | values`, after the convolution.
    pub qkv: Columns<'a>,
    /// `value_heads` columns: `a`, the input of the decay.
    pub decay: Columns<'a>,
    /// `value_heads` columns: `b`, the input of `beta`.
    pub beta: Columns<'a>,
}

impl DeltaNet<'_> {
    /// Columns of queries, keys and values.
    #[must_use]
    pub fn input_width(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.output_width()
    }

    /// Numbers in a row of the output.
    #[must_use]
    pub fn output_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Numbers of a sequence's state: `[value_heads, key_dim, value_dim]`.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.output_width() * self.key_dim
    }
}

/// Runs the recurrence over each span from its state. The state ([`DeltaNet::state_len`]) becomes
/// that after the span.
///
/// `output` is `[rows, value_heads * value_dim]`, before the norm and the gate. A row's result is
/// the same to the last bit regardless of other spans and of where the sequence was cut into
/// steps.
///
/// # Panics
///
/// When the lengths do not fit, `key_heads` does not divide `value_heads`, or `value_dim` is not
/// a multiple of 16.
pub fn delta_net(
    pool: &Pool,
    net: &DeltaNet<'_>,
    rows: DeltaRows<'_>,
    spans: &mut [SpanState<'_>],
    output: &mut [f32],
) {
    run_on(InstructionSet::best(), pool, net, rows, spans, output);
}

fn run_on(
    set: InstructionSet,
    pool: &Pool,
    net: &DeltaNet<'_>,
    inputs: DeltaRows<'_>,
    spans: &mut [SpanState<'_>],
    output: &mut [f32],
) {
    let heads = net.value_heads;
    let (keys, dim) = (net.key_heads, net.value_dim);
    assert!(
        keys > 0 && heads.is_multiple_of(keys),
        "{heads} value heads of {keys} key heads"
    );
    assert!(dim > 0 && dim.is_multiple_of(LANES_MAX), "heads of {dim}");
    assert_eq!(
        [net.decay_rates.len(), net.time_step_bias.len()],
        [heads; 2]
    );
    let (rows, spans) = split_spans(spans, net.state_len());
    let width = net.input_width();
    inputs.qkv.check(rows, width, "queries, keys and values");
    inputs.decay.check(rows, heads, "the input of the decay");
    inputs.beta.check(rows, heads, "the input of beta");
    assert_eq!(rows * net.output_width(), output.len(), "[rows, values]");
    let output = Split::new(output);
    let cost = 4 * rows * net.state_len();
    // Each part of a head computes the norms anew.
    spread_heads(pool, &spans, heads, dim, cost, |span, head, columns| {
        let head = Head {
            net,
            inputs,
            span,
            output: &output,
            head,
            columns,
        };
        scratch::for_item(|memory| dispatch_on(set, Compute { head, memory }));
    });
}

/// Some columns of one head of one span.
struct Head<'a> {
    net: &'a DeltaNet<'a>,
    inputs: DeltaRows<'a>,
    span: &'a SpanPart<'a>,
    output: &'a Split<'a, f32>,
    head: usize,
    columns: Range<usize>,
}

/// The inputs of a head at one token.
struct Token<'a> {
    row: usize,
    /// Factor of the state.
    decay: f32,
    beta: f32,
    query: &'a [f32],
    key: &'a [f32],
    /// All values of the head.
    value: &'a [f32],
}

/// A head, and memory for its queries and keys.
struct Compute<'a> {
    head: Head<'a>,
    memory: &'a mut Scratch,
}

impl Job for Compute<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let dim = self.head.net.key_dim;
        self.head.run(simd, self.memory.take([dim; 2]));
    }
}

impl Head<'_> {
    /// Runs the recurrence over all rows. `query` and `key` are scratch memory.
    #[inline(always)]
    fn run<S: Simd>(&self, simd: S, [query, key]: [&mut [f32]; 2]) {
        let net = self.net;
        let (head, dim) = (self.head, net.key_dim);
        let key_head = head / (net.value_heads / net.key_heads);
        let (keys, values) = (net.key_heads * dim, 2 * net.key_heads * dim);
        for row in self.span.rows.clone() {
            let qkv = self.inputs.qkv.row(row);
            let of_row = &qkv[key_head * dim..][..dim];
            unit(simd, of_row, (dim as f32).sqrt().recip(), query);
            unit(simd, &qkv[keys + key_head * dim..][..dim], 1.0, key);
            let step = self.inputs.decay.row(row)[head] + net.time_step_bias[head];
            let token = Token {
                row,
                decay: (net.decay_rates[head] * softplus(step)).exp(),
                beta: sigmoid(self.inputs.beta.row(row)[head]),
                query,
                key,
                value: &qkv[values + head * net.value_dim..][..net.value_dim],
            };
            let mut at = self.columns.start;
            while at < self.columns.end {
                at += match (self.columns.end - at) / S::LANES {
                    VECTORS.. => self.columns_of::<S, VECTORS>(simd, &token, at),
                    4.. => self.columns_of::<S, 4>(simd, &token, at),
                    2.. => self.columns_of::<S, 2>(simd, &token, at),
                    _ => self.columns_of::<S, 1>(simd, &token, at),
                };
            }
        }
    }

    /// Updates `V` vectors of each row of the state, and computes these columns of the output.
    /// Returns their number.
    #[inline(always)]
    fn columns_of<S: Simd, const V: usize>(
        &self,
        simd: S,
        token: &Token<'_>,
        first: usize,
    ) -> usize {
        let (count, dim) = (V * S::LANES, self.net.value_dim);
        // SAFETY: only this part of the span and the head uses these columns, one row at a time.
        let state = |row: usize| unsafe {
            let from = (self.head * self.net.key_dim + row) * dim + first;
            self.span.state.part(from..from + count)
        };
        let decay = simd.splat(token.decay);
        // The decayed state is computed twice, so that it is written once.
        let mut recalled = [simd.splat(0.0); V];
        for (row, key) in token.key.iter().enumerate() {
            let (numbers, key) = (state(row), simd.splat(*key));
            if token.row == self.span.rows.start {
                simd.prefetch(numbers.as_ptr().wrapping_add(AHEAD).cast());
            }
            for (numbers, recalled) in numbers.chunks_exact(S::LANES).zip(&mut recalled) {
                let decayed = simd.mul(simd.load_part(numbers), decay);
                *recalled = simd.mul_add(decayed, key, *recalled);
            }
        }
        let mut delta = [simd.splat(0.0); V];
        let values = token.value[first..first + count].chunks_exact(S::LANES);
        for ((delta, recalled), value) in delta.iter_mut().zip(&recalled).zip(values) {
            let missing = simd.sub(simd.load_part(value), *recalled);
            *delta = simd.mul(simd.splat(token.beta), missing);
        }
        let mut sums = [simd.splat(0.0); V];
        for (row, (key, query)) in token.key.iter().zip(token.query).enumerate() {
            let (key, query) = (simd.splat(*key), simd.splat(*query));
            let vectors = state(row).chunks_exact_mut(S::LANES);
            for ((numbers, delta), sum) in vectors.zip(&delta).zip(&mut sums) {
                let decayed = simd.mul(simd.load_part(numbers), decay);
                let number = simd.mul_add(key, *delta, decayed);
                simd.store_part(numbers, number);
                *sum = simd.mul_add(number, query, *sum);
            }
        }
        let from = token.row * self.net.output_width() + self.head * dim + first;
        // SAFETY: only this part computes these columns of the head.
        let output = unsafe { self.output.part(from..from + count) };
        for (output, sum) in output.chunks_exact_mut(S::LANES).zip(&sums) {
            simd.store_part(output, *sum);
        }
        count
    }
}

/// `row` at unit length, times `factor`.
#[inline(always)]
fn unit<S: Simd>(simd: S, row: &[f32], factor: f32, output: &mut [f32]) {
    let mut squares = simd.splat(0.0);
    for x in row.chunks(S::LANES) {
        let x = simd.load_part(x);
        squares = simd.mul_add(x, x, squares);
    }
    let factor = simd.splat(factor / (simd.sum(squares) + EPSILON).sqrt());
    for (x, output) in row.chunks(S::LANES).zip(output.chunks_mut(S::LANES)) {
        simd.store_part(output, simd.mul(simd.load_part(x), factor));
    }
}

#[cfg(test)]
mod tests;
