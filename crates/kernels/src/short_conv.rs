//! Causal depthwise convolution over the last few tokens of a sequence, with state.
//!
//! Each channel sees only itself: its output is the sum of its last `kernel` inputs, each times
//! a weight of its own, the present input included. Mamba 2 (Dao and Gu 2024) and gated delta
//! nets (Yang, Kautz and Hatamizadeh 2024) have one, with SiLU, before their recurrence. It is
//! itself the mixer of LFM2 (Liquid AI 2025), between two gates.
//!
//! The state holds the last `kernel - 1` inputs, so a sequence's outputs do not depend on how it
//! was cut into steps.

use std::ops::Range;

use motet_formats::simd::{InstructionSet, Job, LANES_MAX, Simd, dispatch_on};

use super::gates::silu;
use super::pool::Pool;
use super::spans::{Columns, SpanPart, SpanState, split_spans, spread};
use super::split::Split;

/// The largest number of tokens that a convolution sees.
pub const KERNEL_MAX: usize = 8;

/// Multiply-adds that one thread takes at a time, at least.
const CHUNK: usize = 16 << 10;

/// The activation or the gates around a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvKind {
    /// SiLU of the output. A row of the input is the convolution's input.
    Silu,
    /// LFM2's gates. A row of the input is `B | C | u`, each of `channels` numbers. The
    /// convolution's input is `B * u`, and the output is `C` times its result.
    Gated,
}

/// The parameters of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv<'a> {
    /// `[kernel, channels]`; the last row is of the present token.
    pub weight: &'a [f32],
    /// Tokens that it sees, the present one included: 2 to [`KERNEL_MAX`].
    pub kernel: usize,
    /// `[channels]`, added before any activation or gate.
    pub bias: Option<&'a [f32]>,
    /// The activation or the gates around it.
    pub kind: ConvKind,
}

impl ShortConv<'_> {
    /// Numbers in a row of the output.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.weight.len() / self.kernel
    }

    /// Numbers of a sequence's state: `[kernel - 1, channels]`, the oldest token first.
    #[must_use]
    pub fn state_len(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Numbers in a row of the input.
    #[must_use]
    pub fn input_width(&self) -> usize {
        match self.kind {
            ConvKind::Gated => 3 * self.channels(),
            ConvKind::Silu => self.channels(),
        }
    }
}

/// Convolves each span with its state before it. The state ([`ShortConv::state_len`]) becomes
/// that after the span.
///
/// `input` has [`ShortConv::input_width`] columns and the rows of all spans; `output` is `[rows,
/// channels]`. A row's result is the same to the last bit regardless of other spans and of where
/// the sequence was cut into steps.
///
/// # Panics
///
/// When the lengths do not fit, or `kernel` is not in 2 to [`KERNEL_MAX`].
pub fn short_conv(
    pool: &Pool,
    conv: &ShortConv<'_>,
    input: Columns<'_>,
    spans: &mut [SpanState<'_>],
    output: &mut [f32],
) {
    run_on(InstructionSet::best(), pool, conv, input, spans, output);
}

fn run_on(
    set: InstructionSet,
    pool: &Pool,
    conv: &ShortConv<'_>,
    input: Columns<'_>,
    spans: &mut [SpanState<'_>],
    output: &mut [f32],
) {
    let kernel = conv.kernel;
    assert!((2..=KERNEL_MAX).contains(&kernel), "a kernel of {kernel}");
    let channels = conv.channels();
    assert_eq!(channels * kernel, conv.weight.len(), "[kernel, channels]");
    assert!(conv.bias.is_none_or(|bias| bias.len() == channels));
    let (rows, spans) = split_spans(spans, conv.state_len());
    input.check(rows, conv.input_width(), "the convolution's input");
    assert_eq!(rows * channels, output.len(), "numbers of the output");
    if output.is_empty() {
        return;
    }
    let output = Split::new(output);
    let chunk = (CHUNK / (rows * kernel)).max(1);
    let chunk = chunk.next_multiple_of(LANES_MAX);
    let cost = rows * channels * kernel;
    spread(pool, channels.div_ceil(chunk), cost, |index| {
        let first = index * chunk;
        let part = Channels {
            conv,
            input,
            spans: &spans,
            output: &output,
            range: first..channels.min(first + chunk),
        };
        dispatch_on(set, part);
    });
}

/// Some channels of all spans.
struct Channels<'a> {
    conv: &'a ShortConv<'a>,
    input: Columns<'a>,
    spans: &'a [SpanPart<'a>],
    output: &'a Split<'a, f32>,
    range: Range<usize>,
}

