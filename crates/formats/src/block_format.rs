//! The interface to formats of blocks.
//!
//! In every format an element is `scale * code` or `scale * code + offset`, with a code of 8
//! bits. Scales have so few bits that the product is exact in single precision, so a fused
//! multiplication and addition gives the same bits as ggml's two operations.
//!
//! ggml's `scale * (code - 8)` is exact, too. It equals `scale * code + offset` with an offset of
//! `-8 * scale`, except for the sign of a zero, and the code needs no sign then. Products compute
//! it so. Loading subtracts first, as ggml does, and a zero has ggml's sign.

use crate::simd::Simd;
use crate::wide_bytes::WideBytes;

/// Elements that are decoded at a time.
pub const GROUP: usize = 16;

/// A format of blocks.
pub trait BlockFormat: Copy + Send + Sync + 'static {
    /// An array of the block's bytes.
    type Block: Copy;
    /// Elements of a block.
    const ELEMENTS: usize;
    /// Consecutive elements with the same scale and offset: 16 or 32.
    const SPAN: usize;
    /// Where the numbers in half precision lie in a block: the factor of the scales, then that of
    /// the offsets. Where a block has one span, they are its scale and its offset.
    const HALVES: &'static [usize];
    /// The code of the element zero, in formats whose codes have no signs although their elements
    /// do.
    const ZERO: u8 = 0;
    /// Whether elements have offsets, stored ones or those that stand for [`ZERO`](Self::ZERO).
    const HAS_OFFSETS: bool = Self::HALVES.len() > 1 || Self::ZERO > 0;
    /// Whether codes have signs. Others are below 128.
    const HAS_SIGNS: bool;
    /// The largest magnitude of a code.
    const CODE_MAX: i32;
    /// Where the 16 bytes lie in a block of 256 that hold all of its whole scales, in formats
    /// whose scales are whole numbers times factors of the block: [`HALVES`](Self::HALVES).
    const WHOLE_SCALES: Option<usize> = None;
    /// Whether whole scales have signs.
    const HAS_SIGNED_SCALES: bool = false;

    /// The scales and offsets of a block, one for each span.
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales;

    /// The whole scales and offsets of eight blocks, which have four bytes each in a vector:
    /// `words[i]` holds word `i` of the bytes from [`WHOLE_SCALES`](Self::WHOLE_SCALES), and vector
    /// `i` of the results the numbers of spans `4 i` to `4 i + 3`. An element is
    /// `factor * scale * code - other factor * offset`. In formats with a [`ZERO`](Self::ZERO),
    /// offsets are the scales.
    ///
    /// # Panics
    ///
    /// If [`WHOLE_SCALES`](Self::WHOLE_SCALES) is `None`.
    fn whole_scales<B: WideBytes>(_: B, _: [B::Bytes; 4]) -> [[B::Bytes; 4]; 2] {
        unreachable!("a format without whole scales")
    }

    /// The codes of 16 elements, in the elements' order.
    ///
    /// # Safety
    ///
    /// `group` is below `ELEMENTS / 16`.
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes;

    /// The codes of 32 elements, in the elements' order.
    ///
    /// # Safety
    ///
    /// `chunk` is below `ELEMENTS / 32`.
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes;
}

/// The scales and offsets of a block. Those beyond its spans are arbitrary.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    /// A scale for each span.
    pub scales: [f32; 16],
    /// An offset for each span.
    pub offsets: [f32; 16],
}

impl Scales {
    /// The scale of a block that has only one.
    #[inline(always)]
    #[must_use]
    pub fn one(scale: f32) -> Scales {
        Scales::with_offset(scale, 0.0)
    }

    /// The scale of a block that has only one, where `zero` is the code of zero.
    #[inline(always)]
    pub(crate) fn around(zero: u8, scale: f32) -> Scales {
        Scales::with_offset(scale, -f32::from(zero) * scale)
    }

    /// The scale and the offset of a block that has only one.
    #[inline(always)]
    pub(crate) fn with_offset(scale: f32, offset: f32) -> Scales {
        let (mut scales, mut offsets) = ([0.0; 16], [0.0; 16]);
        (scales[0], offsets[0]) = (scale, offset);
        Scales { scales, offsets }
    }
}

/// One vector of the elements of a group, as products compute them from its 16 `codes`. The
/// argument `may_widen_small` allows [`Simd::widen_small`] for codes without signs.
#[inline(always)]
pub fn element_vector<S: Simd, F: BlockFormat>(
    simd: S,
    codes: S::Bytes,
    scales: &Scales,
    [group, part]: [usize; 2],
    may_widen_small: bool,
) -> S::Vector {
    let span = group * GROUP / F::SPAN;
    let codes = if F::HAS_SIGNS || !may_widen_small {
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

/// 16 signed bytes times `factor`.
#[inline(always)]
pub(crate) fn scaled<S: Simd>(simd: S, bytes: S::Bytes, factor: f32) -> [f32; 16] {
    let mut products = [0.0; 16];
    for (part, products) in products.chunks_exact_mut(S::LANES).enumerate() {
        let numbers = simd.widen(bytes, part);
        simd.store_part(products, simd.mul(numbers, simd.splat(factor)));
    }
    products
}

/// A constant or computed vector of bytes.
#[inline(always)]
pub(crate) fn bytes<S: Simd>(simd: S, bytes: &[u8; 16]) -> S::Bytes {
    // SAFETY: 16 bytes.
    unsafe { simd.load_bytes(bytes.as_ptr()) }
}

/// 16 bytes of a block.
///
/// # Safety
///
/// The block has as many bytes from `at`.
#[inline(always)]
pub(crate) unsafe fn sixteen<S: Simd, const N: usize>(
    simd: S,
    block: &[u8; N],
    at: usize,
) -> S::Bytes {
    debug_assert!(at + 16 <= N, "16 bytes from {at} of {N}");
    // SAFETY: the caller's promise.
    unsafe { simd.load_bytes(block.as_ptr().add(at)) }
}

/// The bits `shift..` of each byte that `mask` keeps.
#[inline(always)]
pub(crate) fn bits<S: Simd>(simd: S, bytes: S::Bytes, shift: usize, mask: u8) -> S::Bytes {
    simd.and(simd.shift_right(bytes, shift as u32), simd.splat_byte(mask))
}

/// The half-precision number at offset `at`.
#[inline(always)]
pub(crate) fn half_at<S: Simd, const N: usize>(simd: S, block: &[u8; N], at: usize) -> f32 {
    simd.half(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// The four bytes at offset `at` as a number.
#[inline(always)]
pub(crate) fn word_at<const N: usize>(block: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Four-bit quants in the 16 bytes from offset `at`: first all lower halves.
///
/// # Safety
///
/// The block has 16 bytes from `at`.
#[inline(always)]
pub(crate) unsafe fn wide_four_bits<B: WideBytes, const N: usize>(
    bytes: B,
    block: &[u8; N],
    at: usize,
) -> B::Bytes {
    debug_assert!(at + 16 <= N, "16 bytes from {at} of {N}");
    // SAFETY: the caller's promise.
    bytes.lower_and_upper(unsafe { bytes.load_twice(block.as_ptr().add(at)) })
}
