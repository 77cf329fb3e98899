//! Products with many rows of the input. The codes of some rows of the weights are decoded into
//! scratch memory, in the order in which the products read them, for all rows of the input.

use std::marker::PhantomData;
use std::ops::Range;

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::activations::{Activations, BLOCK};
use super::bytes::{Bytes, Vector, Work};
use super::{Blocks, LANES, Product, blocks_at};
use crate::scratch::Scratch;

/// Bytes of decoded weights that stay in the second level of cache.
const DECODED: usize = 128 << 10;

/// Maximum eights of rows that are decoded at a time.
const EIGHTS_MAX: usize = 8;

/// Bytes of the input's codes that stay in the second level of cache beside the weights.
pub(super) const INPUT: usize = 256 << 10;

/// Elements of a row that are multiplied before the next ones of it, where not all of the input
/// stays in the cache: all rows of the input are read once for 40 to 56 rows of the weights.
pub(super) const SLICE: usize = 2048;

/// Rows of the input that are multiplied at a time.
pub(super) const TILE: usize = 4;

/// Eights of rows of the weights that are multiplied at a time, so that each number of the input is
/// loaded once for 16 rows, and eight sums are independent.
pub(super) const EIGHTS: usize = 2;

/// Products with weights that are decoded into memory.
pub(super) struct Many<'a, F, T> {
    pub(super) product: &'a Product<'a>,
    pub(super) weights: Blocks<'a, F>,
    pub(super) memory: &'a mut Scratch,
    pub(super) tiles: PhantomData<T>,
}

/// Some elements of eight decoded rows.
pub(super) struct Decoded<'a> {
    /// `[elements / 4, 8, 4]`.
    pub(super) codes: &'a mut [f32],
    /// `[spans, 8]`.
    pub(super) scales: &'a mut [f32],
    /// For each span or pair of spans `[8]`, or nothing.
    pub(super) offsets: &'a mut [f32],
    /// For each block `[2, 8]`, or nothing.
    pub(super) factors: &'a mut [f32],
}

/// How products with a kind of formats are computed. Each gives the same bits.
pub(super) trait Tiles {
    /// Maximum rows of the input that are multiplied with codes in registers. With more, decoding
    /// once into memory was measured to be faster.
    const DIRECT_ROWS: usize;

    /// The products of eight rows of the weights from `column` with rows of the input, with codes
    /// that are decoded in registers.
    fn direct<B: Bytes, F: BlockFormat, const M: usize>(
        bytes: B,
        weights: &Blocks<'_, F>,
        column: usize,
        activations: &Activations,
        rows: [usize; M],
    ) -> [Vector<B>; M];

    /// Numbers of the scales, offsets and factors of a block of eight rows.
    fn lengths<F: BlockFormat>() -> [usize; 3];

    /// Decodes the scales of a block of eight rows.
    fn decode<B: Bytes, F: BlockFormat>(bytes: B, blocks: &[&F::Block; LANES], of: Decoded<'_>);

    /// Adds the products of 16 decoded rows with rows of the input.
    fn multiply<B: Bytes, F: BlockFormat>(
        bytes: B,
        tile: &Tile<'_>,
        sums: &mut Sums<B>,
        rows: [usize; TILE],
    );
}

/// The sums of a tile: of eights of rows of the weights with rows of the input.
pub(super) type Sums<B> = [[Vector<B>; TILE]; EIGHTS];

/// 16 rows of the weights, and what they are multiplied with.
pub(super) struct Tile<'a> {
    pub(super) product: &'a Product<'a>,
    pub(super) weights: [Decoded<'a>; EIGHTS],
    /// The elements of a row that `weights` holds.
    pub(super) elements: Range<usize>,
    column: usize,
    /// Rows of the weights. Less than 16 are there where the matrix ends.
    count: usize,
}

impl<F: BlockFormat, T: Tiles> Work for Many<'_, F, T> {
    #[inline(always)]
    fn run<B: Bytes>(self, bytes: B) {
        let Many {
            product,
            weights,
            memory,
            ..
        } = self;
        const { assert!(SLICE.is_multiple_of(F::ELEMENTS)) };
        let (width, rows) = (weights.width, product.rows);
        let slice = if rows * width <= INPUT {
            width
        } else {
            SLICE.min(width)
        };
        let eight = Decoded::length::<F, T>(slice);
        let most = DECODED / size_of::<f32>() / eight;
        let most = (most / EIGHTS * EIGHTS).clamp(EIGHTS, EIGHTS_MAX);
        let [all] = memory.take([most * eight]);
        for first in (0..weights.rows()).step_by(most * LANES) {
            let end = weights.rows().min(first + most * LANES);
            let tiles = (first..end).step_by(EIGHTS * LANES);
            for from in (0..width).step_by(slice) {
                let elements = from..width.min(from + slice);
                let columns = (first..end).step_by(LANES);
                for (column, memory) in columns.zip(all.chunks_exact_mut(eight)) {
                    decode::<B, F, T>(bytes, &weights, column, elements.clone(), memory);
                }
                for row in (0..rows).step_by(TILE) {
                    for (column, memory) in tiles.clone().zip(all.chunks_exact_mut(EIGHTS * eight))
                    {
                        let (one, other) = memory.split_at_mut(eight);
                        let weights =
                            [one, other].map(|eight| Decoded::new::<F, T>(eight, elements.len()));
                        let tile = Tile {
                            product,
                            weights,
                            elements: elements.clone(),
                            column,
                            count: (EIGHTS * LANES).min(end - column),
                        };
                        tile.compute::<B, F, T>(bytes, row);
                    }
                }
            }
        }
    }
}

