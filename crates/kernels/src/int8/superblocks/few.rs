//! Products of codes that are decoded in registers.

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::super::activations::{BLOCK, SUPERBLOCK, SuperRow};
use super::super::bytes::{Bytes, Vector};
use super::super::{Blocks, LANES};
use super::{EightWholeScales, SPANS_MAX, add_block, spans};

/// The products of eight rows from `column` with these rows.
#[inline(always)]
pub(super) fn direct<B: Bytes, F: BlockFormat, const M: usize>(
    bytes: B,
    weights: &Blocks<'_, F>,
    column: usize,
    inputs: &[SuperRow<'_>; M],
) -> [Vector<B>; M] {
    let rows = weights.eight(column);
    let fits = |row: &SuperRow<'_>| {
        row.codes.len() == weights.width
            && row.scales.len() == weights.count()
            && row.sums.len() == weights.count() * spans::<F>()
    };
    assert!(inputs.iter().all(fits));
    let mut sums = [bytes.floats().splat(0.0); M];
    for index in 0..weights.count() {
        weights.prefetch(bytes, column, index);
        let mut blocks = [&rows[0][0]; LANES];
        for (block, row) in blocks.iter_mut().zip(&rows) {
            // SAFETY: each row has `count` blocks.
            *block = unsafe { row.get_unchecked(index) };
        }
        let eight = EightWholeScales::<B>::new::<F>(bytes, &blocks);
        let mut scales = [[0; LANES]; SPANS_MAX];
        for (span, scales) in scales[..spans::<F>()].iter_mut().enumerate() {
            // SAFETY: eight integers.
            unsafe { bytes.store_ints(scales.as_mut_ptr(), eight.scale::<F>(bytes, span)) };
        }
        let mut totals = [[bytes.no_ints(); LANES]; M];
        for (lane, block) in blocks.iter().enumerate() {
            let mut total = [bytes.no_ints(); M];
            for chunk in 0..SUPERBLOCK / BLOCK {
                // SAFETY: `chunk` is one of the block's.
                let codes = unsafe { F::wide_codes(bytes, block, chunk) };
                // SAFETY: an integer.
                let scale =
                    |span: usize| unsafe { bytes.splat_pair(&raw const scales[span][lane]) };
                let scale = if F::SPAN == BLOCK {
                    scale(chunk)
                } else {
                    bytes.join(scale(2 * chunk), scale(2 * chunk + 1))
                };
                for (total, input) in total.iter_mut().zip(inputs) {
                    let at = index * SUPERBLOCK + chunk * BLOCK;
                    // SAFETY: the row has as many codes, as was checked above.
                    let other = unsafe { bytes.load(input.codes.as_ptr().add(at).cast()) };
                    *total = bytes.add_scaled::<F>(*total, codes, other, scale);
                }
            }
            for (totals, total) in totals.iter_mut().zip(total) {
                totals[lane] = total;
            }
        }
        let mut offsets = [bytes.no_ints(); SPANS_MAX / 2];
        for (pair, offsets) in offsets[..spans::<F>() / 2].iter_mut().enumerate() {
            *offsets = eight.offsets::<F>(bytes, pair);
        }
        for ((sum, totals), input) in sums.iter_mut().zip(&totals).zip(inputs) {
            let total = bytes.sums(totals);
            // SAFETY: the row has as many sums and scales, as was checked above.
            *sum = unsafe {
                let sums = input.sums.as_ptr().add(index * spans::<F>());
                let scale = *input.scales.get_unchecked(index);
                add_block::<B, F>(bytes, *sum, total, &offsets, eight.factors, sums, scale)
            };
        }
    }
    sums
}
