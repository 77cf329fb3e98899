//! Formats whose four-bit quants index a table of 16 values.
//!
//! Byte ranges of a block:
//!
//! | format | elements | scale | quants | element |
//! |---|---|---|---|---|
//! | IQ4_NL | 32 | 0..2 | 2..18 | `d * table[q]` |
//! | IQ4_XS | 256 | 0..8 | 8..136 | `d * (scale - 32) * table[q]` |
//! | MXFP4 | 32 | 0 | 1..17 | `2^(scale - 127) * number(q)` |
//!
//! Every 32 quants have 16 bytes: byte `i` holds element `i` in its bits 0..4 and element `i + 16`
//! in its bits 4..8. `d` is in half precision. IQ4_XS has eight scales of six bits for 32 elements
//! each: scale `j` has its lower four bits in byte `4 + j / 2`, bits `4 (j % 2) ..`, and its upper two
//! in bits `2j..2j+2` of the 16-bit number in bytes 2..4.
//!
//! A quant of MXFP4 is a number of its own: the sign in bit 3, an exponent in bits 1 and 2,
//! a mantissa in bit 0. The scale is an exponent, and 255 stands for NaN (Open Compute Project,
//! Microscaling Formats 1.0, sections 5.3.3 and 5.4.1). As in ggml, a zero loses its sign.

use crate::block_format::{
    BlockFormat, Scales, bits, bytes, half_at, scaled, sixteen, wide_four_bits, word_at,
};
use crate::simd::Simd;
use crate::wide_bytes::WideBytes;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Iq4Nl;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iq4Xs;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mxfp4;

/// Values of IQ4_NL and IQ4_XS, closer to each other near zero, where most weights are.
const UNEVEN: [u8; 16] = unsigned([
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
]);

/// Twice the numbers of MXFP4.
const TWICE_E2M1: [u8; 16] = unsigned([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);

const fn unsigned(values: [i8; 16]) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut at = 0;
    while at < 16 {
        bytes[at] = values[at] as u8;
        at += 1;
    }
    bytes
}

/// Values of `table` for the quants from offset `at`.
///
/// # Safety
///
/// The block has 16 bytes from `at`.
#[inline(always)]
unsafe fn values<S: Simd, const N: usize>(
    simd: S,
    table: &[u8; 16],
    block: &[u8; N],
    at: usize,
    half: usize,
) -> S::Bytes {
    // SAFETY: the caller's promise.
    let quants = bits(simd, unsafe { sixteen(simd, block, at) }, 4 * half, 15);
    simd.look_up(bytes(simd, table), quants)
}

/// Twice the numbers of MXFP4 that 16 quants stand for.
#[inline(always)]
pub(crate) fn number_of<S: Simd>(simd: S, quants: S::Bytes) -> S::Bytes {
    simd.look_up(bytes(simd, &TWICE_E2M1), quants)
}

impl BlockFormat for Iq4Nl {
    type Block = [u8; 18];
    const ELEMENTS: usize = 32;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0];
    const HAS_SIGNS: bool = true;
    const CODE_MAX: i32 = 127;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        Scales::one(half_at(simd, block, 0))
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        // SAFETY: the quants are 16 bytes.
        unsafe { values(simd, &UNEVEN, block, 2, group) }
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 16 bytes of quants.
        bytes.look_up(&UNEVEN, unsafe { wide_four_bits(bytes, block, 2) })
    }
}

impl BlockFormat for Iq4Xs {
    type Block = [u8; 136];
    const ELEMENTS: usize = 256;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0];
    const HAS_SIGNS: bool = true;
    const CODE_MAX: i32 = 127;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        // The fields of both numbers are spread over the bytes of two others.
        let mut lower = u64::from(word_at(block, 4));
        lower = (lower | lower << 16) & 0x0000_FFFF_0000_FFFF;
        lower = (lower | lower << 8) & 0x00FF_00FF_00FF_00FF;
        lower = (lower | lower << 4) & 0x0F0F_0F0F_0F0F_0F0F;
        let mut upper = u64::from(u16::from_le_bytes([block[2], block[3]]));
        upper = (upper | upper << 24) & 0x0000_00FF_0000_00FF;
        upper = (upper | upper << 12) & 0x000F_000F_000F_000F;
        upper = (upper | upper << 6) & 0x0303_0303_0303_0303;
        let together = u128::from(lower | upper << 4).to_le_bytes();
        let scales = simd.sub_bytes(bytes(simd, &together), simd.splat_byte(32));
        Scales {
            scales: scaled(simd, scales, half_at(simd, block, 0)),
            offsets: [0.0; 16],
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        // SAFETY: 16 bytes for every 32 elements; `group` is below 16.
        unsafe { values(simd, &UNEVEN, block, 8 + 16 * (group / 2), group % 2) }
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        // SAFETY: 16 bytes for every chunk.
        let quants = unsafe { wide_four_bits(bytes, block, 8 + 16 * chunk) };
        bytes.look_up(&UNEVEN, quants)
    }
}

impl BlockFormat for Mxfp4 {
    type Block = [u8; 17];
    const ELEMENTS: usize = 32;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[];
    const HAS_SIGNS: bool = true;
    const CODE_MAX: i32 = 12;

    #[inline(always)]
    fn scales<S: Simd>(_: S, block: &Self::Block) -> Scales {
        Scales::one(half_power(block[0]))
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        // SAFETY: the quants are 16 bytes.
        unsafe { values(simd, &TWICE_E2M1, block, 1, group) }
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 16 bytes of quants.
        bytes.look_up(&TWICE_E2M1, unsafe { wide_four_bits(bytes, block, 1) })
    }
}

/// `2^(exponent - 128)`: half of what the exponent says, because the table holds twice the
/// numbers. The two smallest powers are subnormal.
#[inline(always)]
pub(crate) fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 1 << (21 + exponent),
        255 => return f32::NAN,
        _ => u32::from(exponent - 1) << 23,
    })
}
