//! ggml's k-quants: blocks of 256 elements with a small scale for every 16 or 32 of them, and
//! one or two factors `d` and `m` in half precision for those scales.
//!
//! Byte ranges of a block:
//!
//! | format | scales | higher bits | lower bits | `d` | `m` |
//! |---|---|---|---|---|---|
//! | Q2_K | 0..16 | | 16..80 | 80..82 | 82..84 |
//! | Q3_K | 96..108 | 0..32 | 32..96 | 108..110 | |
//! | Q4_K | 4..16 | | 16..144 | 0..2 | 2..4 |
//! | Q5_K | 4..16 | 16..48 | 48..176 | 0..2 | 2..4 |
//! | Q6_K | 192..208 | 128..192 | 0..128 | 208..210 | |
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

use super::{each_block, half_at};

/// Elements of a block.
pub(super) const BLOCK: usize = 256;

pub(super) const Q2_K_BYTES: usize = 16 + 64 + 2 + 2;
pub(super) const Q3_K_BYTES: usize = 32 + 64 + 12 + 2;
pub(super) const Q4_K_BYTES: usize = 2 + 2 + 12 + 128;
pub(super) const Q5_K_BYTES: usize = 2 + 2 + 12 + 32 + 128;
pub(super) const Q6_K_BYTES: usize = 128 + 64 + 16 + 2;

/// Elements with one scale, in Q2_K, Q3_K and Q6_K.
const GROUP: usize = 16;
/// Elements at the same bits of consecutive bytes.
const CHUNK: usize = 32;

pub(super) fn q2_k(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q2_K_BYTES], out: &mut [f32; BLOCK]| {
            let factor = half_at(block, 80).to_f32();
            let minimum_factor = half_at(block, 82).to_f32();
            let quants = two_bits(&block[16..80]);
            let groups = quants.as_chunks::<GROUP>().0.iter();
            let out = out.as_chunks_mut::<GROUP>().0;
            for ((quants, out), scales) in groups.zip(out).zip(&block[..16]) {
                let scale = factor * f32::from(scales & 15);
                let minimum = minimum_factor * f32::from(scales >> 4);
                for (q, out) in quants.iter().zip(out) {
                    *out = scale * f32::from(*q) - minimum;
                }
            }
        },
    );
}

pub(super) fn q3_k(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q3_K_BYTES], out: &mut [f32; BLOCK]| {
            let factor = half_at(block, 108).to_f32();
            let mut quants = two_bits(&block[32..96]);
            add_bit(&mut quants, &block[..32], 2);
            let groups = quants.as_chunks::<GROUP>().0.iter();
            let out = out.as_chunks_mut::<GROUP>().0;
            for ((quants, out), scale) in groups.zip(out).zip(q3_k_scales(&block[96..108])) {
                let scale = factor * f32::from(scale);
                for (q, out) in quants.iter().zip(out) {
                    *out = scale * (f32::from(*q) - 4.0);
                }
            }
        },
    );
}

pub(super) fn q4_k(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q4_K_BYTES], out: &mut [f32; BLOCK]| {
            scale_and_shift(block, &four_bits(&block[16..]), out);
        },
    );
}

pub(super) fn q5_k(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q5_K_BYTES], out: &mut [f32; BLOCK]| {
            let mut quants = four_bits(&block[48..]);
            add_bit(&mut quants, &block[16..48], 4);
            scale_and_shift(block, &quants, out);
        },
    );
}

pub(super) fn q6_k(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q6_K_BYTES], out: &mut [f32; BLOCK]| {
            let factor = half_at(block, 208).to_f32();
            let quants = six_bits(&block[..128], &block[128..192]);
            let groups = quants.as_chunks::<GROUP>().0.iter();
            let out = out.as_chunks_mut::<GROUP>().0;
            for ((quants, out), scale) in groups.zip(out).zip(&block[192..208]) {
                let scale = factor * f32::from(*scale as i8);
                for (q, out) in quants.iter().zip(out) {
                    *out = scale * (f32::from(*q) - 32.0);
                }
            }
        },
    );
}

