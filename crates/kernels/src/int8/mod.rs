//! Products of quantised weights with activations in 8 bits: [`Arithmetic::Fast`].
//!
//! Each row of the input is cut into blocks. A block becomes one scale and codes from -127 to 127.
//! Codes of weights and codes of the input are multiplied and added as integers, which is exact.
//! Each block then adds one number to its row's sum, in the order of the elements. It has 32
//! elements for formats whose scales are in half precision:
//!
//! ```text
//! sum += float(integer product) * (scale of the weights * scale of the input)
//! sum += offset of the weights * (scale of the input * sum of its codes)
//! ```
//!
//! It has 256 for the k-quants, whose scales are whole numbers times factors of the block, as in
//! llama.cpp:
//!
//! ```text
//! sum += float(sum of whole scale * integer product) * (factor * scale of the input)
//! sum -= float(sum of whole offset * sum of codes) * (other factor * scale of the input)
//! ```
//!
//! All lines are fused multiplications and additions. Every instruction set and every number of
//! rows computes just that, so a result has the same bits everywhere. The rounding of the input
//! changes a result: for numbers of like size by less than 1 % of the magnitude of its terms (`tests.rs`).
//!
//! Eight rows of the weights lie in the eight lanes of a vector.
//!
//! | file | contents |
//! |---|---|
//! | `activations.rs` | the input in 8 bits |
//! | `bytes.rs` | the interface to 32 bytes of an instruction set |
//! | `x86.rs`, `portable.rs`, `unit.rs` | the bytes of each instruction set; the choice of one |
//! | `scales.rs` | the scales of eight rows in half precision, side by side |
//! | `few.rs` | products with a few rows of the input: codes are decoded in registers |
//! | `many.rs` | products with more rows: codes are decoded once, into scratch memory |
//! | `blocks/`, `superblocks/` | both for each kind of formats |

mod activations;
mod blocks;
mod bytes;
mod few;
mod many;
mod portable;
mod scales;
mod superblocks;
#[cfg(test)]
mod tests;
mod unit;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use activations::Activations;

use std::marker::PhantomData;
use std::ops::Range;

use motet_formats::simd::{InstructionSet, Simd};
use motet_formats::{BlockFormat, BlockVisitor, Format};

use crate::linear::{GROUP, Part, for_each_part};
use crate::pool::Pool;
use crate::scratch;
use crate::weights::Rows;
use activations::Kinds;
use bytes::Bytes;
use many::Tiles;
use unit::Unit;

/// How products with quantised weights are computed. Products with F32, F16 and BF16 are the same
/// for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// In single precision.
    #[default]
    Exact,
    /// With activations that are rounded to 8 bits, and integer products. Takes less time.
    /// x86-64 machines without AVX2 and FMA compute as for [`Exact`](Arithmetic::Exact), which is
    /// faster there.
    Fast,
}

