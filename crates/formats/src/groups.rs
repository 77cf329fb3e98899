//! MLX's formats: codes, scales and offsets lie in arrays of their own.
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
//! again, which this crate does not.

use half::bf16;

use crate::codebooks::{half_power, number_of};
use crate::format::ScaleFormat;
use crate::simd::Simd;

/// The scale and the offset of a group.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The factor of codes.
    pub scale: f32,
    /// Zero where groups have none.
    pub offset: f32,
}

/// The scales and offsets of a matrix's groups, and what codes become with them.
pub trait Scaling: Copy + Send + Sync {
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves<'a> {
    pub(crate) scales: &'a [[u8; 2]],
    pub(crate) offsets: &'a [[u8; 2]],
    pub(crate) format: ScaleFormat,
}

/// Scales and offsets in single precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Singles<'a> {
    pub(crate) scales: &'a [[u8; 4]],
    pub(crate) offsets: &'a [[u8; 4]],
}

/// Scales that are exponents, of codes that are numbers of MXFP4.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exponents<'a> {
    pub(crate) scales: &'a [u8],
}

impl Scaling for Halves<'_> {
    #[inline(always)]
    fn span<S: Simd>(self, simd: S, index: usize) -> Span {
        let [scale, offset] = [self.scales[index], self.offsets[index]].map(u16::from_le_bytes);
        match self.format {
            ScaleFormat::BF16 => Span {
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
