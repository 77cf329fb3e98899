//! Products with MLX's quantised matrices: codes, scales and offsets lie in arrays of their own.
//!
//! The three arrays are read where they are mapped, as three streams. Copied together into blocks
//! they would be one stream, but neither shared between engines nor loaded without reading them.

use std::ops::Range;

use motet_formats::simd::Simd;
use motet_formats::{GROUP, Scaling, Span};

use super::matrix::Matrix;
use crate::products::{SUMS_MAX, summed, sums};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Rows of codes of `BITS` bits with the scales of their groups.
#[derive(Clone, Copy)]
pub(super) struct Grouped<'a, G, const BITS: usize> {
    codes: &'a [u8],
    scaling: G,
    width: usize,
    /// Elements of a group.
    group: usize,
}

impl<'a, G: Scaling, const BITS: usize> Grouped<'a, G, BITS> {
    /// # Panics
    ///
    /// When rows are not whole groups, groups not whole sixteens, or codes not whole rows.
    pub(super) fn new(codes: &'a [u8], scaling: G, width: usize, group: usize) -> Self {
        assert!(group > 0 && group.is_multiple_of(GROUP));
        assert!(width > 0 && width.is_multiple_of(group));
        assert!(codes.len().is_multiple_of(width / 8 * BITS));
        Grouped {
            codes,
            scaling,
            width,
            group,
        }
    }

    #[inline(always)]
    fn groups(self) -> usize {
        self.width / self.group
    }

    #[inline(always)]
    fn row_bytes(self) -> usize {
        self.width / 8 * BITS
    }

    /// Prefetches a share of the rows `ahead`, which are read after these: that of the group with
    /// this index.
    #[inline(always)]
    fn prefetch<S: Simd>(self, simd: S, ahead: &Range<usize>, index: usize) {
        let bytes = ahead.len() * self.row_bytes();
        let share = bytes.div_ceil(self.groups());
        let start = self
            .codes
            .as_ptr()
            .wrapping_add(ahead.start * self.row_bytes());
        for line in (index * share..(index + 1) * share).step_by(LINE) {
            simd.prefetch(start.wrapping_add(line));
        }
        // A scale for each of the rows and groups: as many as there are rows, for each group here.
        let spans = ahead.start * self.groups() + index * ahead.len();
        for place in self.scaling.places(spans) {
            simd.prefetch(place);
        }
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
        let (width, row_bytes, groups) = (self.width, self.row_bytes(), self.groups());
        let codes = &self.codes[row * row_bytes..];
        assert!(codes.len() >= R * row_bytes && others.len() >= M * width);
        let end = self.codes.len() / row_bytes;
        let ahead = end.min(ahead.start)..end.min(ahead.end);
        let mut sums = [simd.splat(0.0); SUMS_MAX];
        for index in 0..groups {
            self.prefetch(simd, &ahead, index);
            let mut spans = [Span {
                scale: 0.0,
                offset: 0.0,
            }; R];
            for (r, span) in spans.iter_mut().enumerate() {
                *span = self.scaling.span(simd, (row + r) * groups + index);
            }
            for first in (index * self.group..(index + 1) * self.group).step_by(GROUP) {
                for r in 0..R {
                    // SAFETY: there are `R` rows, and 16 codes from `first` in each.
                    let codes = unsafe { codes.as_ptr().add(r * row_bytes + first / 8 * BITS) };
                    for part in 0..GROUP / S::LANES {
                        // SAFETY: the 16 codes; `part` is one of theirs.
                        let weights =
                            unsafe { G::elements::<S, BITS>(simd, codes, part, spans[r]) };
                        let at = first + part * S::LANES;
                        for m in 0..M {
                            // SAFETY: there are `M` others of `width` numbers, and the vector
                            // lies within the group.
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

impl<G: Scaling, const BITS: usize> Matrix for Grouped<'_, G, BITS> {
    const IS_PACKED: bool = true;
    const HAS_PRODUCTS: bool = G::HAS_PRODUCTS;

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
