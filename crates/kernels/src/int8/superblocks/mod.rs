//! Products with formats of 256 elements whose scales are whole numbers: ggml's k-quants. Sums are
//! integers throughout a block of the weights and of the input, as in llama.cpp, so that their order
//! does not matter there.

mod few;
mod many;

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::activations::{Activations, SUPERBLOCK};
use super::bytes::{Bytes, Vector};
use super::many::{Decoded, Sums, TILE, Tile, Tiles};
use super::scales::halves;
use super::{Blocks, LANES};

/// Maximum spans of a block.
const SPANS_MAX: usize = 16;

/// Tiles of formats with whole scales. These and whole offsets are integers in scratch memory,
/// twice 16 bits each.
pub(super) struct SuperblockTiles;

impl Tiles for SuperblockTiles {
    const DIRECT_ROWS: usize = 4;

    #[inline(always)]
    fn direct<B: Bytes, F: BlockFormat, const M: usize>(
        bytes: B,
        weights: &Blocks<'_, F>,
        column: usize,
        activations: &Activations,
        rows: [usize; M],
    ) -> [Vector<B>; M] {
        let inputs = rows.map(|row| activations.super_row(row, F::SPAN));
        few::direct(bytes, weights, column, &inputs)
    }

    #[inline(always)]
    fn lengths<F: BlockFormat>() -> [usize; 3] {
        [LANES * spans::<F>(), LANES * spans::<F>() / 2, 2 * LANES]
    }

    #[inline(always)]
    fn decode<B: Bytes, F: BlockFormat>(bytes: B, blocks: &[&F::Block; LANES], of: Decoded<'_>) {
        let eight = EightWholeScales::<B>::new::<F>(bytes, blocks);
        for (span, scales) in of.scales.chunks_exact_mut(LANES).enumerate() {
            // SAFETY: eight numbers of 32 bits.
            unsafe { bytes.store_ints(scales.as_mut_ptr().cast(), eight.scale::<F>(bytes, span)) };
        }
        for (pair, offsets) in of.offsets.chunks_exact_mut(LANES).enumerate() {
            let ints = eight.offsets::<F>(bytes, pair);
            // SAFETY: as above.
            unsafe { bytes.store_ints(offsets.as_mut_ptr().cast(), ints) };
        }
        for (factors, vector) in of.factors.chunks_exact_mut(LANES).zip(eight.factors) {
            bytes.floats().store_part(factors, vector);
        }
    }

    #[inline(always)]
    fn multiply<B: Bytes, F: BlockFormat>(
        bytes: B,
        tile: &Tile<'_>,
        sums: &mut Sums<B>,
        rows: [usize; TILE],
    ) {
        if F::SPAN == 16 {
            many::multiply::<B, F, 4>(bytes, tile, sums, rows);
        } else {
            many::multiply::<B, F, 8>(bytes, tile, sums, rows);
        }
    }
}

/// The scales and offsets of one block of each of eight rows.
#[derive(Clone, Copy)]
struct EightWholeScales<B: Bytes> {
    /// Whole scales and offsets, four bytes of each row in a vector.
    scales: [B::Bytes; 4],
    offsets: [B::Bytes; 4],
    /// The factors of the scales and of the offsets. The latter are arbitrary where a format has
    /// none.
    factors: [Vector<B>; 2],
}

impl<B: Bytes> EightWholeScales<B> {
    #[inline(always)]
    fn new<F: BlockFormat>(bytes: B, blocks: &[&F::Block; 8]) -> EightWholeScales<B> {
        let at = F::WHOLE_SCALES.unwrap_or(0);
        assert!(at + 16 <= size_of::<F::Block>() && F::ELEMENTS == SUPERBLOCK);
        let mut starts = [std::ptr::null(); 8];
        for (start, block) in starts.iter_mut().zip(blocks) {
            *start = std::ptr::from_ref::<F::Block>(block)
                .cast::<u8>()
                .wrapping_add(at);
        }
        // SAFETY: each block has 16 bytes there.
        let words = unsafe { bytes.words(starts) };
        let factors = match *F::HALVES {
            [first, second] if (first, second) == (at, at + 2) => bytes.halves(words[0]),
            [first, second] => [
                halves::<F, B>(bytes, blocks, first),
                halves::<F, B>(bytes, blocks, second),
            ],
            _ => [halves::<F, B>(bytes, blocks, F::HALVES[0]); 2],
        };
        let [scales, offsets] = F::whole_scales(bytes, words);
        EightWholeScales {
            scales,
            offsets,
            factors,
        }
    }

    /// The scale of a span, twice.
    #[inline(always)]
    fn scale<F: BlockFormat>(&self, bytes: B, span: usize) -> B::Ints {
        widen_pair::<B, F>(bytes, self.scales[span / 4], [span % 4; 2])
    }

    /// The offsets of two spans from `2 pair`.
    #[inline(always)]
    fn offsets<F: BlockFormat>(&self, bytes: B, pair: usize) -> B::Ints {
        let first = 2 * (pair % 2);
        widen_pair::<B, F>(bytes, self.offsets[pair / 2], [first, first + 1])
    }
}

#[inline(always)]
fn widen_pair<B: Bytes, F: BlockFormat>(bytes: B, words: B::Bytes, at: [usize; 2]) -> B::Ints {
    if F::HAS_SIGNED_SCALES {
        bytes.widen_pair::<true>(words, at)
    } else {
        bytes.widen_pair::<false>(words, at)
    }
}

/// Spans of a block.
const fn spans<F: BlockFormat>() -> usize {
    SUPERBLOCK / F::SPAN
}

/// Adds one block's products to the sums of eight rows. `total` is the sum of products of codes
/// and scales, `offsets` those of the block, `sums` those of the codes of the input in its spans,
/// and `scale` the scale of the input.
///
/// # Safety
///
/// `sums` is readable for the spans of the block.
#[inline(always)]
unsafe fn add_block<B: Bytes, F: BlockFormat>(
    bytes: B,
    sum: Vector<B>,
    total: B::Ints,
    offsets: &[B::Ints; SPANS_MAX / 2],
    factors: [Vector<B>; 2],
    sums: *const i16,
    scale: f32,
) -> Vector<B> {
    let floats = bytes.floats();
    let mut offset = bytes.no_ints();
    for (pair, offsets) in offsets[..spans::<F>() / 2].iter().enumerate() {
        // SAFETY: the caller's promise.
        let sums = unsafe { bytes.splat_pair(sums.cast::<i32>().add(pair)) };
        offset = bytes.add_twos(offset, *offsets, sums);
    }
    if F::ZERO > 0 {
        let total = bytes.sub_times(total, offset, F::ZERO);
        return add_total(bytes, sum, total, factors[0], scale);
    }
    let sum = add_total(bytes, sum, total, factors[0], scale);
    let factor = floats.mul(factors[1], floats.splat(-scale));
    bytes.mul_add(bytes.to_floats(offset), factor, sum)
}

/// Adds the total of one block's products to the sums of eight rows.
#[inline(always)]
fn add_total<B: Bytes>(
    bytes: B,
    sum: Vector<B>,
    total: B::Ints,
    factor: Vector<B>,
    scale: f32,
) -> Vector<B> {
    let floats = bytes.floats();
    let factor = floats.mul(factor, floats.splat(scale));
    bytes.mul_add(bytes.to_floats(total), factor, sum)
}
