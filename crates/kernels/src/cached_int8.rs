//! Numbers in eight bits, of which a group shares a scale.

use bytemuck::{Pod, Zeroable};
use half::bf16;
use motet_formats::simd::{LANES_MAX, Number, Simd};
use motet_model::{CacheKind, INT8_GROUP};

const _: () = assert!(INT8_GROUP.is_multiple_of(LANES_MAX));

/// Bytes of a scale.
const SCALE_BYTES: usize = size_of::<u16>();

/// Bytes of a whole group: the scale, then a code for each number.
const GROUP_BYTES: usize = INT8_GROUP + SCALE_BYTES;

/// Largest magnitude of a code.
const CODE_MAX: f32 = 127.0;

/// A byte of a row that is cached in [`Int8`](CacheKind::Int8).
///
/// A row is groups of 32 numbers, one after another, and zeros up to a whole word. A group is
/// its scale in bfloat16, then a signed code for each of its numbers. The last group may be shorter.
/// A number is its code times the scale, which `f32` represents exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Int8(pub u8);

impl Number for Int8 {
    const IS_F32: bool = false;

    #[inline(always)]
    fn row_len(dim: usize) -> usize {
        CacheKind::Int8.row_bytes(dim)
    }

    /// A vector has one scale, because `LANES` divides a group.
    #[inline(always)]
    unsafe fn load_at<S: Simd>(simd: S, row: *const Int8, at: usize) -> S::Vector {
        let group = at / INT8_GROUP * GROUP_BYTES;
        // SAFETY: a vector does not cross the end of a group, so the caller's promise covers its
        // codes. They come after the scale, so four bytes from the scale on are readable.
        unsafe {
            let scale = row.add(group);
            let codes = scale.add(SCALE_BYTES + at % INT8_GROUP);
            simd.mul(simd.load_i8(codes.cast()), simd.splat_bf16(scale.cast()))
        }
    }

    /// The scale is the smallest one in bfloat16 by which no code exceeds 127: an error is at most
    /// 0.4 % of the largest magnitude in its group. A group with a number that is not finite
    /// becomes NaN as a whole.
    #[inline(always)]
    fn store_row<S: Simd>(_: S, row: &mut [Int8], numbers: &[f32]) {
        assert_eq!(row.len(), Self::row_len(numbers.len()));
        let mut rest = bytemuck::cast_slice_mut::<Int8, u8>(row);
        for numbers in numbers.chunks(INT8_GROUP) {
            let (scale, after) = rest.split_at_mut(SCALE_BYTES);
            let (codes, after) = after.split_at_mut(numbers.len());
            scale.copy_from_slice(&store_group(codes, numbers).to_ne_bytes());
            rest = after;
        }
        rest.fill(0);
    }
}

/// Stores the codes of a group and returns its scale.
#[inline(always)]
fn store_group(codes: &mut [u8], numbers: &[f32]) -> u16 {
    // As whole numbers, the bits of magnitudes have the order of the magnitudes, and NaN is above
    // all of them.
    let magnitudes = numbers.iter().map(|x| x.to_bits() & 0x7FFF_FFFF);
    let largest = f32::from_bits(magnitudes.fold(0, u32::max));
    let scale = scale_of(largest);
    let step = bf16::from_bits(scale).to_f32();
    for (code, x) in codes.iter_mut().zip(numbers) {
        // Zero where the scale is zero or NaN, because the conversion turns NaN into zero.
        *code = (x / step).round_ties_even() as i8 as u8;
    }
    scale
}

