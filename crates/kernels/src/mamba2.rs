//! Mamba 2's selective state space (Dao and Gu 2024), as in Granite 4.
//!
//! A head keeps a matrix `h` (`[head dim, state size]`). Each token lets it decay, adds the outer
//! product of its input and `B`, and reads it with `C`:
//!
//! ```text
//! dt = clamp(softplus(dt + dt_bias))
//! h  = e^(A * dt) * h + (dt * x) B'
//! y  = h C + D * x
//! ```
//!
//! The recurrence is computed token by token, also for long prompts: its result does not depend
//! on how a sequence was cut into steps.

use std::ops::Range;

use motet_formats::simd::{InstructionSet, Job, LANES_MAX, Simd, dispatch_on};

use super::gates::softplus;
use super::pool::Pool;
use super::spans::{Columns, SpanPart, SpanState, split_spans, spread_heads};
use super::split::Split;

/// The heads of a layer and their parameters.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2<'a> {
    /// Heads.
    pub heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Groups of neighbouring heads that share `B` and `C`; divides `heads`.
    pub groups: usize,
    /// Numbers of state for each number of a head; a multiple of 16.
    pub state_size: usize,
    /// `[heads]`: `A`, at most 0.
    pub decay_rates: &'a [f32],
    /// `[heads]`: `D`, the share of the input that passes by the state.
    pub skip: &'a [f32],
    /// `[heads]`: `dt_bias`.
    pub time_step_bias: &'a [f32],
    /// Bounds of the time step after softplus, usually 0 and infinity.
    pub time_step_limits: (f32, f32),
}

impl Mamba2<'_> {
    /// Columns of the input: `x` of all heads, `B` and `C` of all groups.
    #[must_use]
    pub fn input_width(&self) -> usize {
        self.output_width() + 2 * self.groups * self.state_size
    }

    /// Numbers in a row of the output.
    #[must_use]
    pub fn output_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers of a sequence's state: `[heads, head_dim, state_size]`.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.output_width() * self.state_size
    }
}

/// Runs the recurrence over each span from its state. The state ([`Mamba2::state_len`]) becomes
/// that after the span.
///
/// `input` has [`Mamba2::input_width`] columns `x | B | C`, after the convolution, and
/// `time_steps` has `heads`. `output` is `[rows, heads * head_dim]`, before the gate and the norm.
/// A row's result is the same to the last bit regardless of other spans and of where the sequence
/// was cut into steps.
///
/// # Panics
///
/// When the lengths do not fit, `groups` does not divide `heads`, `state_size` is not a multiple
/// of 16, or the limits are not in order.
pub fn mamba2(
    pool: &Pool,
    mamba: &Mamba2<'_>,
    input: Columns<'_>,
    time_steps: Columns<'_>,
    spans: &mut [SpanState<'_>],
    output: &mut [f32],
) {
    let set = InstructionSet::best();
    run_on(set, pool, mamba, [input, time_steps], spans, output);
}

fn run_on(
    set: InstructionSet,
    pool: &Pool,
    mamba: &Mamba2<'_>,
    [input, time_steps]: [Columns<'_>; 2],
    spans: &mut [SpanState<'_>],
    output: &mut [f32],
) {
    let (heads, groups, size) = (mamba.heads, mamba.groups, mamba.state_size);
    assert!(
        groups > 0 && heads.is_multiple_of(groups),
        "{heads} heads in {groups} groups"
    );
    assert!(
        size > 0 && size.is_multiple_of(LANES_MAX),
        "a state of {size}"
    );
    let lengths = [mamba.decay_rates, mamba.skip, mamba.time_step_bias].map(<[f32]>::len);
    assert_eq!(lengths, [heads; 3], "parameters of the heads");
    let (lowest, highest) = mamba.time_step_limits;
    assert!(lowest <= highest, "time steps in {lowest}..={highest}");
    let (rows, spans) = split_spans(spans, mamba.state_len());
    input.check(rows, mamba.input_width(), "Mamba 2's input");
    time_steps.check(rows, heads, "Mamba 2's time steps");
    assert_eq!(rows * mamba.output_width(), output.len(), "[rows, heads]");
    let output = Split::new(output);
    let cost = 3 * rows * mamba.state_len();
    let dim = mamba.head_dim;
    spread_heads(pool, &spans, heads, dim, cost, |span, head, numbers| {
        let head = Head {
            mamba,
            input,
            time_steps,
            span,
            output: &output,
            head,
            numbers,
        };
        dispatch_on(set, head);
    });
}

/// Some numbers of one head of one span.
struct Head<'a> {
    mamba: &'a Mamba2<'a>,
    input: Columns<'a>,
    time_steps: Columns<'a>,
    span: &'a SpanPart<'a>,
    output: &'a Split<'a, f32>,
    head: usize,
    numbers: Range<usize>,
}

/// The inputs of a head at one token.
struct Token<'a> {
    row: usize,
    time_step: f32,
    /// Factor of the state.
    decay: f32,
    /// All numbers of the head.
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
}

impl Job for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (mamba, head) = (self.mamba, self.head);
        let (size, dim) = (mamba.state_size, mamba.head_dim);
        let group = head / (mamba.heads / mamba.groups);
        let (lowest, highest) = mamba.time_step_limits;
        for row in self.span.rows.clone() {
            let input = self.input.row(row);
            let (x, shared) = input.split_at(mamba.output_width());
            let raw = self.time_steps.row(row)[head] + mamba.time_step_bias[head];
            let time_step = softplus(raw).clamp(lowest, highest);
            let token = Token {
                row,
                time_step,
                decay: (mamba.decay_rates[head] * time_step).exp(),
                x: &x[head * dim..][..dim],
                b: &shared[group * size..][..size],
                c: &shared[(mamba.groups + group) * size..][..size],
            };
            for first in self.numbers.clone().step_by(S::LANES) {
                let numbers = first..self.numbers.end.min(first + S::LANES);
                if numbers.len() == S::LANES {
                    self.rows_of::<S, true>(simd, &token, numbers);
                } else {
                    self.rows_of::<S, false>(simd, &token, numbers);
                }
            }
        }
    }
}

