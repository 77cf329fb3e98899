//! Blocks of 32 elements with one scale.
//!
//! Byte ranges of a block; `d` and `m` are in half precision:
//!
//! | format | `d` | `m` | fifth bits | quants | element |
//! |---|---|---|---|---|---|
//! | Q8_0 | 0..2 | | | 2..34, a signed byte each | `d * q` |
//! | Q4_0 | 0..2 | | | 2..18 | `d * (q - 8)` |
//! | Q4_1 | 0..2 | 2..4 | | 4..20 | `d * q + m` |
//! | Q5_0 | 0..2 | | 2..6 | 6..22 | `d * (q - 16)` |
//! | Q5_1 | 0..2 | 2..4 | 4..8 | 8..24 | `d * q + m` |
//!
//! Byte `i` of four-bit quants holds element `i` in its bits 0..4 and element `i + 16` in its bits
//! 4..8. The fifth bits are a 32-bit number; its bit `i` is bit 4 of element `i`.

use crate::block_format::{
    BlockFormat, Scales, bits, bytes, half_at, sixteen, wide_four_bits, word_at,
};
use crate::simd::Simd;
use crate::wide_bytes::WideBytes;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Q8_0;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q4_0;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q4_1;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q5_0;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q5_1;

/// For each group: the byte of the fifth bits that an element's bit is in.
const FIFTH_BYTE: [[u8; 16]; 2] = [
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
    [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3],
];

/// An element's bit within that byte.
const FIFTH_BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

/// 128 less than `FIFTH_BIT`.
const FIFTH_LESS: [u8; 16] = {
    let mut less = FIFTH_BIT;
    let mut at = 0;
    while at < 16 {
        less[at] = less[at].wrapping_sub(128);
        at += 1;
    }
    less
};

/// Four-bit quants from offset `at`.
///
/// # Safety
///
/// The block has 16 bytes from `at`, and `group` is 0 or 1.
#[inline(always)]
unsafe fn four_bits<S: Simd, const N: usize>(
    simd: S,
    block: &[u8; N],
    at: usize,
    group: usize,
) -> S::Bytes {
    // SAFETY: the caller's promise.
    bits(simd, unsafe { sixteen(simd, block, at) }, 4 * group, 15)
}

/// Five-bit quants, from fifth bits at offset `at` and four-bit quants after them.
///
/// # Safety
///
/// The block has 20 bytes from `at`, and `group` is 0 or 1.
#[inline(always)]
unsafe fn five_bits<S: Simd, const N: usize>(
    simd: S,
    block: &[u8; N],
    at: usize,
    group: usize,
) -> S::Bytes {
    // SAFETY: the caller's promise, for both.
    let (fifth, lower) = unsafe {
        (
            sixteen(simd, block, at),
            four_bits(simd, block, at + 4, group),
        )
    };
    let fifth = simd.look_up(fifth, bytes(simd, &FIFTH_BYTE[group]));
    let fifth = simd.and(fifth, bytes(simd, &FIFTH_BIT));
    // The element's bit moves to bit 7, whatever it was. Then it moves to bit 4.
    let fifth = simd.sub_bytes(fifth, bytes(simd, &FIFTH_LESS));
    simd.or(lower, bits(simd, fifth, 3, 16))
}

/// Five-bit quants of a whole block, from fifth bits at offset `at` and four-bit quants after them.
///
/// # Safety
///
/// The block has 20 bytes from `at`.
#[inline(always)]
unsafe fn wide_five_bits<B: WideBytes, const N: usize>(
    bytes: B,
    block: &[u8; N],
    at: usize,
) -> B::Bytes {
    // SAFETY: the caller's promise.
    let lower = unsafe { wide_four_bits(bytes, block, at + 4) };
    let fifth = bytes.spread(word_at(block, at));
    bytes.or(lower, bytes.and(fifth, bytes.splat(16)))
}

impl BlockFormat for Q8_0 {
    type Block = [u8; 34];
    const ELEMENTS: usize = 32;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0];
    const HAS_SIGNS: bool = true;
    const CODE_MAX: i32 = 128;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        Scales::one(half_at(simd, block, 0))
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        // SAFETY: `group` is 0 or 1.
        unsafe { sixteen(simd, block, 2 + 16 * group) }
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: the block has 32 bytes from there.
        unsafe { bytes.load(block.as_ptr().add(2)) }
    }
}

impl BlockFormat for Q4_0 {
    type Block = [u8; 18];
    const ELEMENTS: usize = 32;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0];
    const ZERO: u8 = 8;
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 15;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        Scales::around(Self::ZERO, half_at(simd, block, 0))
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        // SAFETY: the quants are 16 bytes; `group` is 0 or 1.
        unsafe { four_bits(simd, block, 2, group) }
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 16 bytes of quants.
        unsafe { wide_four_bits(bytes, block, 2) }
    }
}

impl BlockFormat for Q4_1 {
    type Block = [u8; 20];
    const ELEMENTS: usize = 32;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0, 2];
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 15;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        Scales::with_offset(half_at(simd, block, 0), half_at(simd, block, 2))
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        // SAFETY: the quants are 16 bytes; `group` is 0 or 1.
        unsafe { four_bits(simd, block, 4, group) }
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 16 bytes of quants.
        unsafe { wide_four_bits(bytes, block, 4) }
    }
}

impl BlockFormat for Q5_0 {
    type Block = [u8; 22];
    const ELEMENTS: usize = 32;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0];
    const ZERO: u8 = 16;
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 31;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        Scales::around(Self::ZERO, half_at(simd, block, 0))
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        // SAFETY: 20 bytes of quants; `group` is 0 or 1.
        unsafe { five_bits(simd, block, 2, group) }
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 20 bytes of quants.
        unsafe { wide_five_bits(bytes, block, 2) }
    }
}

impl BlockFormat for Q5_1 {
    type Block = [u8; 24];
    const ELEMENTS: usize = 32;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0, 2];
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 31;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        Scales::with_offset(half_at(simd, block, 0), half_at(simd, block, 2))
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        // SAFETY: 20 bytes of quants; `group` is 0 or 1.
        unsafe { five_bits(simd, block, 4, group) }
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 20 bytes of quants.
        unsafe { wide_five_bits(bytes, block, 4) }
    }
}
