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

use super::{each_block, half_at};

/// Elements of a block.
pub(in super::super) const BLOCK: usize = 32;

pub(super) const Q8_0_BYTES: usize = 2 + 32;
pub(super) const Q4_0_BYTES: usize = 2 + 16;
pub(super) const Q4_1_BYTES: usize = 2 + 2 + 16;
pub(super) const Q5_0_BYTES: usize = 2 + 4 + 16;
pub(super) const Q5_1_BYTES: usize = 2 + 2 + 4 + 16;

pub(super) fn q8_0(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q8_0_BYTES], out: &mut [f32; BLOCK]| {
            let scale = half_at(block, 0).to_f32();
            for (q, out) in block[2..].iter().zip(out) {
                *out = scale * f32::from(*q as i8);
            }
        },
    );
}

pub(super) fn q4_0(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q4_0_BYTES], out: &mut [f32; BLOCK]| {
            let scale = half_at(block, 0).to_f32();
            for (q, out) in four_bits(&block[2..]).iter().zip(out) {
                *out = scale * (f32::from(*q) - 8.0);
            }
        },
    );
}

pub(super) fn q4_1(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q4_1_BYTES], out: &mut [f32; BLOCK]| {
            let scale = half_at(block, 0).to_f32();
            let minimum = half_at(block, 2).to_f32();
            for (q, out) in four_bits(&block[4..]).iter().zip(out) {
                *out = scale * f32::from(*q) + minimum;
            }
        },
    );
}

pub(super) fn q5_0(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q5_0_BYTES], out: &mut [f32; BLOCK]| {
            let scale = half_at(block, 0).to_f32();
            for (q, out) in five_bits(&block[2..]).iter().zip(out) {
                *out = scale * (f32::from(*q) - 16.0);
            }
        },
    );
}

pub(super) fn q5_1(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; Q5_1_BYTES], out: &mut [f32; BLOCK]| {
            let scale = half_at(block, 0).to_f32();
            let minimum = half_at(block, 2).to_f32();
            for (q, out) in five_bits(&block[4..]).iter().zip(out) {
                *out = scale * f32::from(*q) + minimum;
            }
        },
    );
}

/// The quants of 16 bytes, in the elements' order.
pub(super) fn four_bits(bytes: &[u8]) -> [u8; BLOCK] {
    let mut quants = [0; BLOCK];
    let (lower, upper) = quants.split_at_mut(BLOCK / 2);
    for ((byte, lower), upper) in bytes.iter().zip(lower).zip(upper) {
        *lower = byte & 15;
        *upper = byte >> 4;
    }
    quants
}

/// The quants of 4 bytes of fifth bits and 16 of the others, in the elements' order.
fn five_bits(bytes: &[u8]) -> [u8; BLOCK] {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut quants = four_bits(&bytes[4..]);
    for (at, quant) in quants.iter_mut().enumerate() {
        *quant |= ((fifth >> at) as u8 & 1) << 4;
    }
    quants
}
