//! Products with rows of blocks.

use std::marker::PhantomData;
use std::ops::Range;

use motet_formats::simd::Simd;
use motet_formats::{BlockFormat, GROUP, Scales, element_vector};

use super::matrix::Matrix;
use crate::products::{SUMS_MAX, summed, sums};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Rows of blocks of one format.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a, F> {
    bytes: &'a [u8],
    width: usize,
    format: PhantomData<F>,
}

impl<'a, F: BlockFormat> Packed<'a, F> {
    /// # Panics
    ///
    /// When the bytes are not whole rows of whole blocks.
    pub(super) fn new(bytes: &'a [u8], width: usize) -> Packed<'a, F> {
        const { assert!(align_of::<F::Block>() == 1, "blocks lie anywhere") };
        assert!(width > 0 && width.is_multiple_of(F::ELEMENTS));
        let packed = Packed {
            bytes,
            width,
            format: PhantomData,
        };
        assert!(bytes.len().is_multiple_of(packed.row_bytes()));
        packed
    }

    #[inline(always)]
    fn blocks(self) -> usize {
        self.width / F::ELEMENTS
    }

    #[inline(always)]
    fn row_bytes(self) -> usize {
        self.blocks() * size_of::<F::Block>()
    }

    /// Vectors of `R` rows' products with `M` others, to be summed.
    ///
    /// # Panics
    ///
    /// When there are fewer rows or others.
    #[inline(always)]
    fn products<S: Simd, const R: usize, const M: usize>(
        self,
        simd: S,
        row: usize,
        others: &[f32],
        ahead: Range<usize>,
    ) -> [S::Vector; SUMS_MAX] {
        let (width, row_bytes) = (self.width, self.row_bytes());
        let bytes = &self.bytes[row * row_bytes..];
        assert!(bytes.len() >= R * row_bytes && others.len() >= M * width);
        let end = self.bytes.len();
        let ahead = &self.bytes[end.min(ahead.start * row_bytes)..end.min(ahead.end * row_bytes)];
        let share = ahead.len().div_ceil(self.blocks());
        let mut sums = [simd.splat(0.0); SUMS_MAX];
        for index in 0..self.blocks() {
            for line in (index * share..(index + 1) * share).step_by(LINE) {
                simd.prefetch(ahead.as_ptr().wrapping_add(line));
            }
            // SAFETY: there are `R` rows with `blocks()` blocks each, and a block is bytes.
            let block = |r: usize| unsafe {
                let at = bytes.as_ptr().add(r * row_bytes).cast::<F::Block>();
                &*at.add(index)
            };
            let mut scales = [Scales::one(0.0); R];
            for (r, scales) in scales.iter_mut().enumerate() {
                *scales = F::scales(simd, block(r));
            }
            for group in 0..F::ELEMENTS / GROUP {
                for r in 0..R {
                    // SAFETY: `group` is one of the block's.
                    let codes = unsafe { F::codes(simd, block(r), group) };
                    for part in 0..GROUP / S::LANES {
                        let element = group * GROUP + part * S::LANES;
                        // With four others, the registers that `widen_small` takes were measured
                        // to cost more than it saves.
                        let (scales, places) = (&scales[r], [group, part]);
                        let weights = element_vector::<S, F>(simd, codes, scales, places, M != 4);
                        let at = index * F::ELEMENTS + element;
                        for m in 0..M {
                            // SAFETY: there are `M` others of `width` numbers, and the vector
                            // lies within block `index` of the row.
                            let other = unsafe { simd.load(others.as_ptr().add(m * width + at)) };
                            let sum = &mut sums[r * M + m];
                            *sum = simd.mul_add(weights, other, *sum);
                        }
                    }
                }
            }
        }
        sums
    }
}

impl<F: BlockFormat> Matrix for Packed<'_, F> {
    const IS_PACKED: bool = true;

    #[inline(always)]
    fn width(self) -> usize {
        self.width
    }

    #[inline(always)]
    fn along<S: Simd, const R: usize, const M: usize>(
        self,
        simd: S,
        row: usize,
        others: &[f32],
        ahead: Range<usize>,
    ) -> [f32; SUMS_MAX] {
        assert!(R * M == sums::<S>());
        let sums = self.products::<S, R, M>(simd, row, others, ahead);
        summed(simd, &sums[..R * M])
    }

    #[inline(always)]
    fn along_one<S: Simd>(self, simd: S, row: usize, other: &[f32]) -> [f32; SUMS_MAX] {
        summed(simd, &self.products::<S, 1, 1>(simd, row, other, 0..0))
    }
}
