//! The norm and the gate behind a recurrence.

use motet_formats::simd::{InstructionSet, Job, Simd, dispatch_on};

use super::gates::silu;
use super::pool::Pool;
use super::spans::Columns;

/// Numbers that one thread takes at a time, enough that the cost of dispatching is negligible.
const CHUNK: usize = 16 << 10;

/// Whether the norm or the gate is applied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// `norm(x) * weight * silu(gate)`, as behind a gated delta net.
    NormFirst,
    /// `norm(x * silu(gate)) * weight`, as behind Mamba 2.
    GateFirst,
}

/// A root-mean-square norm (Zhang and Sennrich 2019) of groups of numbers, with a gate.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm<'a> {
    /// Neighbouring numbers of a row that are normalised together; divides the row's width.
    pub group: usize,
    /// Factors, one for each number of a group.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether the norm or the gate is applied first.
    pub order: GateOrder,
}

/// Normalises and gates each row of `input` (`[rows, width]`). `gate` has `width` columns, and
/// `output` the shape of `input`.
///
/// # Panics
///
/// When the lengths do not fit.
pub fn gated_rms_norm(
    pool: &Pool,
    norm: GatedNorm<'_>,
    input: &[f32],
    width: usize,
    gate: Columns<'_>,
    output: &mut [f32],
) {
    run_on(
        InstructionSet::best(),
        pool,
        norm,
        input,
        width,
        gate,
        output,
    );
}

fn run_on(
    set: InstructionSet,
    pool: &Pool,
    norm: GatedNorm<'_>,
    input: &[f32],
    width: usize,
    gate: Columns<'_>,
    output: &mut [f32],
) {
    let GatedNorm { group, weight, .. } = norm;
    assert!(
        group > 0 && width > 0 && width.is_multiple_of(group),
        "rows of {width} in groups of {group}"
    );
    assert_eq!(weight.len(), group, "factors of a group");
    assert_eq!(input.len(), output.len());
    assert_eq!(input.len() % width, 0);
    gate.check(input.len() / width, width, "the gate");
    let rows = (CHUNK / width).max(1);
    pool.for_each_chunk([output], [rows * width], |index, [output]| {
        let part = Rows {
            norm,
            width,
            input: &input[index * rows * width..][..output.len()],
            gate,
            first: index * rows,
            output,
        };
        dispatch_on(set, part);
    });
}

struct Rows<'a> {
    norm: GatedNorm<'a>,
    width: usize,
    input: &'a [f32],
    gate: Columns<'a>,
    /// The row that `input` and `output` begin with.
    first: usize,
    output: &'a mut [f32],
}

impl Job for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (width, group) = (self.width, self.norm.group);
        let inputs = self.input.chunks_exact(width);
        let outputs = self.output.chunks_exact_mut(width);
        for (row, (input, output)) in inputs.zip(outputs).enumerate() {
            let gate = &self.gate.row(self.first + row)[..width];
            for first in (0..width).step_by(group) {
                let here = first..first + group;
                let parts = (&input[here.clone()], &gate[here.clone()]);
                one_group(simd, self.norm, parts, &mut output[here]);
            }
        }
    }
}

#[inline(always)]
fn one_group<S: Simd>(
    simd: S,
    norm: GatedNorm<'_>,
    (input, gate): (&[f32], &[f32]),
    output: &mut [f32],
) {
    // The numbers that are normalised go to `output` first.
    let mut squares = [simd.splat(0.0); 4];
    let parts = input.chunks(S::LANES).zip(gate.chunks(S::LANES));
    for (i, ((x, gate), output)) in parts.zip(output.chunks_mut(S::LANES)).enumerate() {
        let mut x = simd.load_part(x);
        if norm.order == GateOrder::GateFirst {
            x = simd.mul(x, silu(simd, simd.load_part(gate)));
        }
        squares[i % 4] = simd.mul_add(x, x, squares[i % 4]);
        simd.store_part(output, x);
    }
    let [a, b, c, d] = squares;
    let total = simd.sum(simd.add(simd.add(a, b), simd.add(c, d)));
    let factor = 1.0 / (total / input.len() as f32 + norm.epsilon).sqrt();
    let factor = simd.splat(factor);
    let parts = gate.chunks(S::LANES).zip(norm.weight.chunks(S::LANES));
    for (output, (gate, weight)) in output.chunks_mut(S::LANES).zip(parts) {
        let normed = simd.mul(simd.load_part(output), factor);
        let mut y = simd.mul(normed, simd.load_part(weight));
        if norm.order == GateOrder::NormFirst {
            y = simd.mul(y, silu(simd, simd.load_part(gate)));
        }
        simd.store_part(output, y);
    }
}

#[cfg(test)]
mod tests;