/// [`linear`](crate::linear::linear) with [`Arithmetic::Fast`]. A row's result is the same to
/// the last bit regardless of the other rows, their number, the threads and the instruction set.
/// Where a block of the input (32 numbers, 256 for k-quants) has one that is not finite, the row's
/// results are NaN.
///
/// # Panics
///
/// As for [`linear`](crate::linear::linear).
pub fn linear(
    pool: &Pool,
    input: &[f32],
    weight: &[Rows<'_>],
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let set = InstructionSet::best();
    let Some(activations) = activations(Arithmetic::Fast, set, pool, input, &[weight]) else {
        return crate::linear::linear(pool, input, weight, bias, output);
    };
    let compute = |part: &Part<'_>| compute(part, Some(&activations), 0, set);
    for_each_part(pool, input, weight, bias, output, GROUP, compute);
}

/// Whether integer products take less time than exact ones. Plain code has no fused
/// multiplication and addition on x86-64, and calls a function for each.
fn pays(set: InstructionSet) -> bool {
    !(cfg!(target_arch = "x86_64") && set == InstructionSet::Portable)
}

/// The input in 8 bits, if products with these weights use it.
pub(crate) fn activations(
    arithmetic: Arithmetic,
    set: InstructionSet,
    pool: &Pool,
    input: &[f32],
    weights: &[&[Rows<'_>]],
) -> Option<Activations> {
    let mut kinds = Kinds::default();
    let mut width = None;
    for part in weights.iter().copied().flatten() {
        if let Some(product) = product_with(part.format()) {
            kinds.blocks |= !product.has_whole_scales;
            kinds.superblocks |= product.has_whole_scales;
            width = Some(part.width());
        }
    }
    let used = arithmetic == Arithmetic::Fast && pays(set);
    let width = width.filter(|_| used)?;
    Some(Activations::new_on(set, pool, input, width, kinds))
}

/// Computes a part of a product. Its input is `activations` from row `first`. Without them, and
/// for formats that are not blocks, it is computed exactly.
pub(crate) fn compute(
    part: &Part<'_>,
    activations: Option<&Activations>,
    first: usize,
    set: InstructionSet,
) {
    match (activations, product_with(part.weight.format())) {
        (Some(activations), Some(integer)) => {
            let product = Product {
                part,
                activations,
                first,
                rows: part.input.len() / part.weight.width(),
            };
            (integer.compute)(&product, Unit::best(set));
        }
        _ => part.compute(set),
    }
}

/// The integer product with weights of one format.
struct IntegerProduct {
    /// Whether it takes the input in blocks of 256.
    has_whole_scales: bool,
    compute: fn(&Product<'_>, Unit),
}

/// The integer product with weights of this format, if it is one of blocks.
fn product_with(format: Format) -> Option<IntegerProduct> {
    format.visit_block(ProductOf)
}

struct ProductOf;

impl BlockVisitor for ProductOf {
    type Output = IntegerProduct;

    fn visit<F: BlockFormat>(self) -> IntegerProduct {
        IntegerProduct {
            has_whole_scales: F::WHOLE_SCALES.is_some(),
            compute: |product, unit| product.compute::<F>(unit),
        }
    }
}

/// A part of a product, with its input in 8 bits.
struct Product<'a> {
    part: &'a Part<'a>,
    activations: &'a Activations,
    /// Rows of the activations.
    first: usize,
    rows: usize,
}

impl Product<'_> {
    fn compute<F: BlockFormat>(&self, unit: Unit) {
        let (bytes, width) = (self.part.weight.bytes(), self.part.weight.width());
        let weights = Blocks::<F>::new(bytes, width);
        assert_eq!(self.activations.width(), width, "width of the activations");
        assert!(self.first + self.rows <= self.activations.rows());
        if const { F::WHOLE_SCALES.is_some() } {
            self.compute_in::<F, superblocks::SuperblockTiles>(unit, weights);
        } else {
            self.compute_in::<F, blocks::BlockTiles>(unit, weights);
        }
    }

    fn compute_in<F: BlockFormat, T: Tiles>(&self, unit: Unit, weights: Blocks<'_, F>) {
        let tiles = PhantomData::<T>;
        if self.rows <= T::DIRECT_ROWS {
            return unit.run(few::Few {
                product: self,
                weights,
                tiles,
            });
        }
        scratch::for_weights(|memory| {
            unit.run(many::Many {
                product: self,
                weights,
                memory,
                tiles,
            });
        });
    }

    /// Writes the sums of up to eight columns from `column` of a row, once all terms are added.
    #[inline(always)]
    fn put(&self, row: usize, column: usize, sums: &[f32]) {
        let Some(bias) = self.part.bias else {
            return self.keep(row, column, sums);
        };
        let mut all = [0.0; LANES];
        let biased = &mut all[..sums.len()];
        let pairs = sums.iter().zip(&bias[column..]);
        for (biased, (sum, bias)) in biased.iter_mut().zip(pairs) {
            *biased = sum + bias;
        }
        self.keep(row, column, biased);
    }

    /// Keeps the sums of some terms in their place of the output.
    #[inline(always)]
    fn keep(&self, row: usize, column: usize, sums: &[f32]) {
        // SAFETY: only this part computes these columns, and has no other reference to them.
        let output = unsafe { self.part.output.part(self.place(row, column, sums.len())) };
        copy(sums, output);
    }

    /// The sums that were [kept](Self::keep).
    #[inline(always)]
    fn kept(&self, row: usize, column: usize, sums: &mut [f32]) {
        // SAFETY: as above.
        let output = unsafe { self.part.output.part(self.place(row, column, sums.len())) };
        copy(output, sums);
    }

    fn place(&self, row: usize, column: usize, count: usize) -> Range<usize> {
        let from = row * self.part.n + self.part.first + column;
        from..from + count
    }
}

/// Copies up to eight numbers. Eight, the usual number, need no call.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    if let (Ok(from), Ok(to)) = (<&[f32; LANES]>::try_from(from), to.try_into()) {
        let to: &mut [f32; LANES] = to;
        *to = *from;
    } else {
        to.copy_from_slice(from);
    }
}

