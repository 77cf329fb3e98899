//! Conversions against the values of ggml's Python package, and against damaged scales.
//!
//! `fixtures/block_formats.py` writes the expected values.

mod groups;

use half::{bf16, f16};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Encoded, Format};
use crate::simd::InstructionSet;

const EXPECTED: &str = include_str!("../fixtures/block_formats.json");

/// The first bytes of splitmix64's numbers with seed 0, as the generator of the expected values
/// makes them.
fn random_bytes(count: usize) -> Vec<u8> {
    let numbers = (1..).flat_map(|index: u64| {
        let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (state ^ (state >> 31)).to_le_bytes()
    });
    numbers.take(count).collect()
}

/// The quantised formats.
fn quantised() -> impl Iterator<Item = Format> {
    let formats = Format::ALL.iter().copied();
    formats.filter(|format| format.block().0 > 1)
}

/// Decodes blocks on every instruction set, with the same bits. Numbers that are decoded for
/// products are equal, whatever the sign of a zero.
fn decode(format: Format, bytes: &[u8], values: &mut [f32]) {
    let encoded = Encoded::new(format, bytes, [&[], &[]]);
    decode_alike(encoded, values);
}

fn decode_alike(encoded: Encoded<'_>, values: &mut [f32]) {
    encoded.decode(values);
    let count = values.len();
    for &set in InstructionSet::available() {
        let mut found = vec![f32::NAN; count];
        encoded.decode_on(set, &mut found);
        let mut pairs = found.iter().zip(&*values);
        let equal = pairs.all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
        assert!(equal, "{set:?}, {:?}", encoded.format());
        if values.iter().all(|x| x.is_finite()) {
            encoded.decode_rows(set, count, 0..count, &mut found, count);
            assert!(found == values, "{set:?}, {:?}, products", encoded.format());
        }
    }
}

fn expected(format: Format) -> Value {
    let all: Value = serde_json::from_str(EXPECTED).expect("JSON");
    let mut cases = all["cases"].as_array().expect("a list").iter();
    let case = cases.find(|case| case["format"] == format.name());
    case.expect("every format has a case").clone()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn conversions_equal_those_of_ggmls_python_package() {
    let all: Value = serde_json::from_str(EXPECTED).expect("JSON");
    let blocks = all["blocks"].as_u64().expect("a number") as usize;
    for format in quantised() {
        let expected = expected(format);
        let (elements, stride) = format.block();
        assert_eq!(expected["block_bytes"], stride, "{}", format.name());
        assert_eq!(
            expected["halves"],
            json!(format.halves()),
            "{}",
            format.name()
        );
        let mut bytes = random_bytes(blocks * stride);
        for block in bytes.chunks_exact_mut(stride) {
            for half in format.halves() {
                block[half + 1] &= 0xbf;
            }
            if format == Format::Mxfp4 {
                block[0] = block[0].min(254);
            }
        }
        let mut values = vec![0.0; blocks * elements];
        decode(format, &bytes, &mut values);
        // A sum with zero removes the sign of zeros.
        let values = values.iter().flat_map(|value| (value + 0.0).to_le_bytes());
        let values: Vec<u8> = values.collect();
        let first = hex(&values[..4 * elements]);
        assert_eq!(expected["first_block"], first, "{}", format.name());
        let digest = hex(&Sha256::digest(&values));
        assert_eq!(expected["sha256"], digest, "{}", format.name());
    }
}

/// Scales that are not finite spoil their own block, and no other.
#[test]
fn scales_that_are_not_finite_stay_in_their_block() {
    let scales = [f16::NAN, f16::INFINITY, f16::NEG_INFINITY];
    for format in quantised() {
        let (elements, stride) = format.block();
        let mut bytes = random_bytes(3 * stride);
        for block in bytes.chunks_exact_mut(stride) {
            for half in format.halves() {
                block[half + 1] &= 0xbf;
            }
        }
        if format == Format::Mxfp4 {
            bytes[0] = 100;
            bytes[2 * stride] = 0;
            bytes[stride] = 255;
            check_spoiled(format, &bytes);
            continue;
        }
        for half in format.halves() {
            for scale in scales {
                bytes[stride + half..][..2].copy_from_slice(&scale.to_le_bytes());
                check_spoiled(format, &bytes);
            }
            bytes[stride + half..][..2].copy_from_slice(&f16::ONE.to_le_bytes());
        }
        let mut values = vec![0.0; 3 * elements];
        decode(format, &bytes, &mut values);
        assert!(
            values.iter().all(|value| value.is_finite()),
            "{}",
            format.name()
        );
    }
}

/// Converts three blocks with a bad scale in the second.
fn check_spoiled(format: Format, bytes: &[u8]) {
    let (elements, _) = format.block();
    let mut values = vec![0.0; 3 * elements];
    decode(format, bytes, &mut values);
    let bad = |values: &[f32]| values.iter().filter(|value| !value.is_finite()).count();
    let name = format.name();
    assert_eq!(bad(&values[..elements]), 0, "{name}: the block before");
    assert_eq!(bad(&values[2 * elements..]), 0, "{name}: the block after");
    assert_eq!(bad(&values[elements..2 * elements]), elements, "{name}");
}

#[test]
fn names_in_errors_are_those_of_the_formats() {
    let names = |formats: &[Format]| {
        formats
            .iter()
            .map(|format| format.name())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(Format::ALL).join(", "), Format::ALL_NAMES);
    assert_eq!(names(Format::NUMBERS).join(", "), Format::NUMBER_NAMES);
}

#[test]
#[should_panic(expected = "143 bytes are not whole blocks of Q4_K")]
fn a_part_of_a_block_is_not_converted() {
    decode(Format::Q4K, &[0; 143], &mut [0.0; 256]);
}

/// The code of zero is subtracted before the product, which leaves zero with the sign of the
/// scale.
#[test]
fn zeros_have_the_signs_of_ggmls() {
    let (one, minus_one) = ([0x00, 0x3C], [0x00, 0xBC]);
    let blocks = [
        (Format::Q4_0, [&minus_one[..], &[0x88; 16]].concat()),
        (
            Format::Q5_0,
            [&minus_one[..], &[0xFF; 4], &[0; 16]].concat(),
        ),
        // Scales of zero, from which 32 is subtracted.
        (Format::Q3K, [&[0xFF; 32][..], &[0; 76], &one].concat()),
        (
            Format::Q6K,
            [&[0; 128][..], &[0xAA; 64], &[1; 16], &minus_one].concat(),
        ),
    ];
    for (format, block) in blocks {
        let mut values = vec![1.0; format.block().0];
        decode(format, &block, &mut values);
        let are_negative = values.iter().all(|x| x.to_bits() == (-0.0_f32).to_bits());
        assert!(are_negative, "{format:?}: {values:?}");
    }
}

#[test]
fn numbers_need_no_alignment_and_no_whole_vectors() {
    let read = |format: Format, bytes: &[u8]| match format {
        Format::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
        Format::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
    };
    for &format in Format::NUMBERS {
        let (_, size) = format.block();
        for count in [0, 1, 7, 16, 33, 100] {
            let bytes = &random_bytes(1 + size * count)[1..];
            let mut values = vec![f32::NAN; count];
            if count > 0 {
                decode(format, bytes, &mut values);
            }
            for (value, bytes) in values.iter().zip(bytes.chunks_exact(size)) {
                let expected = read(format, bytes);
                let same = value.to_bits() == expected.to_bits();
                assert!(same || value.is_nan() && expected.is_nan(), "{format:?}");
            }
        }
    }
}
