//! Products with a few rows of the input. The codes of eight rows of the weights are decoded in
//! registers, for one row of the input at a time.

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::activations::{BLOCK, Row};
use super::bytes::{Bytes, Vector, Work};
use super::scales::EightScales;
use super::{Blocks, LANES, Product};

/// Products with weights that are decoded in registers.
pub(super) struct Few<'a, F> {
    pub(super) product: &'a Product<'a>,
    pub(super) weights: Blocks<'a, F>,
}

impl<F: BlockFormat> Work for Few<'_, F> {
    #[inline(always)]
    fn run<B: Bytes>(self, bytes: B) {
        let Few { product, weights } = self;
        let mut sums = [0.0; LANES];
        for column in (0..weights.rows()).step_by(LANES) {
            let count = LANES.min(weights.rows() - column);
            for row in 0..product.rows {
                let input = product.activations.row(product.first + row, F::SPAN);
                let sum = eight::<B, F>(bytes, &weights, column, input);
                bytes.floats().store_part(&mut sums, sum);
                product.put(row, column, &sums[..count]);
            }
        }
    }
}

/// The products of eight rows from `column` with one row.
#[inline(always)]
fn eight<B: Bytes, F: BlockFormat>(
    bytes: B,
    weights: &Blocks<'_, F>,
    column: usize,
    input: Row<'_>,
) -> Vector<B> {
    let floats = bytes.floats();
    let rows = weights.eight(column);
    let spans = BLOCK / F::SPAN;
    assert!(input.codes.len() == weights.width);
    assert!(input.scales.len() == weights.width / BLOCK);
    assert!(input.sums.len() == weights.width / F::SPAN);
    let mut sum = floats.splat(0.0);
    for index in 0..weights.count() {
        weights.prefetch(bytes, column, index);
        let mut blocks = [&rows[0][0]; LANES];
        for (block, row) in blocks.iter_mut().zip(&rows) {
            // SAFETY: each row has `count` blocks.
            *block = unsafe { row.get_unchecked(index) };
        }
        let scales = EightScales::<B>::new::<F>(bytes, &blocks);
        for chunk in 0..F::ELEMENTS / BLOCK {
            let mut codes = [bytes.splat(0); LANES];
            for (codes, block) in codes.iter_mut().zip(&blocks) {
                // SAFETY: `chunk` is one of the block's.
                *codes = unsafe { F::wide_codes(bytes, block, chunk) };
            }
            let at = index * (F::ELEMENTS / BLOCK) + chunk;
            // SAFETY: the row has as many codes, scales and sums, as was checked above.
            let (other, scale) = unsafe {
                let other = bytes.load(input.codes.as_ptr().add(at * BLOCK).cast());
                (other, floats.splat(*input.scales.get_unchecked(at)))
            };
            let [first, second] = bytes.dots::<F>(&codes, other);
            let dots = if spans == 1 {
                [bytes.add(first, second), second]
            } else {
                [first, second]
            };
            for (span, dot) in dots[..spans].iter().enumerate() {
                let within = chunk * spans + span;
                let weight = floats.mul(scales.scales[within], scale);
                sum = bytes.mul_add(bytes.to_floats(*dot), weight, sum);
                if F::HAS_OFFSETS {
                    // SAFETY: as above.
                    let total = unsafe { *input.sums.get_unchecked(at * spans + span) };
                    sum = bytes.mul_add(scales.offsets[within], floats.splat(total), sum);
                }
            }
        }
    }
    sum
}
