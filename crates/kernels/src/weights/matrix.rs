//! The interface to matrices of any format, and matrices of numbers.

use std::ops::Range;

use motet_formats::simd::{Number, Simd};

use crate::products::{SUMS_MAX, along, along_fewer};

/// Rows of one format.
pub(crate) trait Matrix: Copy + Send + Sync {
    /// Whether the rows are blocks, which are decoded with operations on bytes.
    const IS_PACKED: bool;

    /// Whether products are compiled. Other rows are always decoded into memory.
    const HAS_PRODUCTS: bool = true;

    /// Elements in a row.
    fn width(self) -> usize;

    /// Dot products of the `R` rows from `row` with `M` vectors, as [`along`]. Prefetches the rows
    /// `ahead` that exist.
    fn along<S: Simd, const R: usize, const M: usize>(
        self,
        simd: S,
        row: usize,
        others: &[f32],
        ahead: Range<usize>,
    ) -> [f32; SUMS_MAX];

    /// [`along`] for one row and one other. Results are the same to the last bit.
    fn along_one<S: Simd>(self, simd: S, row: usize, other: &[f32]) -> [f32; SUMS_MAX];
}

/// Rows of numbers.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a, N> {
    numbers: &'a [N],
    width: usize,
}

impl<'a, N: Number> Plain<'a, N> {
    /// # Panics
    ///
    /// When the bytes are not aligned for the numbers.
    pub(super) fn new(bytes: &'a [u8], width: usize) -> Plain<'a, N> {
        Plain {
            numbers: bytemuck::cast_slice(bytes),
            width,
        }
    }
}

impl<N: Number> Matrix for Plain<'_, N> {
    const IS_PACKED: bool = false;

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
        let width = self.width;
        let end = self.numbers.len();
        let ahead = &self.numbers[end.min(ahead.start * width)..end.min(ahead.end * width)];
        along::<S, N, R, M>(simd, &self.numbers[row * width..], others, width, ahead)
    }

    #[inline(always)]
    fn along_one<S: Simd>(self, simd: S, row: usize, other: &[f32]) -> [f32; SUMS_MAX] {
        let row = &self.numbers[row * self.width..][..self.width];
        along_fewer(simd, row, other, self.width)
    }
}
