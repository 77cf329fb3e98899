//! Products of codes that are decoded in registers.

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::super::activations::{BLOCK, Row};
use super::super::bytes::{Bytes, Vector};
use super::super::scales::EightScales;
use super::super::{Blocks, LANES, blocks_at};

/// The products of eight rows from `column` with these rows.
#[inline(always)]
pub(super) fn direct<B: Bytes, F: BlockFormat, const M: usize>(
    bytes: B,
    weights: &Blocks<'_, F>,
    column: usize,
    inputs: &[Row<'_>; M],
) -> [Vector<B>; M] {
    let floats = bytes.floats();
    let rows = weights.eight(column);
    let fits = |input: &Row<'_>| {
        input.codes.len() == weights.width
            && input.scales.len() == weights.width / BLOCK
            && input.sums.len() == weights.width / BLOCK
    };
    assert!(F::SPAN == BLOCK && inputs.iter().all(fits));
    let mut sums = [floats.splat(0.0); M];
    for index in 0..weights.count() {
        weights.prefetch::<B, 1>(bytes, column, index, 0);
        // SAFETY: each row has `count` blocks.
        let blocks = unsafe { blocks_at(&rows, index) };
        let scales = EightScales::<B>::new::<F>(bytes, &blocks);
        for chunk in 0..F::ELEMENTS / BLOCK {
            let mut codes = [bytes.splat(0); LANES];
            for (codes, block) in codes.iter_mut().zip(&blocks) {
                // SAFETY: `chunk` is one of the block's.
                *codes = unsafe { F::wide_codes(bytes, block, chunk) };
            }
            let at = index * (F::ELEMENTS / BLOCK) + chunk;
            for (sum, input) in sums.iter_mut().zip(inputs) {
                // SAFETY: the row has as many codes, scales and sums, as was checked above.
                let (other, scale, total) = unsafe {
                    let other = bytes.load(input.codes.as_ptr().add(at * BLOCK).cast());
                    let scale = *input.scales.get_unchecked(at);
                    (other, scale, *input.sums.get_unchecked(at))
                };
                let dots = bytes.dots::<F>(&codes, other);
                let weight = floats.mul(scales.scales[chunk], floats.splat(scale));
                *sum = bytes.mul_add(bytes.to_floats(dots), weight, *sum);
                if F::HAS_OFFSETS {
                    *sum = bytes.mul_add(scales.offsets[chunk], floats.splat(total), *sum);
                }
            }
        }
    }
    sums
}