impl Head<'_> {
    /// Updates as many rows of the state as a vector has lanes, or fewer unless `ALL`, and
    /// computes these numbers of the output.
    #[inline(always)]
    fn rows_of<S: Simd, const ALL: bool>(&self, simd: S, token: &Token<'_>, numbers: Range<usize>) {
        let size = self.mamba.state_size;
        let count = if ALL { S::LANES } else { numbers.len() };
        let from = (self.head * self.mamba.head_dim + numbers.start) * size;
        // SAFETY: only this part of the span and the head uses these rows.
        let state = unsafe { self.span.state.part(from..from + count * size) };
        let is_first = token.row == self.span.rows.start;
        let decay = simd.splat(token.decay);
        let mut factors = [simd.splat(0.0); LANES_MAX];
        for (factor, x) in factors.iter_mut().zip(&token.x[numbers.clone()]) {
            *factor = simd.splat(token.time_step * x);
        }
        let mut sums = [simd.splat(0.0); LANES_MAX];
        for at in (0..size).step_by(S::LANES) {
            let b = simd.load_part(&token.b[at..at + S::LANES]);
            let c = simd.load_part(&token.c[at..at + S::LANES]);
            for row in 0..count {
                let cells = &mut state[row * size + at..][..S::LANES];
                if is_first && at.is_multiple_of(LANES_MAX) {
                    // The rows after these.
                    simd.prefetch(cells.as_ptr().wrapping_add(count * size).cast());
                }
                let added = simd.mul(factors[row], b);
                let number = simd.mul_add(simd.load_part(cells), decay, added);
                simd.store_part(cells, number);
                sums[row] = simd.mul_add(number, c, sums[row]);
            }
        }
        let x = simd.load_part(&token.x[numbers.clone()]);
        let skipped = simd.splat(self.mamba.skip[self.head]);
        let output = simd.mul_add(skipped, x, simd.sum_each(&sums[..S::LANES]));
        let from = token.row * self.mamba.output_width() + self.head * self.mamba.head_dim;
        // SAFETY: only this part computes these numbers of the head.
        let here = unsafe { self.output.part(from + numbers.start..from + numbers.end) };
        simd.store_part(here, output);
    }
}

#[cfg(test)]
mod tests;