impl Job for Channels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for first in self.range.clone().step_by(S::LANES) {
            let lanes = first..self.range.end.min(first + S::LANES);
            match self.conv.kernel {
                2 => self.vector::<S, 2>(simd, lanes),
                3 => self.vector::<S, 3>(simd, lanes),
                4 => self.vector::<S, 4>(simd, lanes),
                5 => self.vector::<S, 5>(simd, lanes),
                6 => self.vector::<S, 6>(simd, lanes),
                7 => self.vector::<S, 7>(simd, lanes),
                _ => self.vector::<S, 8>(simd, lanes),
            }
        }
    }
}

impl Channels<'_> {
    /// As many channels as a vector has lanes, or fewer at the end.
    #[inline(always)]
    fn vector<S: Simd, const K: usize>(&self, simd: S, lanes: Range<usize>) {
        let channels = self.conv.channels();
        let mut weights = [simd.splat(0.0); K];
        for (tap, weights) in weights.iter_mut().enumerate() {
            let row = &self.conv.weight[tap * channels..][..channels];
            *weights = simd.load_part(&row[lanes.clone()]);
        }
        let bias = match self.conv.bias {
            Some(bias) => simd.load_part(&bias[lanes.clone()]),
            None => simd.splat(0.0),
        };
        for span in self.spans.iter().filter(|span| !span.rows.is_empty()) {
            // SAFETY: only this part changes these channels.
            let state = |tap: usize| unsafe {
                let from = tap * channels;
                span.state.part(from + lanes.start..from + lanes.end)
            };
            // The inputs that the next output sees, the oldest first.
            let mut window = [simd.splat(0.0); K];
            for (tap, input) in window[..K - 1].iter_mut().enumerate() {
                *input = simd.load_part(state(tap));
            }
            for row in span.rows.clone() {
                window[K - 1] = self.input_of(simd, row, &lanes);
                let mut sum = bias;
                for (weight, input) in weights.iter().zip(&window) {
                    sum = simd.mul_add(*weight, *input, sum);
                }
                self.put(simd, row, &lanes, sum);
                window.copy_within(1.., 0);
            }
            for (tap, input) in window[..K - 1].iter().enumerate() {
                simd.store_part(state(tap), *input);
            }
        }
    }

    /// The input of the convolution in a row.
    #[inline(always)]
    fn input_of<S: Simd>(&self, simd: S, row: usize, lanes: &Range<usize>) -> S::Vector {
        let row = self.input.row(row);
        let first = simd.load_part(&row[lanes.clone()]);
        match self.conv.kind {
            ConvKind::Silu => first,
            ConvKind::Gated => {
                let inputs = &row[2 * self.conv.channels()..];
                simd.mul(first, simd.load_part(&inputs[lanes.clone()]))
            }
        }
    }

    #[inline(always)]
    fn put<S: Simd>(&self, simd: S, row: usize, lanes: &Range<usize>, sum: S::Vector) {
        let channels = self.conv.channels();
        let result = match self.conv.kind {
            ConvKind::Silu => silu(simd, sum),
            ConvKind::Gated => {
                let gates = &self.input.row(row)[channels..];
                simd.mul(simd.load_part(&gates[lanes.clone()]), sum)
            }
        };
        let from = row * channels;
        // SAFETY: only this part computes these channels.
        let output = unsafe { self.output.part(from + lanes.start..from + lanes.end) };
        simd.store_part(output, result);
    }
}

#[cfg(test)]
mod tests;
