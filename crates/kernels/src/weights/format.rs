//! The interface to block formats.
//!
//! In every format an element is `scale * code` or `scale * code + offset`, with a code of 8
//! bits. Scales have so few bits that the product is exact in single precision, so a fused
//! multiplication and addition gives the same bits as ggml's two operations.
//!
//! ggml's `scale * (code - 8)` is exact, too. It equals `scale * code + offset` with an offset of
//! `-8 * scale`, except for the sign of a zero, and the code needs no sign then.

use crate::simd::Simd;

/// Elements that are decoded at a time.
pub(crate) const GROUP: usize = 16;

/// A block format.
pub(crate) trait Format: Copy + Send + Sync + 'static {
    /// An array of the block's bytes.
    type Block: Copy;
    /// Elements of a block.
    const ELEMENTS: usize;
    /// Consecutive elements with the same scale and offset: 16 or 32.
    const SPAN: usize;
    /// Whether elements have offsets.
    const HAS_OFFSETS: bool;
    /// Whether codes have signs. Others are below 128.
    const HAS_SIGNS: bool;

    /// The scales and offsets of a block, one for each span.
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales;

    /// The codes of 16 elements, in the elements' order.
    ///
    /// # Safety
    ///
    /// `group` is below `ELEMENTS / 16`.
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes;
}

/// Elements and bytes of a block.
pub(crate) const fn shape<F: Format>() -> (usize, usize) {
    (F::ELEMENTS, size_of::<F::Block>())
}

/// The scales and offsets of a block. Those beyond its spans are arbitrary.
#[derive(Clone, Copy)]
pub(crate) struct Scales {
    pub(crate) scales: [f32; 16],
    pub(crate) offsets: [f32; 16],
}

impl Scales {
    /// The scale of a block that has only one.
    #[inline(always)]
    pub(crate) fn one(scale: f32) -> Scales {
        Scales::with_offset(scale, 0.0)
    }

    /// The scale of a block that has only one, where `zero` is the code of zero.
    #[inline(always)]
    pub(crate) fn around(zero: f32, scale: f32) -> Scales {
        Scales::with_offset(scale, -zero * scale)
    }

    /// The scale and the offset of a block that has only one.
    #[inline(always)]
    pub(crate) fn with_offset(scale: f32, offset: f32) -> Scales {
        let (mut scales, mut offsets) = ([0.0; 16], [0.0; 16]);
        (scales[0], offsets[0]) = (scale, offset);
        Scales { scales, offsets }
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
