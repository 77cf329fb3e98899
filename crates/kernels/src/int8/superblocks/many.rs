//! Tiles of decoded weights with many rows of the input.

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::super::LANES;
use super::super::activations::{SUPERBLOCK, SuperRow};
use super::super::bytes::Bytes;
use super::super::many::{EIGHTS, Sums, TILE, Tile};
use super::{SPANS_MAX, add_block, spans};

/// [`Tiles::multiply`](super::Tiles::multiply) for spans of `4 * STEPS` codes.
#[inline(always)]
pub(super) fn multiply<B: Bytes, F: BlockFormat, const STEPS: usize>(
    bytes: B,
    tile: &Tile<'_>,
    sums: &mut Sums<B>,
    rows: [usize; TILE],
) {
    let floats = bytes.floats();
    let others = rows.map(|row| tile.product.activations.super_row(row, F::SPAN));
    let (count, before) = (
        tile.elements.len() / SUPERBLOCK,
        tile.elements.start / SUPERBLOCK,
    );
    let spans = spans::<F>();
    assert!(4 * STEPS == F::SPAN);
    for weights in &tile.weights {
        assert!(weights.codes.len() == LANES * SUPERBLOCK / 4 * count);
        assert!(weights.scales.len() == count * spans * LANES);
        assert!(weights.offsets.len() == count * spans / 2 * LANES);
        assert!(weights.factors.len() == count * 2 * LANES);
    }
    let fits = |row: &SuperRow<'_>| {
        row.codes.len() >= tile.elements.end
            && row.scales.len() >= before + count
            && row.sums.len() >= (before + count) * spans
    };
    assert!(others.iter().all(fits));
    for block in 0..count {
        let mut totals = [[bytes.no_ints(); TILE]; EIGHTS];
        for span in 0..spans {
            // SAFETY: all have `count` blocks from the first element, as was just checked.
            unsafe {
                let mut starts = [std::ptr::null(); TILE];
                for (start, row) in starts.iter_mut().zip(&others) {
                    let at = (before + block) * SUPERBLOCK + span * F::SPAN;
                    *start = row.codes.as_ptr().add(at);
                }
                let at = (block * spans + span) * LANES;
                let mut codes = [std::ptr::null(); EIGHTS];
                let mut scales = [bytes.no_ints(); EIGHTS];
                for (eight, weights) in tile.weights.iter().enumerate() {
                    codes[eight] = weights.codes.as_ptr().cast::<u8>().add(at * F::SPAN);
                    scales[eight] = bytes.load_ints(weights.scales.as_ptr().cast::<i32>().add(at));
                }
                bytes.add_scaled_across::<F, EIGHTS, TILE, STEPS>(
                    &mut totals,
                    codes,
                    starts,
                    scales,
                );
            }
        }
        for (eight, weights) in tile.weights.iter().enumerate() {
            let mut offsets = [bytes.no_ints(); SPANS_MAX / 2];
            for (pair, offsets) in offsets[..spans / 2].iter_mut().enumerate() {
                let at = (block * spans / 2 + pair) * LANES;
                // SAFETY: as above.
                *offsets =
                    unsafe { bytes.load_ints(weights.offsets.as_ptr().cast::<i32>().add(at)) };
            }
            let mut factors = [floats.splat(0.0); 2];
            for (which, factor) in factors.iter_mut().enumerate() {
                let at = (2 * block + which) * LANES;
                // SAFETY: as above.
                *factor = unsafe { floats.load(weights.factors.as_ptr().add(at)) };
            }
            for m in 0..TILE {
                let sum = &mut sums[eight][m];
                // SAFETY: as above.
                *sum = unsafe {
                    let of_block = others[m].sums.as_ptr().add((before + block) * spans);
                    let scale = *others[m].scales.get_unchecked(before + block);
                    let total = totals[eight][m];
                    add_block::<B, F>(bytes, *sum, total, &offsets, factors, of_block, scale)
                };
            }
        }
    }
}
