use proptest::prelude::*;

use super::*;

fn planes(kind: FloatKind, planes: usize, rows: usize, channels: usize) -> Floats {
    Floats {
        kind,
        planes,
        rows,
        channels,
    }
}

/// Returns numbers as bytes of a type, and their values after that rounding.
fn as_kind(kind: FloatKind, numbers: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = Vec::new();
    let stored = numbers.iter().map(|number| match kind {
        FloatKind::F32 => {
            bytes.extend(number.to_ne_bytes());
            *number
        }
        FloatKind::F16 => {
            bytes.extend(f16::from_f32(*number).to_ne_bytes());
            f16::from_f32(*number).to_f32()
        }
        FloatKind::Bf16 => {
            bytes.extend(bf16::from_f32(*number).to_ne_bytes());
            bf16::from_f32(*number).to_f32()
        }
    });
    let stored = stored.collect();
    (bytes, stored)
}

fn numbers_of(kind: FloatKind, bytes: &[u8]) -> Vec<f32> {
    let two = bytes.as_chunks::<2>().0.iter();
    match kind {
        FloatKind::F32 => {
            let four = bytes.as_chunks::<4>().0.iter();
            four.map(|bytes| f32::from_ne_bytes(*bytes)).collect()
        }
        FloatKind::F16 => two.map(|b| f16::from_ne_bytes(*b).to_f32()).collect(),
        FloatKind::Bf16 => two.map(|b| bf16::from_ne_bytes(*b).to_f32()).collect(),
    }
}

fn there_and_back(sections: &[Floats], full: &[u8]) -> Result<Vec<u8>, PrecisionError> {
    let eight_bits = EightBits(sections.to_vec());
    let eight_bytes = eight_bits.eight_bytes(full.len()).expect("enough bytes");
    let mut eight = vec![0xAA; eight_bytes];
    eight_bits.encode(full, &mut eight)?;
    let mut back = vec![0x55; full.len()];
    eight_bits.decode(&eight, &mut back)?;
    Ok(back)
}

/// Checks that every number round-trips within half a step of its channel, and rounding.
fn check(planes: Floats, numbers: &[f32]) -> Result<(), TestCaseError> {
    let (full, stored) = as_kind(planes.kind, numbers);
    let back = there_and_back(&[planes], &full).expect("finite numbers");
    check_bounds(planes, &stored, &back)
}

/// Checks that the numbers in `back` are within half a step of `stored`, and rounding.
fn check_bounds(planes: Floats, stored: &[f32], back: &[u8]) -> Result<(), TestCaseError> {
    let back = numbers_of(planes.kind, back);
    let rounding = match planes.kind {
        FloatKind::F32 => 4.0 * f32::EPSILON,
        FloatKind::F16 => 2_f32.powi(-11) + 4.0 * f32::EPSILON,
        FloatKind::Bf16 => 2_f32.powi(-8) + 4.0 * f32::EPSILON,
    };
    let of_a_plane = planes.rows * planes.channels;
    for (plane, back) in stored.chunks(of_a_plane).zip(back.chunks(of_a_plane)) {
        for channel in 0..planes.channels {
            let column = || plane.iter().skip(channel).step_by(planes.channels);
            let low = column().fold(f32::INFINITY, |a, b| a.min(*b));
            let high = column().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
            let largest = low.abs().max(high.abs());
            // The smallest number of 16 bits is 6e-8.
            let bound = (high - low) / 510.0 + largest * rounding + 6e-8;
            for (row, number) in column().enumerate() {
                let came = back[row * planes.channels + channel];
                prop_assert!(
                    (came - number).abs() <= bound,
                    "{planes:?}: {number} round-trips to {came}, in {low}..{high}"
                );
            }
        }
    }
    Ok(())
}

