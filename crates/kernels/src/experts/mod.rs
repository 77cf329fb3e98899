//! A mixture of experts (Shazeer et al. 2017): each row goes through the few gated MLPs that its
//! router chose, and their outputs are added.
//!
//! Rows are grouped by their experts within one call, so the choice never leaves the CPU, and
//! the weights of an expert are read once for all of its rows. With few rows a call takes as
//! long as the weights of the chosen experts take to arrive from memory, with many rows as long
//! as the arithmetic.
//!
//! A row's outputs are added in the order of its shares. Its result is the same to the last bit
//! regardless of the other rows.

mod choose;
mod grouped;

use std::ops::Range;

pub use choose::{Choice, Routing, choose};

use motet_formats::simd::{InstructionSet, Job, Simd, dispatch_on};

use super::gated::{Activation, gated_on};
use super::int8::{self, Activations, Arithmetic};
use super::linear::Part;
use super::pool::Pool;
use super::scratch;
use super::split::Split;
use super::weights::Rows;
use grouped::{Grouped, Used};

/// Parts of the weights for each thread, to even out.
const PARTS_PER_THREAD: usize = 4;

/// Minimum numbers of the weights in a part. Prefetching works only within a part.
const PART: usize = 32 << 10;

/// Maximum numbers between the projections that one thread computes at a time. They stay in the
/// second level of cache.
const BETWEEN: usize = 64 << 10;

/// Numbers that one thread copies or adds at a time.
const CHUNK: usize = 16 << 10;

/// The biases of the experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBiases<'a> {
    /// `[experts, inner]`.
    pub gate: &'a [f32],
    /// `[experts, inner]`.
    pub up: &'a [f32],
    /// `[experts, hidden]`.
    pub down: &'a [f32],
}

/// The experts of a layer. `hidden` and `inner` are multiples of 16.
///
/// The matrices of a projection are stacked: one matrix for all experts, or several with one or
/// more whole experts each, in order. They may be stored in different ways.
#[derive(Clone, Copy, Debug)]
pub struct Experts<'a> {
    /// Number of experts.
    pub count: usize,
    /// Numbers in a row of the input and of the output.
    pub hidden: usize,
    /// Numbers between the projections.
    pub inner: usize,
    /// `[experts, inner, hidden]`: the gates.
    pub gate: &'a [Rows<'a>],
    /// `[experts, inner, hidden]`: the projections to the numbers that are gated.
    pub up: &'a [Rows<'a>],
    /// `[experts, hidden, inner]`: the last projections.
    pub down: &'a [Rows<'a>],
    /// Added to the projections.
    pub biases: Option<ExpertBiases<'a>>,
    /// The function between the projections.
    pub activation: Activation,
    /// How the products are computed.
    pub arithmetic: Arithmetic,
}

/// Each row of `output` becomes the sum of the outputs of the row's experts for that row of
/// `input`, times their shares. Both are `[rows, hidden]`.
///
/// # Panics
///
/// When the lengths do not fit, `hidden` or `inner` is not a multiple of 16, or a chosen expert
/// does not exist.
pub fn experts(
    pool: &Pool,
    experts: &Experts<'_>,
    input: &[f32],
    choice: &Choice,
    output: &mut [f32],
) {
    run_on(InstructionSet::best(), pool, experts, input, choice, output);
}

fn run_on(
    set: InstructionSet,
    pool: &Pool,
    experts: &Experts<'_>,
    input: &[f32],
    choice: &Choice,
    output: &mut [f32],
) {
    experts.check();
    let hidden = experts.hidden;
    let expected = [choice.rows() * hidden; 2];
    assert_eq!([input.len(), output.len()], expected, "[rows, hidden]");
    let layer = Layer {
        set,
        pool,
        experts,
        grouped: &Grouped::new(choice, experts.count),
    };
    let inputs = layer.gathered(input);
    let between = layer.first_half(&inputs);
    let outputs = layer.second_half(&between);
    let rows = (CHUNK / hidden).max(1);
    pool.for_each_chunk([output], [rows * hidden], |index, [output]| {
        let from = index * rows * choice.per_row;
        let pairs = from..from + output.len() / hidden * choice.per_row;
        let sums = Sums {
            per_row: choice.per_row,
            shares: &choice.shares[pairs.clone()],
            places: &layer.grouped.places[pairs],
            outputs: &outputs,
            width: hidden,
            output,
        };
        dispatch_on(set, sums);
    });
}

