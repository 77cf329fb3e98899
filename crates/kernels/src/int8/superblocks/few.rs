//! Products of codes that are decoded in registers.

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::super::activations::{BLOCK, SUPERBLOCK, SuperRow};
use super::super::bytes::{Bytes, Vector};
use super::super::{Blocks, LANES, blocks_at};
use super::{EightWholeScales, SPANS_MAX, add_block, add_total, spans};

/// Rows of the weights that share the loads of the input.
const ROWS: usize = 2;

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
    assert!(F::ZERO == 0 || F::SPAN == 16);
    assert!(inputs.iter().all(fits));
    let mut sums = [bytes.floats().splat(0.0); M];
    for index in 0..weights.count() {
        // SAFETY: each row has `count` blocks.
        let blocks = unsafe { blocks_at(&rows, index) };
        let eight = EightWholeScales::<B>::new::<F>(bytes, &blocks);
        let mut scales = [[0; 16]; LANES];
        bytes.store_words(eight.scales, &mut scales);
        let mut starts = [bytes.no_ints(); M];
        if F::ZERO > 0 {
            for (start, input) in starts.iter_mut().zip(inputs) {
                // SAFETY: the row has the sums of 16 spans of this block, as was checked above.
                *start = unsafe { bytes.load_parted(input.sums.as_ptr().add(index * SPANS_MAX)) };
            }
        }
        let mut totals = [[bytes.no_ints(); LANES]; M];
        for first in (0..LANES).step_by(ROWS) {
            weights.prefetch::<B, { LANES / ROWS }>(bytes, column, index, first / ROWS);
            let mut of_rows = [bytes.no_ints(); ROWS];
            for (of_row, scales) in of_rows.iter_mut().zip(&scales[first..]) {
                *of_row = row_scales::<B, F>(bytes, scales);
            }
            let mut total = [[bytes.no_ints(); ROWS]; M];
            if F::ZERO > 0 {
                for (total, start) in total.iter_mut().zip(starts) {
                    for (total, scales) in total.iter_mut().zip(of_rows) {
                        let offset = bytes.add_twos(bytes.no_ints(), start, scales);
                        *total = bytes.sub_times(bytes.no_ints(), offset, F::ZERO);
                    }
                }
            }
            for chunk in 0..SUPERBLOCK / BLOCK {
                let mut codes = [bytes.splat(0); ROWS];
                let mut scales = [bytes.no_ints(); ROWS];
                for row in 0..ROWS {
                    // SAFETY: `chunk` is one of the block's.
                    codes[row] = unsafe { F::wide_codes(bytes, blocks[first + row], chunk) };
                    scales[row] = bytes.splat_halves(of_rows[row], chunk);
                }
                for (total, input) in total.iter_mut().zip(inputs) {
                    let at = index * SUPERBLOCK + chunk * BLOCK;
                    // SAFETY: the row has as many codes, as was checked above.
                    let other = unsafe { bytes.load(input.codes.as_ptr().add(at).cast()) };
                    for row in 0..ROWS {
                        total[row] =
                            bytes.add_scaled::<F>(total[row], codes[row], other, scales[row]);
                    }
                }
            }
            for (totals, total) in totals.iter_mut().zip(total) {
                for (row, total) in total.into_iter().enumerate() {
                    totals[first + row] = total;
                }
            }
        }
        let mut offsets = [bytes.no_ints(); SPANS_MAX / 2];
        if F::ZERO == 0 {
            for (pair, offsets) in offsets[..spans::<F>() / 2].iter_mut().enumerate() {
                *offsets = eight.offsets::<F>(bytes, pair);
            }
        }
        for ((sum, totals), input) in sums.iter_mut().zip(&totals).zip(inputs) {
            let total = bytes.sums(totals);
            // SAFETY: the row has as many sums and scales, as was checked above.
            unsafe {
                let sums = input.sums.as_ptr().add(index * spans::<F>());
                let scale = *input.scales.get_unchecked(index);
                *sum = if F::ZERO > 0 {
                    add_total(bytes, *sum, total, eight.factors[0], scale)
                } else {
                    add_block::<B, F>(bytes, *sum, total, &offsets, eight.factors, sums, scale)
                };
            }
        }
    }
    sums
}

/// The scales of a row's block, for [`Bytes::splat_halves`] of each chunk.
#[inline(always)]
fn row_scales<B: Bytes, F: BlockFormat>(bytes: B, scales: &[u8; 16]) -> B::Ints {
    if F::SPAN == BLOCK {
        assert!(!F::HAS_SIGNED_SCALES);
        bytes.widen_eight(scales)
    } else if F::HAS_SIGNED_SCALES {
        bytes.widen_sixteen::<true>(scales)
    } else {
        bytes.widen_sixteen::<false>(scales)
    }
}