fn any_planes() -> impl Strategy<Value = (Floats, Vec<f32>)> {
    let kinds = [FloatKind::F32, FloatKind::F16, FloatKind::Bf16];
    let kind = prop::sample::select(kinds.to_vec());
    let shape = (kind, 1_usize..40, 1_usize..150, 1_usize..4);
    shape.prop_flat_map(|(kind, rows, channels, count)| {
        let number = (-6_i32..4, -1.0_f32..1.0)
            .prop_map(|(exponent, number)| number * 10_f32.powi(exponent));
        let numbers = prop::collection::vec(number, rows * channels * count);
        (Just(planes(kind, count, rows, channels)), numbers)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn numbers_come_back_within_half_a_step((planes, numbers) in any_planes()) {
        check(planes, &numbers)?;
    }
}

#[test]
fn range_ends_and_constants_round_trip_exactly() {
    for kind in [FloatKind::F32, FloatKind::F16, FloatKind::Bf16] {
        let numbers = [-3.0, 5.5, 0.0, 12.0, 5.5, 0.0, 4.5, 5.5, 0.0];
        let (full, _) = as_kind(kind, &numbers);
        let back = there_and_back(&[planes(kind, 1, 3, 3)], &full).unwrap();
        let back = numbers_of(kind, &back);
        for at in [0, 1, 2, 3, 4, 5, 7, 8] {
            assert_eq!(back[at], numbers[at], "{kind:?}");
        }
    }
}

#[test]
fn extreme_ranges_keep_the_bound() {
    let tiny = f32::MIN_POSITIVE / 4.0;
    for numbers in [
        [0.0, tiny, 3.0 * tiny],
        [1e38, -1e38, 5e37],
        [1.0, 1.0 + f32::EPSILON, 1.0],
        [-0.0, 0.0, -0.0],
    ] {
        check(planes(FloatKind::F32, 1, 3, 1), &numbers).unwrap();
    }
}

#[test]
fn non_finite_numbers_are_rejected() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in 0..12 {
            for kind in [FloatKind::F32, FloatKind::F16, FloatKind::Bf16] {
                let mut numbers = [1.0; 12];
                numbers[at] = bad;
                let (full, _) = as_kind(kind, &numbers);
                let rejected = there_and_back(&[planes(kind, 2, 3, 2)], &full);
                assert_eq!(rejected, Err(PrecisionError::NotFinite), "{bad} at {at}");
            }
        }
    }
    let (full, _) = as_kind(FloatKind::F32, &[f32::MAX, f32::MIN]);
    let rejected = there_and_back(&[planes(FloatKind::F32, 1, 2, 1)], &full);
    assert_eq!(rejected, Err(PrecisionError::NotFinite), "too wide a range");
}

#[test]
fn only_as_many_bytes_as_expected_are_accepted() {
    let shape = EightBits(vec![planes(FloatKind::F32, 2, 2, 3)]);
    assert_eq!(shape.eight_bytes(48), Some(2 * (24 + 6)));
    assert_eq!(shape.eight_bytes(53), Some(2 * (24 + 6) + 5));
    for too_few in [0, 24, 47] {
        assert_eq!(shape.eight_bytes(too_few), None);
    }
    let rejected = shape.encode(&[0; 48], &mut [0; 59]);
    assert!(matches!(rejected, Err(PrecisionError::Length { .. })));
    let rejected = shape.decode(&[0; 60], &mut [0; 47]);
    assert!(matches!(rejected, Err(PrecisionError::Length { .. })));
    for (rows, channels) in [(0, 3), (3, 0)] {
        let nothing = EightBits(vec![planes(FloatKind::F16, 4, rows, channels)]);
        assert_eq!(nothing.eight_bytes(2), Some(2));
        assert_eq!(nothing.encode(&[], &mut []), Ok(()));
        assert_eq!(nothing.decode(&[], &mut []), Ok(()));
    }
    for (count, rows) in [(1, usize::MAX), (usize::MAX, 2), (usize::MAX / 32, 2)] {
        let huge = EightBits(vec![planes(FloatKind::F32, count, rows, 2)]);
        assert_eq!(huge.eight_bytes(8), None, "{count} planes of {rows} rows");
    }
}

/// Sections differ in every way. The bytes after them are no numbers.
#[test]
fn sections_are_encoded_by_their_own_shape_and_the_rest_stays_exact() {
    let sections = [
        planes(FloatKind::F32, 2, 5, 3),
        planes(FloatKind::Bf16, 3, 0, 7),
        planes(FloatKind::F16, 1, 2, 70),
        planes(FloatKind::F32, 4, 1, 1),
    ];
    let rest: Vec<u8> = [f32::NAN, f32::INFINITY, 1e-30]
        .into_iter()
        .flat_map(f32::to_ne_bytes)
        .chain([1, 2, 3])
        .collect();
    let (mut full, mut stored) = (Vec::new(), Vec::new());
    for (index, section) in sections.iter().enumerate() {
        let numbers = section.planes * section.rows * section.channels;
        let scale = 10_f32.powi(index as i32);
        let numbers = (0..numbers).map(|i| (i as f32 * 0.37).sin() * scale);
        let numbers: Vec<f32> = numbers.collect();
        let (bytes, rounded) = as_kind(section.kind, &numbers);
        full.extend(bytes);
        stored.push(rounded);
    }
    full.extend(&rest);
    let back = there_and_back(&sections, &full).expect("finite numbers");
    let mut at = 0;
    for (section, stored) in sections.into_iter().zip(&stored) {
        let bytes = stored.len() * section.kind.bytes();
        if bytes > 0 {
            check_bounds(section, stored, &back[at..at + bytes]).unwrap();
        }
        at += bytes;
    }
    assert_eq!(back[at..], rest);
    let exact = there_and_back(&[], &full).expect("any bytes");
    assert_eq!(exact, full, "without sections, every bit counts");
}
