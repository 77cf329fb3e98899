//! ggml's k-quants: blocks of 256 elements with a small scale for every 16 or 32 of them, and
//! one or two factors `d` and `m` in half precision for those scales.
//!
//! Byte ranges of a block:
//!
//! | format | scales | higher bits | lower bits | `d` | `m` | element |
//! |---|---|---|---|---|---|---|
//! | Q2_K | 0..16 | | 16..80 | 80..82 | 82..84 | `d * scale * q - m * minimum` |
//! | Q3_K | 96..108 | 0..32 | 32..96 | 108..110 | | `d * (scale - 32) * (q - 4)` |
//! | Q4_K | 4..16 | | 16..144 | 0..2 | 2..4 | `d * scale * q - m * minimum` |
//! | Q5_K | 4..16 | 16..48 | 48..176 | 0..2 | 2..4 | `d * scale * q - m * minimum` |
//! | Q6_K | 192..208 | 128..192 | 0..128 | 208..210 | | `d * scale * (q - 32)` |
//!
//! Quants are cut along bytes: consecutive elements lie at the same bits of consecutive bytes.
//! In what follows `h` is a half of the block (0 or 1, elements `128 h ..`), `c` one of its four
//! chunks of 32 elements, and `l` the element within the chunk.
//!
//! * Q2_K: bits `2c..2c+2` of lower byte `32 h + l`. Scale byte `i` belongs to elements
//!   `16 i .. 16 i + 16`: the scale is in its bits 0..4, the minimum in its bits 4..8.
//! * Q3_K: bits 0 and 1 as in Q2_K; bit 2 is bit `4 h + c` of higher byte `l`. Scale `i` of 16 has
//!   its lower four bits in scale byte `i % 8`, bits `4 (i / 8) ..`, and its upper two in scale
//!   byte `8 + i % 4`, bits `2 (i / 4) ..`.
//! * Q4_K: lower byte `64 h + 32 (c / 2) + l`, bits `4 (c % 2) ..`. Scales and minima of the eight
//!   chunks have six bits each. For chunk `j < 4` they are bits 0..6 of scale bytes `j` and `j + 4`.
//!   For the others their lower four bits are in scale byte `j + 4` (bits 0..4 the scale's, 4..8
//!   the minimum's), and their upper two in bits 6..8 of scale bytes `j - 4` and `j`.
//! * Q5_K: bits 0 to 3, scales and minima as in Q4_K; bit 4 is bit `4 h + c` of higher byte `l`.
//! * Q6_K: bits 0 to 3 are in lower byte `64 h + 32 (c % 2) + l`, bits `4 (c / 2) ..`; bits 4
//!   and 5 are bits `2c..2c+2` of higher byte `32 h + l`. Scales are signed bytes, one for every 16.

use crate::block_format::{BlockFormat, Scales, bits, bytes, half_at, scaled, sixteen, word_at};
use crate::simd::Simd;
use crate::wide_bytes::WideBytes;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Q2K;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q3K;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q4K;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q5K;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q6K;

/// Where a group of 16 elements lies: `h`, `c`, and the first `l`.
#[inline(always)]
fn place(group: usize) -> (usize, usize, usize) {
    (group / 8, group / 2 % 4, 16 * (group % 2))
}

/// The bits `shift..` that `mask` keeps of each of the 32 bytes from offset `at`.
///
/// # Safety
///
/// The block has 32 bytes from `at`.
#[inline(always)]
unsafe fn wide_bits<B: WideBytes, const N: usize>(
    bytes: B,
    block: &[u8; N],
    at: usize,
    [shift, mask]: [usize; 2],
) -> B::Bytes {
    debug_assert!(at + 32 <= N, "32 bytes from {at} of {N}");
    // SAFETY: the caller's promise.
    let all = unsafe { bytes.load(block.as_ptr().add(at)) };
    bytes.and(bytes.shift_right(all, shift), bytes.splat(mask as u8))
}

