//! Elements by the formulas in the documentation of `motet-formats`, one at a time in double precision.

use half::{bf16, f16};
use motet_formats::Format;

/// Values of IQ4_NL and IQ4_XS.
const UNEVEN: [i32; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The number that element `i` of a block stands for.
pub(super) fn element(format: Format, block: &[u8], i: usize) -> f32 {
    let half = |at: usize| f64::from(f16::from_le_bytes([block[at], block[at + 1]]));
    // Elements of blocks of 32.
    let four = |at: usize| f64::from(block[at + i % 16] >> (4 * (i / 16)) & 15);
    let five = |at: usize| {
        let bit = block[at + i / 8] >> (i % 8) & 1;
        four(at + 4) + f64::from(16 * bit)
    };
    let exact = match format {
        Format::F32 => return f32::from_le_bytes(block.try_into().expect("a number")),
        Format::F16 => half(0),
        Format::BF16 => f64::from(bf16::from_le_bytes([block[0], block[1]])),
        Format::Q8_0 => half(0) * f64::from(block[2 + i] as i8),
        Format::Q4_0 => half(0) * (four(2) - 8.0),
        Format::Q4_1 => half(0) * four(4) + half(2),
        Format::Q5_0 => half(0) * (five(2) - 16.0),
        Format::Q5_1 => half(0) * five(4) + half(2),
        Format::Iq4Nl => half(0) * f64::from(UNEVEN[four(2) as usize]),
        Format::Mxfp4 if block[0] == 255 => f64::NAN,
        Format::Mxfp4 => 2_f64.powi(i32::from(block[0]) - 127) * e2m1(four(1) as u8),
        _ => of_256(format, block, i),
    };
    exact as f32
}

/// A number of 4 bits: sign, exponent with a bias of 1, mantissa.
fn e2m1(bits: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 1 & 3), f64::from(bits & 1));
    let magnitude = if exponent == 0 {
        mantissa / 2.0
    } else {
        (1.0 + mantissa / 2.0) * 2_f64.powi(exponent - 1)
    };
    if bits >= 8 { -magnitude } else { magnitude }
}

/// Elements of blocks of 256.
fn of_256(format: Format, block: &[u8], i: usize) -> f64 {
    let half = |at: usize| f64::from(f16::from_le_bytes([block[at], block[at + 1]]));
    let field = |at: usize, shift: usize, mask: u8| f64::from(block[at] >> shift & mask);
    let (h, c, l) = (i / 128, i / 32 % 4, i % 32);
    let (j, group) = (i / 32, i / 16);
    let (scale, minimum) = if j < 4 {
        (field(4 + j, 0, 63), field(8 + j, 0, 63))
    } else {
        (
            field(8 + j, 0, 15) + 16.0 * field(j, 6, 3),
            field(8 + j, 4, 15) + 16.0 * field(4 + j, 6, 3),
        )
    };
    match format {
        Format::Q2K => {
            let q = field(16 + 32 * h + l, 2 * c, 3);
            half(80) * field(group, 0, 15) * q - half(82) * field(group, 4, 15)
        }
        Format::Q3K => {
            let q = field(32 + 32 * h + l, 2 * c, 3) + 4.0 * field(l, 4 * h + c, 1);
            let lower = field(96 + group % 8, 4 * (group / 8), 15);
            let upper = field(104 + group % 4, 2 * (group / 4), 3);
            half(108) * (lower + 16.0 * upper - 32.0) * (q - 4.0)
        }
        Format::Q4K => {
            let q = field(16 + 64 * h + 32 * (c / 2) + l, 4 * (c % 2), 15);
            half(0) * scale * q - half(2) * minimum
        }
        Format::Q5K => {
            let lower = field(48 + 64 * h + 32 * (c / 2) + l, 4 * (c % 2), 15);
            let q = lower + 16.0 * field(16 + l, 4 * h + c, 1);
            half(0) * scale * q - half(2) * minimum
        }
        Format::Q6K => {
            let lower = field(64 * h + 32 * (c % 2) + l, 4 * (c / 2), 15);
            let q = lower + 16.0 * field(128 + 32 * h + l, 2 * c, 3);
            half(208) * f64::from(block[192 + group] as i8) * (q - 32.0)
        }
        Format::Iq4Xs => {
            let q = field(8 + 16 * j + i % 16, 4 * (group % 2), 15);
            let lower = field(4 + j / 2, 4 * (j % 2), 15);
            let upper = u16::from_le_bytes([block[2], block[3]]) >> (2 * j) & 3;
            let scale = lower + 16.0 * f64::from(upper) - 32.0;
            half(0) * scale * f64::from(UNEVEN[q as usize])
        }
        _ => unreachable!("{format:?} has no blocks of 256"),
    }
}
