//! Products with many rows of the input. The codes of some rows of the weights are decoded into
//! scratch memory, in the order in which the products read them, for all rows of the input.

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::activations::BLOCK;
use super::bytes::{Bytes, Work};
use super::scales::EightScales;
use super::{Blocks, LANES, Product};
use crate::scratch::Scratch;

/// Bytes of decoded weights that stay in the second level of cache.
const DECODED: usize = 128 << 10;

/// Maximum eights of rows that are decoded at a time.
const EIGHTS_MAX: usize = 8;

/// Rows of the input that are multiplied at a time.
const TILE: usize = 4;

/// Products with weights that are decoded into memory.
pub(super) struct Many<'a, F> {
    pub(super) product: &'a Product<'a>,
    pub(super) weights: Blocks<'a, F>,
    pub(super) memory: &'a mut Scratch,
}

/// Eight decoded rows.
struct Decoded<'a> {
    /// `[width / 4, 8, 4]`.
    codes: &'a mut [f32],
    /// `[spans, 8]`.
    scales: &'a mut [f32],
    /// `[spans, 8]`, or nothing.
    offsets: &'a mut [f32],
}

impl<F: BlockFormat> Work for Many<'_, F> {
    #[inline(always)]
    fn run<B: Bytes>(self, bytes: B) {
        let Many {
            product,
            weights,
            memory,
        } = self;
        let width = weights.width;
        let spans = LANES * width / F::SPAN;
        let lengths = [
            LANES * width / size_of::<f32>(),
            spans,
            if F::HAS_OFFSETS { spans } else { 0 },
        ];
        let eight: usize = lengths.iter().sum();
        let most = (DECODED / size_of::<f32>() / eight).clamp(1, EIGHTS_MAX);
        let [all] = memory.take([most * eight]);
        for first in (0..weights.rows()).step_by(most * LANES) {
            let end = weights.rows().min(first + most * LANES);
            let columns = (first..end).step_by(LANES);
            for (column, memory) in columns.clone().zip(all.chunks_exact_mut(eight)) {
                decode(bytes, &weights, column, Decoded::new(memory, lengths));
            }
            let rows = product.rows;
            for row in (0..rows).step_by(TILE) {
                for (column, memory) in columns.clone().zip(all.chunks_exact_mut(eight)) {
                    let tile = Tile {
                        product,
                        weights: Decoded::new(memory, lengths),
                        column,
                        count: LANES.min(end - column),
                        width,
                    };
                    tile.compute::<B, F>(bytes, row);
                }
            }
        }
    }
}

impl<'a> Decoded<'a> {
    #[inline(always)]
    fn new(memory: &'a mut [f32], lengths: [usize; 3]) -> Decoded<'a> {
        let (codes, rest) = memory.split_at_mut(lengths[0]);
        let (scales, offsets) = rest.split_at_mut(lengths[1]);
        assert_eq!(offsets.len(), lengths[2]);
        Decoded {
            codes,
            scales,
            offsets,
        }
    }
}

/// Decodes eight rows from `column`.
#[inline(always)]
fn decode<B: Bytes, F: BlockFormat>(
    bytes: B,
    weights: &Blocks<'_, F>,
    column: usize,
    decoded: Decoded<'_>,
) {
    let floats = bytes.floats();
    let rows = weights.eight(column);
    let spans = F::ELEMENTS / F::SPAN;
    let codes = decoded.codes.chunks_exact_mut(LANES * F::ELEMENTS / 4);
    let mut scales = decoded.scales.chunks_exact_mut(LANES);
    let mut offsets = decoded.offsets.chunks_exact_mut(LANES);
    for (index, codes) in codes.enumerate() {
        weights.prefetch(bytes, column, index);
        let blocks = rows.map(|row| &row[index]);
        let eight = EightScales::<B>::new::<F>(bytes, &blocks);
        for (span, scales) in (0..spans).zip(&mut scales) {
            floats.store_part(scales, eight.scales[span]);
        }
        for (span, offsets) in (0..spans).zip(&mut offsets) {
            floats.store_part(offsets, eight.offsets[span]);
        }
        for (chunk, codes) in codes.chunks_exact_mut(LANES * BLOCK / 4).enumerate() {
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
    }
}

/// Eight rows of the weights, of which `count` exist.
struct Tile<'a> {
    product: &'a Product<'a>,
    weights: Decoded<'a>,
    column: usize,
    count: usize,
    width: usize,
}

impl Tile<'_> {
    /// The products with the next rows from `row`. Where there are less than a tile, the last one
    /// is repeated.
    #[inline(always)]
    fn compute<B: Bytes, F: BlockFormat>(&self, bytes: B, row: usize) {
        if F::SPAN == BLOCK {
            self.spans::<B, F, 8>(bytes, row);
        } else {
            self.spans::<B, F, 4>(bytes, row);
        }
    }

    /// [`Tile::compute`] for spans of `4 * STEPS` codes.
    #[inline(always)]
    fn spans<B: Bytes, F: BlockFormat, const STEPS: usize>(&self, bytes: B, row: usize) {
        let floats = bytes.floats();
        let Product {
            activations,
            first,
            rows,
            ..
        } = *self.product;
        let others: [_; TILE] = std::array::from_fn(|m| {
            let row = (row + m).min(rows - 1);
            activations.row(first + row, F::SPAN)
        });
        let count = self.width / F::SPAN;
        let Decoded {
            codes,
            scales,
            offsets,
        } = &self.weights;
        assert!(4 * STEPS == F::SPAN && codes.len() == 2 * self.width);
        assert!(
            scales.len() == count * LANES && (!F::HAS_OFFSETS || offsets.len() == count * LANES)
        );
        let fits = |row: &super::activations::Row<'_>| {
            row.codes.len() == self.width
                && row.scales.len() == self.width / BLOCK
                && row.sums.len() == count
        };
        assert!(others.iter().all(fits));
        let mut sums = [floats.splat(0.0); TILE];
        for span in 0..count {
            // SAFETY: all have `count` spans, as was just checked.
            let (dots, weight) = unsafe {
                let codes = codes.as_ptr().cast::<u8>().add(span * LANES * F::SPAN);
                let mut starts = [std::ptr::null(); TILE];
                for (start, row) in starts.iter_mut().zip(&others) {
                    *start = row.codes.as_ptr().add(span * F::SPAN);
                }
                let weight = floats.load(scales.as_ptr().add(span * LANES));
                (bytes.dots_across::<F, TILE, STEPS>(codes, starts), weight)
            };
            for m in 0..TILE {
                // SAFETY: as above.
                let scale = unsafe { *others[m].scales.get_unchecked(span * F::SPAN / BLOCK) };
                let weight = floats.mul(weight, floats.splat(scale));
                sums[m] = bytes.mul_add(bytes.to_floats(dots[m]), weight, sums[m]);
            }
            if F::HAS_OFFSETS {
                // SAFETY: as above.
                let offset = unsafe { floats.load(offsets.as_ptr().add(span * LANES)) };
                for m in 0..TILE {
                    // SAFETY: as above.
                    let total = unsafe { *others[m].sums.get_unchecked(span) };
                    sums[m] = bytes.mul_add(offset, floats.splat(total), sums[m]);
                }
            }
        }
        let mut lanes = [0.0; LANES];
        for (m, sum) in sums[..TILE.min(rows - row)].iter().enumerate() {
            floats.store_part(&mut lanes, *sum);
            self.product.put(row + m, self.column, &lanes[..self.count]);
        }
    }
}
