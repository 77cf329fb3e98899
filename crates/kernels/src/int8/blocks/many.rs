//! Tiles of decoded weights with many rows of the input.

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::super::LANES;
use super::super::activations::{BLOCK, Row};
use super::super::bytes::{Bytes, Vector};
use super::super::many::{TILE, Tile};

/// [`Tiles::multiply`](super::Tiles::multiply).
#[inline(always)]
pub(super) fn multiply<B: Bytes, F: BlockFormat>(
    bytes: B,
    tile: &Tile<'_>,
    mut sums: [Vector<B>; TILE],
    rows: [usize; TILE],
) -> [Vector<B>; TILE] {
    let floats = bytes.floats();
    let others = rows.map(|row| tile.product.activations.row(row));
    let count = tile.elements.len() / BLOCK;
    let before = tile.elements.start / BLOCK;
    let weights = &tile.weights;
    assert!(F::SPAN == BLOCK && weights.codes.len() == LANES * BLOCK / 4 * count);
    assert!(weights.scales.len() == count * LANES);
    assert!(!F::HAS_OFFSETS || weights.offsets.len() == count * LANES);
    let fits = |row: &Row<'_>| {
        row.codes.len() >= tile.elements.end
            && row.scales.len() >= before + count
            && row.sums.len() >= before + count
    };
    assert!(others.iter().all(fits));
    for block in 0..count {
        // SAFETY: all have `count` blocks from the first element, as was just checked.
        let (dots, weight) = unsafe {
            let codes = weights.codes.as_ptr().cast::<u8>();
            let mut starts = [std::ptr::null(); TILE];
            for (start, row) in starts.iter_mut().zip(&others) {
                *start = row.codes.as_ptr().add((before + block) * BLOCK);
            }
            let codes = codes.add(block * LANES * BLOCK);
            let weight = floats.load(weights.scales.as_ptr().add(block * LANES));
            (bytes.dots_across::<F, TILE, 8>(codes, starts), weight)
        };
        for m in 0..TILE {
            // SAFETY: as above.
            let scale = unsafe { *others[m].scales.get_unchecked(before + block) };
            let weight = floats.mul(weight, floats.splat(scale));
            sums[m] = bytes.mul_add(bytes.to_floats(dots[m]), weight, sums[m]);
        }
        if F::HAS_OFFSETS {
            // SAFETY: as above.
            let offset = unsafe { floats.load(weights.offsets.as_ptr().add(block * LANES)) };
            for m in 0..TILE {
                // SAFETY: as above.
                let total = unsafe { *others[m].sums.get_unchecked(before + block) };
                sums[m] = bytes.mul_add(offset, floats.splat(total), sums[m]);
            }
        }
    }
    sums
}
