//! MLX's formats against the values of MLX itself.
//!
//! `fixtures/mlx_formats.py` writes the expected values.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{decode_alike, hex, random_bytes};
use crate::{Affine, Encoded, Format, ScaleFormat};

const EXPECTED: &str = include_str!("../../fixtures/mlx_formats.json");

fn number(value: &Value) -> usize {
    value.as_u64().expect("a whole number") as usize
}

fn format(case: &Value) -> Format {
    let scales = match case["scales"].as_str().expect("a type") {
        "F32" => ScaleFormat::F32,
        "F16" => ScaleFormat::F16,
        "BF16" => ScaleFormat::BF16,
        _ => return Format::GroupedMxfp4,
    };
    Format::Affine(Affine {
        bits: number(&case["bits"]) as u8,
        group: number(&case["group"]) as u8,
        scales,
    })
}

/// Makes the magnitude of each number at least 1/2 and less than 1.
fn near_one(format: Format, bytes: &mut [u8]) {
    let Format::Affine(affine) = format else {
        bytes.iter_mut().for_each(|byte| *byte = 2 + *byte % 248);
        return;
    };
    let halves = |bytes: &mut [u8], keep: u16, half: u16| {
        for number in bytes.as_chunks_mut().0 {
            *number = (u16::from_le_bytes(*number) & keep | half).to_le_bytes();
        }
    };
    match affine.scales {
        ScaleFormat::F16 => halves(bytes, 0x83FF, 0x3800),
        ScaleFormat::BF16 => halves(bytes, 0x807F, 0x3F00),
        ScaleFormat::F32 => {
            for number in bytes.as_chunks_mut().0 {
                let bits = u32::from_le_bytes(*number) & 0x807F_FFFF | 0x3F00_0000;
                *number = bits.to_le_bytes();
            }
        }
    }
}

#[test]
fn conversions_equal_those_of_mlx() {
    let all: Value = serde_json::from_str(EXPECTED).expect("JSON");
    let elements = number(&all["rows"]) * number(&all["width"]);
    let cases = all["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 3 * 3 * 6 + 1);
    for case in cases {
        let format = format(case);
        let (group, stride) = format.block();
        let (scale, offset) = format.span_bytes();
        let groups = elements / group;
        let mut codes = random_bytes(groups * (stride + scale + offset));
        let mut scales = codes.split_off(groups * stride);
        near_one(format, &mut scales);
        let (scales, offsets) = scales.split_at(groups * scale);
        let mut values = vec![0.0; elements];
        decode_alike(Encoded::new(format, &codes, [scales, offsets]), &mut values);
        // A sum with zero removes the sign of zeros.
        let values = values.iter().flat_map(|value| (value + 0.0).to_le_bytes());
        let values: Vec<u8> = values.collect();
        assert_eq!(case["first"], hex(&values[..32]), "{format:?}");
        assert_eq!(case["sha256"], hex(&Sha256::digest(&values)), "{format:?}");
    }
}