/// The matrix of an expert, with `rows` rows.
fn of_expert<'a>(matrices: &[Rows<'a>], expert: usize, rows: usize) -> Rows<'a> {
    let mut first = expert * rows;
    for part in matrices {
        let count = part.rows();
        if first < count {
            return part.slice(first..first + rows);
        }
        first -= count;
    }
    unreachable!("the matrices of all experts were counted")
}

impl Experts<'_> {
    fn check(&self) {
        let (count, hidden, inner) = (self.count, self.hidden, self.inner);
        assert!(
            hidden > 0 && hidden.is_multiple_of(16) && inner > 0 && inner.is_multiple_of(16),
            "a hidden width of {hidden} and an inner width of {inner}: multiples of 16 expected"
        );
        for (what, matrices, rows, width) in [
            ("gate", self.gate, inner, hidden),
            ("up", self.up, inner, hidden),
            ("down", self.down, hidden, inner),
        ] {
            let whole = |part: &Rows<'_>| part.width() == width && part.rows().is_multiple_of(rows);
            let found: usize = matrices.iter().map(Rows::rows).sum();
            let fits = matrices.iter().all(whole) && found == count * rows;
            assert!(
                fits,
                "{what}: expected {count} matrices of [{rows}, {width}]"
            );
        }
        if let Some(biases) = self.biases {
            let found = [biases.gate.len(), biases.up.len(), biases.down.len()];
            let expected = [count * inner, count * inner, count * hidden];
            assert_eq!(found, expected, "numbers of the biases");
        }
    }
}

/// The experts of a layer and the rows that they have.
struct Layer<'a> {
    set: InstructionSet,
    pool: &'a Pool,
    experts: &'a Experts<'a>,
    grouped: &'a Grouped,
}

/// The input of an expert: rows from `first` of all pairs.
#[derive(Clone, Copy)]
struct Input<'a> {
    numbers: &'a [f32],
    /// All pairs.
    rounded: Option<&'a Activations>,
    first: usize,
}

