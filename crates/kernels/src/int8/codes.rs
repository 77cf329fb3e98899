//! [`Codes`] of each format. The layouts are in the documentation of the formats'
//! own modules.

use super::bytes::{Bytes, Codes, Halves, Offset};
use crate::weights::blocks::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::weights::codebooks::{Iq4Nl, Iq4Xs, Mxfp4, TWICE_E2M1, UNEVEN};
use crate::weights::format::word_at;
use crate::weights::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};

const fn halves(scale: usize, offset: Offset) -> Option<Halves> {
    Some(Halves { scale, offset })
}

/// Four-bit quants in the 16 bytes from offset `at`.
///
/// # Safety
///
/// The block has 16 bytes from `at`.
#[inline(always)]
unsafe fn four_bits<B: Bytes, const N: usize>(bytes: B, block: &[u8; N], at: usize) -> B::Bytes {
    debug_assert!(at + 16 <= N);
    // SAFETY: the caller's promise.
    bytes.lower_and_upper(unsafe { bytes.load_twice(block.as_ptr().add(at)) })
}

/// Five-bit quants, from fifth bits at offset `at` and four-bit quants after them.
///
/// # Safety
///
/// The block has 20 bytes from `at`.
#[inline(always)]
unsafe fn five_bits<B: Bytes, const N: usize>(bytes: B, block: &[u8; N], at: usize) -> B::Bytes {
    // SAFETY: the caller's promise.
    let lower = unsafe { four_bits(bytes, block, at + 4) };
    let fifth = bytes.spread(word_at(block, at));
    bytes.or(lower, bytes.and(fifth, bytes.splat(16)))
}

/// The bits `shift..` that `mask` keeps of each of the 32 bytes from offset `at`.
///
/// # Safety
///
/// The block has 32 bytes from `at`.
#[inline(always)]
unsafe fn bits<B: Bytes, const N: usize>(
    bytes: B,
    block: &[u8; N],
    at: usize,
    shift: usize,
    mask: u8,
) -> B::Bytes {
    debug_assert!(at + 32 <= N);
    // SAFETY: the caller's promise.
    let all = unsafe { bytes.load(block.as_ptr().add(at)) };
    bytes.and(bytes.shift_right(all, shift), bytes.splat(mask))
}

/// `lower | higher << shift`.
#[inline(always)]
fn join<B: Bytes>(bytes: B, lower: B::Bytes, higher: B::Bytes, shift: usize) -> B::Bytes {
    bytes.or(lower, bytes.shift_left(higher, shift))
}

impl Codes for Q8_0 {
    const CODE_MAX: i32 = 128;
    const HALVES: Option<Halves> = halves(0, Offset::None);

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: the block has 32 bytes from there.
        unsafe { bytes.load(block.as_ptr().add(2)) }
    }
}

impl Codes for Q4_0 {
    const CODE_MAX: i32 = 15;
    const HALVES: Option<Halves> = halves(0, Offset::Times(-8.0));

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 16 bytes of quants.
        unsafe { four_bits(bytes, block, 2) }
    }
}

impl Codes for Q4_1 {
    const CODE_MAX: i32 = 15;
    const HALVES: Option<Halves> = halves(0, Offset::At(2));

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 16 bytes of quants.
        unsafe { four_bits(bytes, block, 4) }
    }
}

impl Codes for Q5_0 {
    const CODE_MAX: i32 = 31;
    const HALVES: Option<Halves> = halves(0, Offset::Times(-16.0));

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 20 bytes of quants.
        unsafe { five_bits(bytes, block, 2) }
    }
}

impl Codes for Q5_1 {
    const CODE_MAX: i32 = 31;
    const HALVES: Option<Halves> = halves(0, Offset::At(2));

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 20 bytes of quants.
        unsafe { five_bits(bytes, block, 4) }
    }
}

impl Codes for Q2K {
    const CODE_MAX: i32 = 3;

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        let (h, c) = (chunk / 4, chunk % 4);
        // SAFETY: `chunk` is below 8, so these are some of the 64 lower bytes.
        unsafe { bits(bytes, block, 16 + 32 * h, 2 * c, 3) }
    }
}

impl Codes for Q3K {
    const CODE_MAX: i32 = 7;

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        let (h, c) = (chunk / 4, chunk % 4);
        // SAFETY: `chunk` is below 8, so these are some of the 64 lower bytes.
        let lower = unsafe { bits(bytes, block, 32 + 32 * h, 2 * c, 3) };
        // SAFETY: the 32 higher bytes.
        let higher = unsafe { bits(bytes, block, 0, chunk, 1) };
        join(bytes, lower, higher, 2)
    }
}

impl Codes for Q4K {
    const CODE_MAX: i32 = 15;

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        // SAFETY: `chunk` is below 8, so these are some of the 128 lower bytes.
        unsafe { bits(bytes, block, 16 + 32 * (chunk / 2), 4 * (chunk % 2), 15) }
    }
}

impl Codes for Q5K {
    const CODE_MAX: i32 = 31;

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        // SAFETY: `chunk` is below 8, so these are some of the 128 lower bytes.
        let lower = unsafe { bits(bytes, block, 48 + 32 * (chunk / 2), 4 * (chunk % 2), 15) };
        // SAFETY: the 32 higher bytes.
        let higher = unsafe { bits(bytes, block, 16, chunk, 1) };
        join(bytes, lower, higher, 4)
    }
}

impl Codes for Q6K {
    const CODE_MAX: i32 = 63;

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        let (h, c) = (chunk / 4, chunk % 4);
        // SAFETY: `chunk` is below 8, so these are some of the 128 lower bytes.
        let lower = unsafe { bits(bytes, block, 64 * h + 32 * (c % 2), 4 * (c / 2), 15) };
        // SAFETY: some of the 64 higher bytes.
        let higher = unsafe { bits(bytes, block, 128 + 32 * h, 2 * c, 3) };
        join(bytes, lower, higher, 4)
    }
}

impl Codes for Iq4Nl {
    const CODE_MAX: i32 = 127;
    const HALVES: Option<Halves> = halves(0, Offset::None);

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 16 bytes of quants.
        bytes.look_up(&UNEVEN, unsafe { four_bits(bytes, block, 2) })
    }
}

impl Codes for Iq4Xs {
    const CODE_MAX: i32 = 127;

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        // SAFETY: 16 bytes for every chunk.
        let quants = unsafe { four_bits(bytes, block, 8 + 16 * chunk) };
        bytes.look_up(&UNEVEN, quants)
    }
}

impl Codes for Mxfp4 {
    const CODE_MAX: i32 = 12;

    #[inline(always)]
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, _: usize) -> B::Bytes {
        // SAFETY: 16 bytes of quants.
        bytes.look_up(&TWICE_E2M1, unsafe { four_bits(bytes, block, 1) })
    }
}