impl<'a> Decoded<'a> {
    /// Numbers of memory for so many elements of eight rows.
    #[inline(always)]
    fn length<F: BlockFormat, T: Tiles>(elements: usize) -> usize {
        let of_block: usize = T::lengths::<F>().iter().sum();
        LANES * elements / size_of::<f32>() + elements / F::ELEMENTS * of_block
    }

    /// Memory of this number of elements.
    #[inline(always)]
    fn new<F: BlockFormat, T: Tiles>(memory: &'a mut [f32], elements: usize) -> Decoded<'a> {
        let lengths = T::lengths::<F>().map(|length| elements / F::ELEMENTS * length);
        let (codes, rest) = memory.split_at_mut(LANES * elements / size_of::<f32>());
        let (scales, rest) = rest.split_at_mut(lengths[0]);
        let (offsets, rest) = rest.split_at_mut(lengths[1]);
        Decoded {
            codes,
            scales,
            offsets,
            factors: &mut rest[..lengths[2]],
        }
    }

    /// Its blocks.
    #[inline(always)]
    fn blocks<F: BlockFormat, T: Tiles>(self) -> impl Iterator<Item = Decoded<'a>> {
        let [scales, offsets, factors] = T::lengths::<F>();
        let codes = self.codes.chunks_exact_mut(LANES * F::ELEMENTS / 4);
        let mut scales = self.scales.chunks_exact_mut(scales);
        // Nothing has no chunks.
        let mut offsets = self.offsets.chunks_exact_mut(offsets.max(1));
        let mut factors = self.factors.chunks_exact_mut(factors.max(1));
        codes.map(move |codes| Decoded {
            codes,
            scales: scales.next().unwrap_or_default(),
            offsets: offsets.next().unwrap_or_default(),
            factors: factors.next().unwrap_or_default(),
        })
    }
}

/// Prefetches as much as one of a block's chunks takes.
#[inline(always)]
fn prefetch<B: Bytes, F: BlockFormat>(
    bytes: B,
    weights: &Blocks<'_, F>,
    column: usize,
    [index, chunk]: [usize; 2],
) {
    if F::ELEMENTS == BLOCK {
        weights.prefetch::<B, 1>(bytes, column, index, chunk);
    } else {
        weights.prefetch::<B, 8>(bytes, column, index, chunk);
    }
}

/// Decodes some elements of eight rows from `column`.
#[inline(always)]
fn decode<B: Bytes, F: BlockFormat, T: Tiles>(
    bytes: B,
    weights: &Blocks<'_, F>,
    column: usize,
    elements: Range<usize>,
    memory: &mut [f32],
) {
    let decoded = Decoded::new::<F, T>(memory, elements.len());
    let range = elements.start / F::ELEMENTS..elements.end / F::ELEMENTS;
    let rows = weights.eight(column);
    assert!(range.end <= weights.count());
    for (index, block) in range.zip(decoded.blocks::<F, T>()) {
        // SAFETY: each row has `count` blocks.
        let blocks = unsafe { blocks_at(&rows, index) };
        for (chunk, codes) in block.codes.chunks_exact_mut(LANES * BLOCK / 4).enumerate() {
            prefetch::<B, F>(bytes, weights, column, [index, chunk]);
            let mut rows = [bytes.splat(0); LANES];
            for (row, block) in rows.iter_mut().zip(&blocks) {
                // SAFETY: `chunk` is one of the block's.
                *row = unsafe { F::wide_codes(bytes, block, chunk) };
            }
            let steps = bytes.transpose(rows);
            for (step, codes) in steps.iter().zip(codes.chunks_exact_mut(LANES)) {
                // SAFETY: eight times four bytes.
                unsafe { bytes.store(codes.as_mut_ptr().cast(), *step) };
            }
        }
        T::decode::<B, F>(bytes, &blocks, block);
    }
}

impl Tile<'_> {
    /// Adds the products with the next rows from `row` to their columns. Where there are less than a
    /// tile, the last one is repeated.
    #[inline(always)]
    fn compute<B: Bytes, F: BlockFormat, T: Tiles>(&self, bytes: B, row: usize) {
        let floats = bytes.floats();
        let Product { first, rows, .. } = *self.product;
        let present = TILE.min(rows - row);
        let mut lanes = [0.0; LANES];
        let mut sums = [[floats.splat(0.0); TILE]; EIGHTS];
        if self.elements.start > 0 {
            for (sums, (column, count)) in sums.iter_mut().zip(self.columns()) {
                for (m, sum) in sums[..present].iter_mut().enumerate() {
                    self.product.kept(row + m, column, &mut lanes[..count]);
                    *sum = floats.load_part(&lanes);
                }
            }
        }
        let others = std::array::from_fn(|m| first + (row + m).min(rows - 1));
        T::multiply::<B, F>(bytes, self, &mut sums, others);
        let is_last = self.elements.end == self.product.activations.width();
        for (sums, (column, count)) in sums.iter().zip(self.columns()) {
            for (m, sum) in sums[..present].iter().enumerate() {
                floats.store_part(&mut lanes, *sum);
                if is_last {
                    self.product.put(row + m, column, &lanes[..count]);
                } else {
                    self.product.keep(row + m, column, &lanes[..count]);
                }
            }
        }
    }

    /// The first column of each eight that is there, and its number of columns.
    #[inline(always)]
    fn columns(&self) -> impl Iterator<Item = (usize, usize)> {
        let (column, count) = (self.column, self.count);
        let eights = (0..count).step_by(LANES);
        eights.map(move |before| (column + before, LANES.min(count - before)))
    }
}
