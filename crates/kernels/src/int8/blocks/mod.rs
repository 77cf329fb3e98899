//! Products with formats that have a scale in half precision for 32 elements.

mod few;
mod many;

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::activations::{Activations, BLOCK};
use super::bytes::{Bytes, Vector};
use super::many::{Decoded, Sums, TILE, Tile, Tiles};
use super::scales::EightScales;
use super::{Blocks, LANES};

/// Tiles of these formats.
pub(super) struct BlockTiles;

impl Tiles for BlockTiles {
    const DIRECT_ROWS: usize = 2;

    #[inline(always)]
    fn direct<B: Bytes, F: BlockFormat, const M: usize>(
        bytes: B,
        weights: &Blocks<'_, F>,
        column: usize,
        activations: &Activations,
        rows: [usize; M],
    ) -> [Vector<B>; M] {
        few::direct(
            bytes,
            weights,
            column,
            &rows.map(|row| activations.row(row)),
        )
    }

    #[inline(always)]
    fn lengths<F: BlockFormat>() -> [usize; 3] {
        let scales = LANES * F::ELEMENTS / BLOCK;
        [scales, if F::HAS_OFFSETS { scales } else { 0 }, 0]
    }

    #[inline(always)]
    fn decode<B: Bytes, F: BlockFormat>(bytes: B, blocks: &[&F::Block; LANES], of: Decoded<'_>) {
        let eight = EightScales::<B>::new::<F>(bytes, blocks);
        for chunk in 0..F::ELEMENTS / BLOCK {
            let place = chunk * LANES..(chunk + 1) * LANES;
            let floats = bytes.floats();
            floats.store_part(&mut of.scales[place.clone()], eight.scales[chunk]);
            if F::HAS_OFFSETS {
                floats.store_part(&mut of.offsets[place], eight.offsets[chunk]);
            }
        }
    }

    #[inline(always)]
    fn multiply<B: Bytes, F: BlockFormat>(
        bytes: B,
        tile: &Tile<'_>,
        sums: &mut Sums<B>,
        rows: [usize; TILE],
    ) {
        many::multiply::<B, F>(bytes, tile, sums, rows);
    }
}
