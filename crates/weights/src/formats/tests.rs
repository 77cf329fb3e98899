//! Conversions against the values of ggml's Python package, and against damaged scales.
//!
//! `fixtures/block_formats.py` writes the expected values.

mod grouped;

use half::f16;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::mxfp4_block;
use super::{Format, Formats, THREAD_ELEMENTS};

const EXPECTED: &str = include_str!("../../fixtures/block_formats.json");

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
    let formats = Formats::ALL.allowed.iter().copied();
    formats.filter(|format| format.block().0 > 1)
}

/// Offsets of the half-precision numbers in a block of the format.
fn halves(format: Format) -> Vec<usize> {
    let case = expected(format);
    let halves = case["halves"].as_array().expect("a list");
    let halves = halves
        .iter()
        .map(|at| at.as_u64().expect("an offset") as usize);
    halves.collect()
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
        let mut bytes = random_bytes(blocks * stride);
        for block in bytes.chunks_exact_mut(stride) {
            for half in halves(format) {
                block[half + 1] &= 0xbf;
            }
            if format == Format::Mxfp4 {
                block[0] = block[0].min(254);
            }
        }
        let mut values = vec![0.0; blocks * elements];
        format.to_f32(&bytes, &mut values);
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
            for half in halves(format) {
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
        for half in halves(format) {
            for scale in scales {
                bytes[stride + half..][..2].copy_from_slice(&scale.to_le_bytes());
                check_spoiled(format, &bytes);
            }
            bytes[stride + half..][..2].copy_from_slice(&f16::ONE.to_le_bytes());
        }
        let mut values = vec![0.0; 3 * elements];
        format.to_f32(&bytes, &mut values);
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
    format.to_f32(bytes, &mut values);
    let bad = |values: &[f32]| values.iter().filter(|value| !value.is_finite()).count();
    let name = format.name();
    assert_eq!(bad(&values[..elements]), 0, "{name}: the block before");
    assert_eq!(bad(&values[2 * elements..]), 0, "{name}: the block after");
    assert_eq!(bad(&values[elements..2 * elements]), elements, "{name}");
}

#[test]
fn names_in_errors_are_those_of_the_allowed_formats() {
    for formats in [Formats::ALL, Formats::UNQUANTISED] {
        let names: Vec<&str> = formats.allowed.iter().map(|format| format.name()).collect();
        assert_eq!(names.join(", "), formats.names);
    }
}

#[test]
fn threads_convert_what_one_thread_converts() {
    for (format, blocks) in [(Format::Q6K, 3 * 4096 + 3), (Format::BF16, (3 << 20) + 1)] {
        let (elements, stride) = format.block();
        let bytes: Vec<u8> = (0..blocks * stride).map(|at| (at * 7 / 3) as u8).collect();
        let mut whole = vec![0.0; blocks * elements];
        assert!(whole.len() > 3 * THREAD_ELEMENTS);
        format.conversion()(&bytes, &mut whole);
        let mut parts = vec![1.0; blocks * elements];
        format.to_f32(&bytes, &mut parts);
        let mut pairs = whole.iter().zip(&parts);
        let equal = pairs.all(|(one, other)| one.to_bits() == other.to_bits());
        assert!(equal, "{}", format.name());
    }
}

#[test]
#[should_panic(expected = "143 bytes of Q4_K are not 256 elements")]
fn a_part_of_a_block_is_not_converted() {
    Format::Q4K.to_f32(&[0; 143], &mut [0.0; 256]);
}

/// The numbers of a pair by the formula of transformers' `convert_moe_packed_tensors`.
fn naive_pair(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
    const NUMBERS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let number = |quant: u8| {
        let number = NUMBERS[usize::from(quant & 7)];
        if quant & 8 == 0 { number } else { -number }
    };
    let groups = blocks.chunks_exact(16).zip(scales);
    let numbers = groups.flat_map(|(bytes, scale)| {
        let power = f64::from(*scale) - 127.0;
        let quants = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let scaled = quants.map(move |quant| f64::from(number(quant)) * power.exp2());
        scaled.map(|scaled| scaled as f32)
    });
    numbers.collect()
}

#[test]
fn a_pair_of_mxfp4_is_read_in_its_own_order() {
    let bytes = random_bytes(2 * 3 * 4 * 17);
    let (blocks, scales) = bytes.split_at(2 * 3 * 4 * 16);
    let mut scales = scales.to_vec();
    for scale in &mut scales {
        *scale = (*scale).min(254);
    }
    scales[..3].copy_from_slice(&[0, 1, 2]); // subnormal numbers, too
    let groups = blocks.as_chunks().0.iter().zip(&scales);
    let whole: Vec<u8> = groups
        .flat_map(|(group, scale)| mxfp4_block(group, *scale))
        .collect();
    let mut found = vec![0.0; 32 * scales.len()];
    Format::Mxfp4.to_f32(&whole, &mut found);
    assert_eq!(found, naive_pair(blocks, &scales));
}
