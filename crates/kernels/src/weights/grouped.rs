//! MLX's quantised matrices: codes, scales and offsets lie in arrays of their own.
//!
//! Rows are cut into groups of 32, 64 or 128 elements. Codes have 2 to 8 bits and lie one after
//! the other, from the lowest bit up, without gaps: eight of them are as many bytes as one has
//! bits. Each group has a scale, and an offset in affine matrices, which MLX calls the bias.
//!
//! | form | element |
//! |---|---|
//! | affine, scales and offsets in half precision | `scale * code + offset`, exact but for the sum |
//! | affine, scales and offsets in single precision | the product is rounded, then the sum |
//! | MXFP4 | `2^(scale - 127) * number(code)`, as in `codebooks.rs` |
//!
//! Both kinds of affine elements are those of MLX's `dequantize` with scales and offsets in single
//! precision. With scales in half precision, MLX rounds product and sum to half precision
//! again, which these kernels do not.
//!
//! The three arrays are read where they are mapped, as three streams. Copied together into blocks
//! they would be one stream, but neither shared between engines nor loaded without reading them.

use std::ops::Range;

use half::bf16;

use super::ScaleFormat;
use super::codebooks::{half_power, number_of};
use super::format::GROUP;
use super::matrix::Matrix;
use crate::products::{SUMS_MAX, summed, sums};
use crate::simd::Simd;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes ahead of the decoded group that are prefetched.
const DISTANCE: usize = 2048;

/// The scale and the offset of a group.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) scale: f32,
    pub(super) offset: f32,
}

/// The scales and offsets of a matrix's groups, and what codes become with them.
pub(super) trait Scaling: Copy + Send + Sync {
    /// Whether products are compiled, which takes long for each of them.
    const HAS_PRODUCTS: bool = true;

    /// The scale and the offset of the group with this index.
    fn span<S: Simd>(self, simd: S, index: usize) -> Span;

    /// One vector of elements.
    ///
    /// # Safety
    ///
    /// `codes` is readable for 16 codes of `BITS` bits, and `part` is below `16 / LANES`.
    unsafe fn elements<S: Simd, const BITS: usize>(
        simd: S,
        codes: *const u8,
        part: usize,
        span: Span,
    ) -> S::Vector;

    /// The bytes at a group's place in each array, to be prefetched.
    fn places(self, index: usize) -> [*const u8; 2];
}

/// Scales and offsets in half precision of either kind.
#[derive(Clone, Copy)]
pub(super) struct Halves<'a> {
    pub(super) scales: &'a [[u8; 2]],
    pub(super) offsets: &'a [[u8; 2]],
    pub(super) format: ScaleFormat,
}

/// Scales and offsets in single precision.
#[derive(Clone, Copy)]
pub(super) struct Singles<'a> {
    pub(super) scales: &'a [[u8; 4]],
    pub(super) offsets: &'a [[u8; 4]],
}

/// Scales that are exponents, of codes that are numbers of MXFP4.
#[derive(Clone, Copy)]
pub(super) struct Exponents<'a> {
    pub(super) scales: &'a [u8],
}

impl Scaling for Halves<'_> {
    #[inline(always)]
    fn span<S: Simd>(self, simd: S, index: usize) -> Span {
        let [scale, offset] = [self.scales[index], self.offsets[index]].map(u16::from_le_bytes);
        match self.format {
            ScaleFormat::Bf16 => Span {
                scale: bf16::from_bits(scale).to_f32_const(),
                offset: bf16::from_bits(offset).to_f32_const(),
            },
            _ => Span {
                scale: simd.half(scale),
                offset: simd.half(offset),
            },
        }
    }

    #[inline(always)]
    unsafe fn elements<S: Simd, const BITS: usize>(
        simd: S,
        codes: *const u8,
        part: usize,
        span: Span,
    ) -> S::Vector {
        // SAFETY: the caller's promise.
        let codes = unsafe { simd.load_fields::<BITS>(codes, part) };
        // 8 bits times 11 bits: the product is exact.
        simd.mul_add(simd.splat(span.scale), codes, simd.splat(span.offset))
    }

    #[inline(always)]
    fn places(self, index: usize) -> [*const u8; 2] {
        [self.scales, self.offsets].map(|all| all.as_ptr().wrapping_add(index).cast())
    }
}

impl Scaling for Singles<'_> {
    // Few folders have such scales: their rows are decoded into memory.
    const HAS_PRODUCTS: bool = false;

    #[inline(always)]
    fn span<S: Simd>(self, _: S, index: usize) -> Span {
        Span {
            scale: f32::from_le_bytes(self.scales[index]),
            offset: f32::from_le_bytes(self.offsets[index]),
        }
    }

    #[inline(always)]
    unsafe fn elements<S: Simd, const BITS: usize>(
        simd: S,
        codes: *const u8,
        part: usize,
        span: Span,
    ) -> S::Vector {
        // SAFETY: the caller's promise.
        let codes = unsafe { simd.load_fields::<BITS>(codes, part) };
        let product = simd.mul(simd.splat(span.scale), codes);
        simd.add(product, simd.splat(span.offset))
    }

    #[inline(always)]
    fn places(self, index: usize) -> [*const u8; 2] {
        [self.scales, self.offsets].map(|all| all.as_ptr().wrapping_add(index).cast())
    }
}

impl Scaling for Exponents<'_> {
    #[inline(always)]
    fn span<S: Simd>(self, _: S, index: usize) -> Span {
        Span {
            scale: half_power(self.scales[index]),
            offset: 0.0,
        }
    }

    #[inline(always)]
    unsafe fn elements<S: Simd, const BITS: usize>(
        simd: S,
        codes: *const u8,
        part: usize,
        span: Span,
    ) -> S::Vector {
        const { assert!(BITS == 4, "MXFP4 has four bits") };
        // SAFETY: the caller's promise.
        let numbers = number_of(simd, unsafe { simd.unpack::<4>(codes) });
        simd.mul(simd.splat(span.scale), simd.widen(numbers, part))
    }

    #[inline(always)]
    fn places(self, index: usize) -> [*const u8; 2] {
        [self.scales.as_ptr().wrapping_add(index); 2]
    }
}

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

    #[inline(always)]
    fn decode<S: Simd>(self, simd: S, row: usize, along: Range<usize>, output: &mut [f32]) {
        let whole = along.start.is_multiple_of(self.group) && along.end.is_multiple_of(self.group);
        assert!(whole && along.end <= self.width && along.len() == output.len());
        let codes = &self.codes[row * self.row_bytes()..][..self.row_bytes()];
        let codes = &codes[along.start / 8 * BITS..along.end / 8 * BITS];
        let first = row * self.groups() + along.start / self.group;
        let groups = codes.chunks_exact(self.group / 8 * BITS);
        for (index, (codes, output)) in groups.zip(output.chunks_exact_mut(self.group)).enumerate()
        {
            for line in (0..codes.len()).step_by(LINE) {
                simd.prefetch(codes.as_ptr().wrapping_add(DISTANCE + line));
            }
            let span = self.scaling.span(simd, first + index);
            let sixteens = codes.chunks_exact(2 * BITS);
            for (codes, output) in sixteens.zip(output.chunks_exact_mut(GROUP)) {
                for (part, output) in output.chunks_exact_mut(S::LANES).enumerate() {
                    // SAFETY: 16 codes; `part` is one of theirs.
                    let elements =
                        unsafe { G::elements::<S, BITS>(simd, codes.as_ptr(), part, span) };
                    simd.store_part(output, elements);
                }
            }
        }
    }
}