impl Layer<'_> {
    /// The input of each pair.
    fn gathered(&self, input: &[f32]) -> Vec<f32> {
        let hidden = self.experts.hidden;
        let pairs = (CHUNK / hidden).max(1);
        let mut inputs = vec![0.0; self.grouped.rows.len() * hidden];
        let body = |index: usize, [inputs]: [&mut [f32]; 1]| {
            let rows = &self.grouped.rows[index * pairs..];
            for (row, to) in rows.iter().zip(inputs.chunks_exact_mut(hidden)) {
                to.copy_from_slice(&input[row * hidden..][..hidden]);
            }
        };
        self.pool
            .for_each_chunk([&mut inputs], [pairs * hidden], body);
        inputs
    }

    /// The input of some matrices in 8 bits, if they use it.
    fn rounded(&self, input: &[f32], weights: &[&[Rows<'_>]]) -> Option<Activations> {
        int8::activations(self.experts.arithmetic, self.set, self.pool, input, weights)
    }

    fn parts(
        &self,
        columns: usize,
        width: usize,
        most: impl Fn(usize) -> usize,
    ) -> Vec<(Used, Range<usize>)> {
        let count = PARTS_PER_THREAD * self.pool.threads();
        self.grouped.parts(columns, count, PART / width, most)
    }

    /// The numbers between the projections of each pair: `[pairs, inner]`.
    fn first_half(&self, inputs: &[f32]) -> Vec<f32> {
        let Experts { hidden, inner, .. } = *self.experts;
        let Experts { gate, up, .. } = *self.experts;
        let rounded = self.rounded(inputs, &[gate, up]);
        let mut between = vec![0.0; self.grouped.rows.len() * inner];
        let all = Split::new(&mut between);
        let parts = self.parts(inner, 2 * hidden, |rows| BETWEEN / (2 * rows));
        self.pool.run(parts.len(), |index| {
            let (Used { expert, pairs }, columns) = &parts[index];
            let input = Input {
                numbers: &inputs[pairs.start * hidden..pairs.end * hidden],
                rounded: rounded.as_ref(),
                first: pairs.start,
            };
            let width = columns.len();
            scratch::for_item(|memory| {
                let [gate_up] = memory.take([pairs.len() * 2 * width]);
                self.gate_up(*expert, columns, input, gate_up);
                for (pair, gate_up) in pairs.clone().zip(gate_up.chunks_exact(2 * width)) {
                    let from = pair * inner;
                    // SAFETY: only this part computes these columns of these pairs.
                    let to = unsafe { all.part(from + columns.start..from + columns.end) };
                    gated_on(self.set, self.experts.activation, gate_up, width, to);
                }
            });
        });
        between
    }

    /// Some columns of an expert's gate and up for each row of `input`: `[rows, gate | up]`.
    fn gate_up(
        &self,
        expert: usize,
        columns: &Range<usize>,
        input: Input<'_>,
        gate_up: &mut [f32],
    ) {
        let inner = self.experts.inner;
        let width = columns.len();
        let output = Split::new(gate_up);
        let biases = self.experts.biases.map(|biases| [biases.gate, biases.up]);
        let weights = [self.experts.gate, self.experts.up];
        for (half, weight) in weights.into_iter().enumerate() {
            let bias = biases.map(|biases| &biases[half][expert * inner + columns.start..]);
            let part = Part {
                input: input.numbers,
                weight: of_expert(weight, expert, inner).slice(columns.clone()),
                bias: bias.map(|bias| &bias[..width]),
                output: &output,
                first: half * width,
                n: 2 * width,
            };
            int8::compute(&part, input.rounded, input.first, self.set);
        }
    }

    /// The output of each pair: `[pairs, hidden]`.
    fn second_half(&self, between: &[f32]) -> Vec<f32> {
        let Experts { hidden, inner, .. } = *self.experts;
        let rounded = self.rounded(between, &[self.experts.down]);
        let mut outputs = vec![0.0; self.grouped.rows.len() * hidden];
        let all = Split::new(&mut outputs);
        let parts = self.parts(hidden, inner, |_| usize::MAX);
        self.pool.run(parts.len(), |index| {
            let (Used { expert, pairs }, columns) = &parts[index];
            let weight = of_expert(self.experts.down, *expert, hidden);
            let bias = self.experts.biases.map(|biases| {
                let bias = &biases.down[expert * hidden..][..hidden];
                &bias[columns.clone()]
            });
            let part = Part {
                input: &between[pairs.start * inner..pairs.end * inner],
                weight: weight.slice(columns.clone()),
                bias,
                output: &all,
                first: pairs.start * hidden + columns.start,
                n: hidden,
            };
            int8::compute(&part, rounded.as_ref(), pairs.start, self.set);
        });
        outputs
    }
}

/// Adds the outputs of some rows' experts.
struct Sums<'a> {
    per_row: usize,
    shares: &'a [f32],
    places: &'a [usize],
    /// `[pairs, width]`.
    outputs: &'a [f32],
    width: usize,
    output: &'a mut [f32],
}

impl Job for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.output.chunks_exact_mut(self.width);
        for (row, output) in rows.enumerate() {
            let pairs = row * self.per_row..(row + 1) * self.per_row;
            let (shares, places) = (&self.shares[pairs.clone()], &self.places[pairs]);
            for at in (0..self.width).step_by(S::LANES) {
                let mut sum = simd.splat(0.0);
                for (share, place) in shares.iter().zip(places) {
                    let numbers = &self.outputs[place * self.width + at..][..S::LANES];
                    sum = simd.mul_add(simd.splat(*share), simd.load_part(numbers), sum);
                }
                simd.store_part(&mut output[at..at + S::LANES], sum);
            }
        }
    }
}

#[cfg(test)]
mod tests;
