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
//! Microscaling Formats 1.0, sections 5.3.3 and 5.4.1). ggml takes 255 as an exponent, too. No
//! finite tensor has it.

use super::blocks::{BLOCK, four_bits};
use super::{each_block, half_at, k_quants};

pub(super) const IQ4_NL_BYTES: usize = 2 + 16;
pub(super) const IQ4_XS_BYTES: usize = 2 + 2 + 4 + 128;
pub(super) const MXFP4_BYTES: usize = 1 + 16;

/// Values of IQ4_NL and IQ4_XS, closer to each other near zero, where most weights are.
const UNEVEN: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Twice the numbers of MXFP4. The sign of a zero is kept, as in the specification.
const TWICE_E2M1: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
];

pub(super) fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; IQ4_NL_BYTES], out: &mut [f32; BLOCK]| {
            look_up(half_at(block, 0).to_f32(), &UNEVEN, &block[2..], out);
        },
    );
}

pub(super) fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; IQ4_XS_BYTES], out: &mut [f32; k_quants::BLOCK]| {
            let factor = half_at(block, 0).to_f32();
            let upper = u16::from_le_bytes([block[2], block[3]]);
            let quants = block[8..].as_chunks::<16>().0.iter();
            let out = out.as_chunks_mut().0;
            for (index, (quants, out)) in quants.zip(out).enumerate() {
                let lower = block[4 + index / 2] >> (4 * (index % 2)) & 15;
                let upper = (upper >> (2 * index) & 3) as u8;
                let scale = (lower | upper << 4) as i8 - 32;
                look_up(factor * f32::from(scale), &UNEVEN, quants, out);
            }
        },
    );
}

pub(super) fn mxfp4(bytes: &[u8], out: &mut [f32]) {
    each_block(
        bytes,
        out,
        |block: &[u8; MXFP4_BYTES], out: &mut [f32; BLOCK]| {
            look_up(half_power(block[0]), &TWICE_E2M1, &block[1..], out);
        },
    );
}

fn look_up(scale: f32, table: &[f32; 16], quants: &[u8], out: &mut [f32; BLOCK]) {
    // A product for each value of the table, because an element is then a look-up only.
    let table = table.map(|value| scale * value);
    for (q, out) in four_bits(quants).iter().zip(out) {
        *out = table[usize::from(q & 15)];
    }
}

/// `2^(exponent - 128)`: half of what the exponent says, because the table holds twice the
/// numbers. The two smallest powers are subnormal.
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 1 << (21 + exponent),
        255 => return f32::NAN,
        _ => u32::from(exponent - 1) << 23,
    })
}
