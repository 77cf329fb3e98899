//! Products with rows of blocks, and their decoding.

use std::marker::PhantomData;
use std::ops::Range;

use super::format::{Format, GROUP, Scales};
use super::matrix::Matrix;
use crate::products::{SUMS_MAX, summed, sums};
use crate::simd::Simd;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes ahead of the decoded block that are prefetched.
const DISTANCE: usize = 2048;

/// Groups that are decoded without a loop around them: half a block of 256 elements. Places and
/// shifts are constants then.
const UNROLLED: usize = 8;

/// Rows of blocks of one format.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a, F> {
    bytes: &'a [u8],
    width: usize,
    format: PhantomData<F>,
}

impl<'a, F: Format> Packed<'a, F> {
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
                        let weights = weights::<S, F, M>(simd, codes, &scales[r], group, part);
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

/// One vector of decoded elements. `OTHERS` is the number of rows that it is multiplied with.
#[inline(always)]
fn weights<S: Simd, F: Format, const OTHERS: usize>(
    simd: S,
    codes: S::Bytes,
    scales: &Scales,
    group: usize,
    part: usize,
) -> S::Vector {
    let span = group * GROUP / F::SPAN;
    // With four others, the registers that `widen_small` takes were measured to cost more than it
    // saves.
    let codes = if F::HAS_SIGNS || OTHERS == 4 {
        simd.widen(codes, part)
    } else {
        simd.widen_small(codes, part)
    };
    let scale = simd.splat(scales.scales[span]);
    if F::HAS_OFFSETS {
        simd.mul_add(scale, codes, simd.splat(scales.offsets[span]))
    } else {
        simd.mul(scale, codes)
    }
}

impl<F: Format> Matrix for Packed<'_, F> {
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

    #[inline(always)]
    fn decode<S: Simd>(self, simd: S, row: usize, along: Range<usize>, output: &mut [f32]) {
        let whole =
            along.start.is_multiple_of(F::ELEMENTS) && along.end.is_multiple_of(F::ELEMENTS);
        assert!(whole && along.end <= self.width && along.len() == output.len());
        let size = size_of::<F::Block>();
        let bytes = &self.bytes[row * self.row_bytes()..][..self.row_bytes()];
        let bytes = &bytes[along.start / F::ELEMENTS * size..along.end / F::ELEMENTS * size];
        let blocks = bytes.chunks_exact(size);
        for (block, output) in blocks.zip(output.chunks_exact_mut(F::ELEMENTS)) {
            for line in (0..size_of::<F::Block>()).step_by(LINE) {
                simd.prefetch(block.as_ptr().wrapping_add(DISTANCE + line));
            }
            // SAFETY: the block's bytes.
            let block = unsafe { &*block.as_ptr().cast::<F::Block>() };
            let scales = F::scales(simd, block);
            let together = UNROLLED.min(F::ELEMENTS / GROUP);
            for (first, output) in output.chunks_exact_mut(together * GROUP).enumerate() {
                for index in 0..together {
                    let group = first * together + index;
                    // SAFETY: `group` is one of the block's.
                    let codes = unsafe { F::codes(simd, block, group) };
                    let output = &mut output[index * GROUP..][..GROUP];
                    for (part, output) in output.chunks_exact_mut(S::LANES).enumerate() {
                        let weights = weights::<S, F, 0>(simd, codes, &scales, group, part);
                        simd.store_part(output, weights);
                    }
                }
            }
        }
    }
}