/// `lower | higher << shift`.
#[inline(always)]
fn wide_join<B: WideBytes>(bytes: B, lower: B::Bytes, higher: B::Bytes, shift: usize) -> B::Bytes {
    bytes.or(lower, bytes.shift_left(higher, shift))
}

/// Four bytes with four numbers of six bits: the lower four bits of each byte of `lower` and the
/// lower two of each byte of `upper`.
#[inline(always)]
fn six_bits(lower: u32, upper: u32) -> u32 {
    lower & 0x0F0F_0F0F | (upper & 0x0303_0303) << 4
}

/// Four bits from `shift` of each byte.
#[inline(always)]
fn four_bits<B: WideBytes>(bytes: B, word: B::Bytes, shift: usize) -> B::Bytes {
    bytes.and(bytes.shift_right(word, shift), bytes.splat(15))
}

/// [`six_bits`] in each word.
#[inline(always)]
fn wide_six_bits<B: WideBytes>(bytes: B, lower: B::Bytes, upper: B::Bytes) -> B::Bytes {
    let lower = bytes.and(lower, bytes.splat(0x0F));
    wide_join(bytes, lower, bytes.and(upper, bytes.splat(0x03)), 4)
}

/// The whole scales and minima of Q4_K and Q5_K: see [`scales_and_minima`].
#[inline(always)]
fn whole_scales_and_minima<B: WideBytes>(
    bytes: B,
    [_, first, second, third]: [B::Bytes; 4],
) -> [[B::Bytes; 4]; 2] {
    let six = bytes.splat(0x3F);
    let scales = wide_six_bits(bytes, third, bytes.shift_right(first, 6));
    let minima = wide_six_bits(
        bytes,
        bytes.shift_right(third, 4),
        bytes.shift_right(second, 6),
    );
    let (first, second) = (bytes.and(first, six), bytes.and(second, six));
    [
        [first, scales, first, scales],
        [second, minima, second, minima],
    ]
}

/// 16 bytes in four words.
#[inline(always)]
fn of_words<S: Simd>(simd: S, words: [u32; 4]) -> S::Bytes {
    let [a, b, c, d] = words.map(u128::from);
    bytes(simd, &(a | b << 32 | c << 64 | d << 96).to_le_bytes())
}

/// The scales and minima of Q4_K and Q5_K.
#[inline(always)]
fn scales_and_minima<S: Simd, const N: usize>(simd: S, block: &[u8; N]) -> Scales {
    let [first, second, third] = [4, 8, 12].map(|at| word_at(block, at));
    let scales = [first & 0x3F3F_3F3F, six_bits(third, first >> 6)];
    let minima = [second & 0x3F3F_3F3F, six_bits(third >> 4, second >> 6)];
    let scales = of_words(simd, [scales[0], scales[1], 0, 0]);
    let minima = of_words(simd, [minima[0], minima[1], 0, 0]);
    Scales {
        scales: scaled(simd, scales, half_at(simd, block, 0)),
        offsets: scaled(simd, minima, -half_at(simd, block, 2)),
    }
}

impl BlockFormat for Q2K {
    type Block = [u8; 84];
    const ELEMENTS: usize = 256;
    const SPAN: usize = 16;
    const HALVES: &[usize] = &[80, 82];
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 3;
    const WHOLE_SCALES: Option<usize> = Some(0);

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        // SAFETY: the block has more bytes.
        let both = unsafe { sixteen(simd, block, 0) };
        let [scales, minima] = [0, 4].map(|shift| bits(simd, both, shift, 15));
        Scales {
            scales: scaled(simd, scales, half_at(simd, block, 80)),
            offsets: scaled(simd, minima, -half_at(simd, block, 82)),
        }
    }

    #[inline(always)]
    fn whole_scales<B: WideBytes>(bytes: B, words: [B::Bytes; 4]) -> [[B::Bytes; 4]; 2] {
        let [a, b, c, d] = words;
        let scales = [
            four_bits(bytes, a, 0),
            four_bits(bytes, b, 0),
            four_bits(bytes, c, 0),
            four_bits(bytes, d, 0),
        ];
        let minima = [
            four_bits(bytes, a, 4),
            four_bits(bytes, b, 4),
            four_bits(bytes, c, 4),
            four_bits(bytes, d, 4),
        ];
        [scales, minima]
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        let (h, c, l) = place(group);
        // SAFETY: `group` is below 16, so these are some of the 64 lower bytes.
        let lower = unsafe { sixteen(simd, block, 16 + 32 * h + l) };
        bits(simd, lower, 2 * c, 3)
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        let (h, c) = (chunk / 4, chunk % 4);
        // SAFETY: `chunk` is below 8, so these are some of the 64 lower bytes.
        unsafe { wide_bits(bytes, block, 16 + 32 * h, [2 * c, 3]) }
    }
}