/// The end of Q4_K and Q5_K: applies the scales and minima at the start of `block`.
fn scale_and_shift(block: &[u8], quants: &[u8; BLOCK], out: &mut [f32; BLOCK]) {
    let factor = half_at(block, 0).to_f32();
    let minimum_factor = half_at(block, 2).to_f32();
    let chunks = quants.as_chunks::<CHUNK>().0.iter();
    let out = out.as_chunks_mut::<CHUNK>().0;
    for (chunk, (quants, out)) in chunks.zip(out).enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], chunk);
        let scale = factor * f32::from(scale);
        let minimum = minimum_factor * f32::from(minimum);
        for (q, out) in quants.iter().zip(out) {
            *out = scale * f32::from(*q) - minimum;
        }
    }
}

/// The scale and the minimum of a chunk in Q4_K and Q5_K, from 12 bytes.
fn scale_and_minimum(packed: &[u8], chunk: usize) -> (u8, u8) {
    if chunk < 4 {
        return (packed[chunk] & 63, packed[chunk + 4] & 63);
    }
    let lower = packed[chunk + 4];
    (
        (lower & 15) | (packed[chunk - 4] >> 6) << 4,
        (lower >> 4) | (packed[chunk] >> 6) << 4,
    )
}

/// The scales of a block in Q3_K, from 12 bytes.
fn q3_k_scales(packed: &[u8]) -> [i8; BLOCK / GROUP] {
    std::array::from_fn(|group| {
        let lower = packed[group % 8] >> (4 * (group / 8)) & 15;
        let upper = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        (lower | upper << 4) as i8 - 32
    })
}

/// The quants of 64 bytes with four each.
fn two_bits(bytes: &[u8]) -> [u8; BLOCK] {
    let mut quants = [0; BLOCK];
    let chunks = quants.as_chunks_mut::<CHUNK>().0;
    for (chunk, quants) in chunks.iter_mut().enumerate() {
        let bytes = &bytes[chunk / 4 * CHUNK..][..CHUNK];
        for (byte, quant) in bytes.iter().zip(quants) {
            *quant = byte >> (2 * (chunk % 4)) & 3;
        }
    }
    quants
}

/// The quants of 128 bytes with two each.
fn four_bits(bytes: &[u8]) -> [u8; BLOCK] {
    let mut quants = [0; BLOCK];
    let pairs = quants.as_chunks_mut::<{ 2 * CHUNK }>().0;
    for (bytes, quants) in bytes.as_chunks::<CHUNK>().0.iter().zip(pairs) {
        let (lower, upper) = quants.split_at_mut(CHUNK);
        for ((byte, lower), upper) in bytes.iter().zip(lower).zip(upper) {
            *lower = byte & 15;
            *upper = byte >> 4;
        }
    }
    quants
}

/// The quants of Q6_K, from 128 bytes with their lower four bits and 64 with their upper two.
fn six_bits(lower: &[u8], upper: &[u8]) -> [u8; BLOCK] {
    let mut quants = two_bits(upper);
    let chunks = quants.as_chunks_mut::<CHUNK>().0;
    for (index, quants) in chunks.iter_mut().enumerate() {
        let (half, chunk) = (index / 4, index % 4);
        let lower = &lower[2 * CHUNK * half + CHUNK * (chunk % 2)..][..CHUNK];
        for (byte, quant) in lower.iter().zip(quants) {
            *quant = *quant << 4 | (byte >> (4 * (chunk / 2)) & 15);
        }
    }
    quants
}

/// Sets bit `at` of every quant from 32 bytes, whose bit `i` belongs to chunk `i`.
fn add_bit(quants: &mut [u8; BLOCK], bytes: &[u8], at: usize) {
    let chunks = quants.as_chunks_mut::<CHUNK>().0;
    for (chunk, quants) in chunks.iter_mut().enumerate() {
        for (byte, quant) in bytes.iter().zip(quants) {
            *quant |= (byte >> chunk & 1) << at;
        }
    }
}