/// The smallest scale in bfloat16 by which `largest` gets a code of at most 127.
#[inline(always)]
fn scale_of(largest: f32) -> u16 {
    if !largest.is_finite() {
        return 0x7FC0;
    }
    ((largest / CODE_MAX).to_bits().wrapping_add(0xFFFF) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_formats::simd::{InstructionSet, Job, dispatch_on};
    use proptest::prelude::*;

    /// Stores a row and reads it again.
    struct RoundTrip<'a>(&'a [f32]);

    impl Job for RoundTrip<'_> {
        type Output = (Vec<Int8>, Vec<f32>);

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let dim = self.0.len();
            let mut row = vec![Int8(0xAA); Int8::row_len(dim)];
            Int8::store_row(simd, &mut row, self.0);
            let mut scratch = vec![0.0; dim];
            let wide = Int8::widened(simd, &row, dim, &mut scratch).to_vec();
            (row, wide)
        }
    }

    /// Stores numbers on every instruction set, with the same bytes. Returns what is read back.
    fn round_trip(numbers: &[f32]) -> Vec<f32> {
        let (row, wide) = dispatch_on(InstructionSet::Portable, RoundTrip(numbers));
        for &set in InstructionSet::available() {
            let (found_row, found) = dispatch_on(set, RoundTrip(numbers));
            assert_eq!(found_row, row, "{set:?}");
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&wide), "{set:?}");
        }
        wide
    }

    proptest! {
        #[test]
        fn a_number_is_at_most_half_a_step_off(
            dim in (1_usize..9).prop_map(|count| 16 * count),
            exponent in -30_i32..30,
            seed in proptest::collection::vec(-1.0_f32..1.0, 128),
        ) {
            let numbers: Vec<f32> = seed[..dim].iter().map(|x| x * 2.0_f32.powi(exponent)).collect();
            let wide = round_trip(&numbers);
            for (group, wide) in numbers.chunks(INT8_GROUP).zip(wide.chunks(INT8_GROUP)) {
                let largest = group.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                let half_step = f64::from(largest) * (1.0 + 1.0 / 128.0) / 254.0;
                for (x, wide) in group.iter().zip(wide) {
                    let error = (f64::from(*x) - f64::from(*wide)).abs();
                    prop_assert!(error <= half_step * (1.0 + 1e-6), "{x}: {wide}");
                }
            }
        }
    }

    /// Every code times any scale, as the product in double precision.
    #[test]
    fn codes_are_read_exactly() {
        struct Read<'a>(&'a [Int8], usize);

        impl Job for Read<'_> {
            type Output = Vec<f32>;

            #[inline(always)]
            fn run<S: Simd>(self, simd: S) -> Vec<f32> {
                let mut scratch = vec![0.0; self.1];
                Int8::widened(simd, self.0, self.1, &mut scratch).to_vec()
            }
        }

        for scale in [1.0, 0.007_812_5, 3.046_875, 1e-30, 1e30].map(bf16::from_f32) {
            let codes: Vec<i8> = (i8::MIN..=i8::MAX).collect();
            let groups = codes.chunks(INT8_GROUP).flat_map(|group| {
                let codes = group.iter().map(|code| *code as u8);
                scale.to_ne_bytes().into_iter().chain(codes)
            });
            let row: Vec<Int8> = groups.map(Int8).collect();
            for &set in InstructionSet::available() {
                let wide = dispatch_on(set, Read(&row, codes.len()));
                for (code, wide) in codes.iter().zip(wide) {
                    let expected = f64::from(*code) * scale.to_f64();
                    assert_eq!(f64::from(wide), expected, "{set:?}");
                }
            }
        }
    }

    #[test]
    fn extremes_are_stored() {
        assert_eq!(round_trip(&[0.0; 48]), [0.0; 48]);
        let smallest = f32::from_bits(1);
        assert!(
            round_trip(&[smallest; 16])
                .iter()
                .all(|x| *x >= 0.0 && *x < 1e-37)
        );
        let large = round_trip(&[f32::MAX / 2.0; 16]);
        assert!(large.iter().all(|x| (x / f32::MAX - 0.5).abs() < 0.005));
        for other in [
            f32::NAN,
            -f32::NAN,
            f32::from_bits(0x7F80_0001),
            f32::INFINITY,
        ] {
            let mut numbers = [1.0; 64];
            numbers[40] = other;
            let wide = round_trip(&numbers);
            assert!(
                wide[..32].iter().all(|x| (x - 1.0).abs() < 0.005),
                "{other}"
            );
            assert!(wide[32..].iter().all(|x| x.is_nan()), "{other}");
        }
    }
}