impl BlockFormat for Q3K {
    type Block = [u8; 110];
    const ELEMENTS: usize = 256;
    const SPAN: usize = 16;
    const HALVES: &[usize] = &[108];
    const ZERO: u8 = 4;
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 7;
    const WHOLE_SCALES: Option<usize> = Some(92);
    const HAS_SIGNED_SCALES: bool = true;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        let [a, b, upper] = [96, 100, 104].map(|at| word_at(block, at));
        let words = [
            six_bits(a, upper),
            six_bits(b, upper >> 2),
            six_bits(a >> 4, upper >> 4),
            six_bits(b >> 4, upper >> 6),
        ];
        let scales = simd.sub_bytes(of_words(simd, words), simd.splat_byte(32));
        let factor = half_at(simd, block, 108);
        Scales {
            scales: scaled(simd, scales, factor),
            offsets: scaled(simd, scales, -f32::from(Self::ZERO) * factor),
        }
    }

    #[inline(always)]
    fn whole_scales<B: WideBytes>(bytes: B, [_, a, b, upper]: [B::Bytes; 4]) -> [[B::Bytes; 4]; 2] {
        let mut scales = [
            wide_six_bits(bytes, a, upper),
            wide_six_bits(bytes, b, bytes.shift_right(upper, 2)),
            wide_six_bits(bytes, bytes.shift_right(a, 4), bytes.shift_right(upper, 4)),
            wide_six_bits(bytes, bytes.shift_right(b, 4), bytes.shift_right(upper, 6)),
        ];
        for scales in &mut scales {
            *scales = bytes.sub(*scales, bytes.splat(32));
        }
        [scales, scales]
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        let (h, c, l) = place(group);
        // SAFETY: `group` is below 16, so these are some of the 64 lower bytes.
        let lower = unsafe { sixteen(simd, block, 32 + 32 * h + l) };
        // SAFETY: some of the 32 higher bytes.
        let higher = unsafe { sixteen(simd, block, l) };
        let higher = simd.shift_left(bits(simd, higher, 4 * h + c, 1), 2);
        simd.or(bits(simd, lower, 2 * c, 3), higher)
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        let (h, c) = (chunk / 4, chunk % 4);
        // SAFETY: `chunk` is below 8, so these are some of the 64 lower bytes.
        let lower = unsafe { wide_bits(bytes, block, 32 + 32 * h, [2 * c, 3]) };
        // SAFETY: the 32 higher bytes.
        let higher = unsafe { wide_bits(bytes, block, 0, [chunk, 1]) };
        wide_join(bytes, lower, higher, 2)
    }
}

impl BlockFormat for Q4K {
    type Block = [u8; 144];
    const ELEMENTS: usize = 256;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0, 2];
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 15;
    const WHOLE_SCALES: Option<usize> = Some(0);

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        scales_and_minima(simd, block)
    }

    #[inline(always)]
    fn whole_scales<B: WideBytes>(bytes: B, words: [B::Bytes; 4]) -> [[B::Bytes; 4]; 2] {
        whole_scales_and_minima(bytes, words)
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        let (h, c, l) = place(group);
        // SAFETY: `group` is below 16, so these are some of the 128 lower bytes.
        let lower = unsafe { sixteen(simd, block, 16 + 64 * h + 32 * (c / 2) + l) };
        bits(simd, lower, 4 * (c % 2), 15)
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        // SAFETY: `chunk` is below 8, so these are some of the 128 lower bytes.
        unsafe { wide_bits(bytes, block, 16 + 32 * (chunk / 2), [4 * (chunk % 2), 15]) }
    }
}