/// Bytes that products prefetch ahead at least. A core reads about as many while the first of them
/// come from memory.
const AHEAD: usize = 12 << 10;

/// Rows that are computed together: one in each lane.
const LANES: usize = 8;

/// Rows of blocks of one format.
#[derive(Clone, Copy)]
struct Blocks<'a, F> {
    bytes: &'a [u8],
    width: usize,
    row_bytes: usize,
    format: PhantomData<F>,
}

impl<'a, F: BlockFormat> Blocks<'a, F> {
    /// # Panics
    ///
    /// When the bytes are not whole rows of whole blocks.
    fn new(bytes: &'a [u8], width: usize) -> Blocks<'a, F> {
        const { assert!(align_of::<F::Block>() == 1, "blocks lie anywhere") };
        assert!(width > 0 && width.is_multiple_of(F::ELEMENTS));
        let row_bytes = width / F::ELEMENTS * size_of::<F::Block>();
        assert!(bytes.len().is_multiple_of(row_bytes));
        Blocks {
            bytes,
            width,
            row_bytes,
            format: PhantomData,
        }
    }

    fn rows(&self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    /// Blocks of a row.
    fn count(&self) -> usize {
        self.width / F::ELEMENTS
    }

    /// The blocks of eight rows from `first`. Rows after the last one repeat it.
    ///
    /// # Panics
    ///
    /// When there is no row `first`.
    #[inline(always)]
    fn eight(&self, first: usize) -> [&'a [F::Block]; LANES] {
        let last = self.rows() - 1;
        assert!(first <= last);
        std::array::from_fn(|lane| {
            let at = (first + lane).min(last) * self.row_bytes;
            let bytes = &self.bytes[at..at + self.row_bytes];
            // SAFETY: a block is an array of bytes, and these are `count` of them.
            unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), self.count()) }
        })
    }

    /// Prefetches some of eight rows that are needed soon after those from `first`: of what block
    /// `index` is of all, part `part` of `PARTS`. A core that asks for many lines at once waits for
    /// the first of them.
    #[inline(always)]
    fn prefetch<B: Bytes, const PARTS: usize>(
        &self,
        bytes: B,
        first: usize,
        index: usize,
        part: usize,
    ) {
        const LINE: usize = 64;
        let share = LANES * size_of::<F::Block>();
        let lines = share.div_ceil(PARTS * LINE);
        let ahead = AHEAD.max(LANES * self.row_bytes);
        let from = first * self.row_bytes + ahead + index * share + part * lines * LINE;
        for line in 0..lines {
            let at = self.bytes.as_ptr().wrapping_add(from + line * LINE);
            bytes.floats().prefetch(at);
        }
    }
}

/// Block `index` of each row. A loop: decoding of Q4_1 was half as fast with `map` and checks of each row.
///
/// # Safety
///
/// Each row has that block.
#[inline(always)]
unsafe fn blocks_at<'a, T>(rows: &[&'a [T]; LANES], index: usize) -> [&'a T; LANES] {
    let mut blocks = [&rows[0][0]; LANES];
    for (block, row) in blocks.iter_mut().zip(rows) {
        // SAFETY: the caller's promise.
        *block = unsafe { row.get_unchecked(index) };
    }
    blocks
}
