use proptest::prelude::*;

use super::*;

fn planes(kind: FloatKind, rows: usize, channels: usize) -> Floats {
    Floats {
        kind,
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

fn there_and_back(planes: Floats, full: &[u8]) -> Result<Vec<u8>, PrecisionError> {
    let eight_bytes = EightBits(planes)
        .eight_bytes(full.len())
        .expect("whole planes");
    let mut eight = vec![0xAA; eight_bytes];
    EightBits(planes).encode(full, &mut eight)?;
    let mut back = vec![0x55; full.len()];
    EightBits(planes).decode(&eight, &mut back)?;
    Ok(back)
}

/// Checks that every number round-trips within half a step of its channel, and rounding.
fn check(planes: Floats, numbers: &[f32]) -> Result<(), TestCaseError> {
    let (full, stored) = as_kind(planes.kind, numbers);
    let back = there_and_back(planes, &full).expect("finite numbers");
    let back = numbers_of(planes.kind, &back);
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
        (Just(planes(kind, rows, channels)), numbers)
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
        let back = there_and_back(planes(kind, 3, 3), &full).unwrap();
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
        check(planes(FloatKind::F32, 3, 1), &numbers).unwrap();
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
                let rejected = there_and_back(planes(kind, 3, 2), &full);
                assert_eq!(rejected, Err(PrecisionError::NotFinite), "{bad} at {at}");
            }
        }
    }
    let (full, _) = as_kind(FloatKind::F32, &[f32::MAX, f32::MIN]);
    let rejected = there_and_back(planes(FloatKind::F32, 2, 1), &full);
    assert_eq!(rejected, Err(PrecisionError::NotFinite), "too wide a range");
}

#[test]
fn only_whole_planes_are_accepted() {
    let shape = planes(FloatKind::F32, 2, 3);
    assert_eq!(EightBits(shape).eight_bytes(48), Some(2 * (24 + 6)));
    assert_eq!(EightBits(shape).eight_bytes(0), Some(0));
    assert_eq!(EightBits(shape).eight_bytes(47), None);
    let rejected = EightBits(shape).encode(&[0; 48], &mut [0; 59]);
    assert!(matches!(rejected, Err(PrecisionError::Length { .. })));
    let rejected = EightBits(shape).decode(&[0; 60], &mut [0; 24]);
    assert!(matches!(rejected, Err(PrecisionError::Length { .. })));
    for nothing in [planes(FloatKind::F16, 0, 3), planes(FloatKind::F16, 3, 0)] {
        assert_eq!(EightBits(nothing).eight_bytes(2), None);
        assert_eq!(EightBits(nothing).encode(&[], &mut []), Ok(()));
        assert_eq!(EightBits(nothing).decode(&[], &mut []), Ok(()));
    }
    assert_eq!(
        EightBits(planes(FloatKind::F32, usize::MAX, 2)).eight_bytes(8),
        None
    );
}