impl BlockFormat for Q5K {
    type Block = [u8; 176];
    const ELEMENTS: usize = 256;
    const SPAN: usize = 32;
    const HALVES: &[usize] = &[0, 2];
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 31;
    const WHOLE_SCALES: Option<usize> = Some(0);

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        scales_and_minima(simd, block)
    }

    #[inline(always)]
    fn whole_scales<B: WideBytes>(bytes: B, words: [B::Bytes; 4]) -> [[B::Bytes; 4]; 2] {
        whole_scales_and_minima(bytes, words)
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        let (h, c, l) = place(group);
        // SAFETY: `group` is below 16, so these are some of the 128 lower bytes.
        let lower = unsafe { sixteen(simd, block, 48 + 64 * h + 32 * (c / 2) + l) };
        // SAFETY: some of the 32 higher bytes.
        let higher = unsafe { sixteen(simd, block, 16 + l) };
        let higher = simd.shift_left(bits(simd, higher, 4 * h + c, 1), 4);
        simd.or(bits(simd, lower, 4 * (c % 2), 15), higher)
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        // SAFETY: `chunk` is below 8, so these are some of the 128 lower bytes.
        let lower =
            unsafe { wide_bits(bytes, block, 48 + 32 * (chunk / 2), [4 * (chunk % 2), 15]) };
        // SAFETY: the 32 higher bytes.
        let higher = unsafe { wide_bits(bytes, block, 16, [chunk, 1]) };
        wide_join(bytes, lower, higher, 4)
    }
}

impl BlockFormat for Q6K {
    type Block = [u8; 210];
    const ELEMENTS: usize = 256;
    const SPAN: usize = 16;
    const HALVES: &[usize] = &[208];
    const ZERO: u8 = 32;
    const HAS_SIGNS: bool = false;
    const CODE_MAX: i32 = 63;
    const WHOLE_SCALES: Option<usize> = Some(192);
    const HAS_SIGNED_SCALES: bool = true;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales {
        // SAFETY: the 16 bytes of scales.
        let scales = unsafe { sixteen(simd, block, 192) };
        let factor = half_at(simd, block, 208);
        Scales {
            scales: scaled(simd, scales, factor),
            offsets: scaled(simd, scales, -f32::from(Self::ZERO) * factor),
        }
    }

    #[inline(always)]
    fn whole_scales<B: WideBytes>(_: B, words: [B::Bytes; 4]) -> [[B::Bytes; 4]; 2] {
        [words, words]
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(simd: S, block: &Self::Block, group: usize) -> S::Bytes {
        let (h, c, l) = place(group);
        // SAFETY: `group` is below 16, so these are some of the 128 lower bytes.
        let lower = unsafe { sixteen(simd, block, 64 * h + 32 * (c % 2) + l) };
        // SAFETY: some of the 64 higher bytes.
        let higher = unsafe { sixteen(simd, block, 128 + 32 * h + l) };
        let higher = simd.shift_left(bits(simd, higher, 2 * c, 3), 4);
        simd.or(bits(simd, lower, 4 * (c / 2), 15), higher)
    }

    #[inline(always)]
    unsafe fn wide_codes<B: WideBytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes {
        let (h, c) = (chunk / 4, chunk % 4);
        // SAFETY: `chunk` is below 8, so these are some of the 128 lower bytes.
        let lower = unsafe { wide_bits(bytes, block, 64 * h + 32 * (c % 2), [4 * (c / 2), 15]) };
        // SAFETY: some of the 64 higher bytes.
        let higher = unsafe { wide_bits(bytes, block, 128 + 32 * h, [2 * c, 3]) };
        wide_join(bytes, lower, higher, 4)
    }
}
