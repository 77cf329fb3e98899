//! Tiles of decoded weights with many rows of the input.

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::super::LANES;
use super::super::activations::{BLOCK, Row};
use super::super::bytes::Bytes;
use super::super::many::{EIGHTS, Sums, TILE, Tile};

/// [`Tiles::multiply`](super::Tiles::multiply).
#[inline(always)]
pub(super) fn multiply<B: Bytes, F: BlockFormat>(
    bytes: B,
    tile: &Tile<'_>,
    sums: &mut Sums<B>,
    rows: [usize; TILE],
) {
    let floats = bytes.floats();
    let others = rows.map(|row| tile.product.activations.row(row));
    let count = tile.elements.len() / BLOCK;
    let before = tile.elements.start / BLOCK;
    assert!(F::SPAN == BLOCK);
    for weights in &tile.weights {
        assert!(weights.codes.len() == LANES * BLOCK / 4 * count);
        assert!(weights.scales.len() == count * LANES);
        assert!(!F::HAS_OFFSETS || weights.offsets.len() == count * LANES);
    }
    let fits = |row: &Row<'_>| {
        row.codes.len() >= tile.elements.end
            && row.scales.len() >= before + count
            && row.sums.len() >= before + count
    };
    assert!(others.iter().all(fits));
    let mut all = *sums;
    for block in 0..count {
        let mut codes = [std::ptr::null(); EIGHTS];
        let mut starts = [std::ptr::null(); TILE];
        // SAFETY: all have `count` blocks from the first element, as was just checked.
        let dots = unsafe {
            for (codes, weights) in codes.iter_mut().zip(&tile.weights) {
                *codes = weights
                    .codes
                    .as_ptr()
                    .cast::<u8>()
                    .add(block * LANES * BLOCK);
            }
            for (start, row) in starts.iter_mut().zip(&others) {
                *start = row.codes.as_ptr().add((before + block) * BLOCK);
            }
            bytes.dots_across::<F, EIGHTS, TILE, 8>(codes, starts)
        };
        for eight in 0..EIGHTS {
            // SAFETY: as above.
            let weight =
                unsafe { floats.load(tile.weights[eight].scales.as_ptr().add(block * LANES)) };
            for m in 0..TILE {
                // SAFETY: as above.
                let scale = unsafe { *others[m].scales.get_unchecked(before + block) };
                let weight = floats.mul(weight, floats.splat(scale));
                all[eight][m] =
                    bytes.mul_add(bytes.to_floats(dots[eight][m]), weight, all[eight][m]);
            }
            if F::HAS_OFFSETS {
                // SAFETY: as above.
                let offset =
                    unsafe { floats.load(tile.weights[eight].offsets.as_ptr().add(block * LANES)) };
                for m in 0..TILE {
                    // SAFETY: as above.
                    let total = unsafe { *others[m].sums.get_unchecked(before + block) };
                    all[eight][m] = bytes.mul_add(offset, floats.splat(total), all[eight][m]);
                }
            }
        }
    }
    *sums = all;
}
