//! Types of cached numbers. Kernels compute in `f32`.

use bytemuck::Pod;
use half::{bf16, f16};

use super::{LANES_MAX, Simd};

/// The largest finite number of IEEE 754 half precision.
const F16_MAX: f32 = 65_504.0;

/// A type of cached numbers. Those of a head lie in a row.
pub trait Number: Pod + Send + Sync + std::fmt::Debug {
    /// Whether it is `f32` itself, which needs no conversion.
    const IS_F32: bool;

    /// Elements of this type in a row of `dim` numbers.
    #[inline(always)]
    fn row_len(dim: usize) -> usize {
        dim
    }

    /// Loads `LANES` numbers.
    ///
    /// # Safety
    ///
    /// `from` is readable for `LANES` numbers.
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::Vector {
        // SAFETY: the caller's promise.
        unsafe { Self::load_at(simd, from, 0) }
    }

    /// Loads `LANES` numbers of a row, the first of which has index `at`.
    ///
    /// # Safety
    ///
    /// The row, which begins at `row`, has `at + LANES` numbers or more, and `at` is a multiple of
    /// `LANES`.
    unsafe fn load_at<S: Simd>(simd: S, row: *const Self, at: usize) -> S::Vector;

    /// Stores the numbers of a row, each as the nearest one of the type, ties to even.
    ///
    /// # Panics
    ///
    /// When `row` is not as long as [`row_len`](Self::row_len) says.
    fn store_row<S: Simd>(simd: S, row: &mut [Self], numbers: &[f32]);

    /// Rows of `dim` numbers as `f32`: in place if they are `f32` already, otherwise converted
    /// into `scratch`.
    ///
    /// # Panics
    ///
    /// When `dim` is not a multiple of `LANES`, or `scratch` is too short.
    #[inline(always)]
    fn widened<'a, S: Simd>(
        simd: S,
        rows: &'a [Self],
        dim: usize,
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        let count = rows.len() / Self::row_len(dim);
        assert!(dim.is_multiple_of(S::LANES));
        let wide = &mut scratch[..count * dim];
        let rows = rows.chunks_exact(Self::row_len(dim));
        for (row, wide) in rows.zip(wide.chunks_exact_mut(dim)) {
            for at in (0..dim).step_by(S::LANES) {
                // SAFETY: a whole vector is left of both rows.
                unsafe {
                    let vector = Self::load_at(simd, row.as_ptr(), at);
                    simd.store(wide.as_mut_ptr().add(at), vector);
                }
            }
        }
        wide
    }
}

impl Number for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    unsafe fn load_at<S: Simd>(simd: S, row: *const f32, at: usize) -> S::Vector {
        // SAFETY: the caller's promise.
        unsafe { simd.load(row.add(at)) }
    }

    #[inline(always)]
    fn store_row<S: Simd>(_: S, row: &mut [f32], numbers: &[f32]) {
        row.copy_from_slice(numbers);
    }

    #[inline(always)]
    fn widened<'a, S: Simd>(_: S, rows: &'a [f32], _: usize, _: &'a mut [f32]) -> &'a [f32] {
        rows
    }
}

impl Number for bf16 {
    const IS_F32: bool = false;

    #[inline(always)]
    unsafe fn load_at<S: Simd>(simd: S, row: *const bf16, at: usize) -> S::Vector {
        // SAFETY: the caller's promise; the type has the layout of `u16`.
        unsafe { simd.load_bf16(row.add(at).cast()) }
    }

    #[inline(always)]
    fn store_row<S: Simd>(simd: S, row: &mut [bf16], numbers: &[f32]) {
        store_vectors(simd, row, numbers, |to, v| {
            // SAFETY: `to` has a whole vector; the type has the layout of `u16`.
            unsafe { simd.store_bf16(to.cast(), v) }
        });
    }
}

impl Number for f16 {
    const IS_F32: bool = false;

    #[inline(always)]
    unsafe fn load_at<S: Simd>(simd: S, row: *const f16, at: usize) -> S::Vector {
        // SAFETY: the caller's promise; the type has the layout of `u16`.
        unsafe { simd.load_f16(row.add(at).cast()) }
    }

    /// Numbers beyond the type's range become its largest number. An infinity among the keys
    /// would make a sequence's whole output NaN.
    #[inline(always)]
    fn store_row<S: Simd>(simd: S, row: &mut [f16], numbers: &[f32]) {
        store_vectors(simd, row, numbers, |to, v| {
            // In this order NaN stays NaN.
            let v = simd.min(simd.splat(F16_MAX), simd.max(simd.splat(-F16_MAX), v));
            // SAFETY: `to` has a whole vector; the type has the layout of `u16`.
            unsafe { simd.store_f16(to.cast(), v) }
        });
    }
}

/// Stores a row of numbers by `store`, which writes a whole vector.
#[inline(always)]
fn store_vectors<S: Simd, N: Number>(
    simd: S,
    row: &mut [N],
    numbers: &[f32],
    store: impl Fn(*mut N, S::Vector),
) {
    assert_eq!(row.len(), numbers.len());
    for (to, from) in row.chunks_mut(S::LANES).zip(numbers.chunks(S::LANES)) {
        let v = simd.load_part(from);
        if to.len() == S::LANES {
            store(to.as_mut_ptr(), v);
        } else {
            let mut whole = [N::zeroed(); LANES_MAX];
            store(whole.as_mut_ptr(), v);
            to.copy_from_slice(&whole[..to.len()]);
        }
    }
}

/// The number with this upper half and a lower half of zero.
#[inline(always)]
pub(super) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The upper half of the nearest representable number, ties to even.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7FFF + odd) >> 16;
    // Rounding could turn a NaN into an infinity or into zero.
    let quiet = (bits >> 16) | 0x40;
    (if x.is_nan() { quiet } else { rounded }) as u16
}

/// Converts an IEEE 754 half exactly.
#[inline(always)]
pub(super) fn from_f16(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7FFF);
    let below_normal = (rest as f32 * 2.0_f32.powi(-24)).to_bits();
    let normal = (rest << 13) + (112 << 23);
    let not_finite = (rest << 13) | 0x7F80_0000;
    let magnitude = match rest {
        0x7C00.. => not_finite,
        0x0400.. => normal,
        _ => below_normal,
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use super::super::{InstructionSet, Job, LANES_MAX, dispatch_on};
    use super::*;

    /// Stores numbers as a row and loads them again; they are padded to whole vectors.
    struct RoundTrip<'a, N>(&'a [f32], std::marker::PhantomData<N>);

    impl<N: Number> Job for RoundTrip<'_, N> {
        type Output = (Vec<N>, Vec<f32>);

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let mut stored = vec![N::zeroed(); self.0.len()];
            let mut loaded = vec![0.0; self.0.len()];
            N::store_row(simd, &mut stored, self.0);
            let mut scratch = vec![f32::NAN; self.0.len()];
            loaded.copy_from_slice(N::widened(simd, &stored, self.0.len(), &mut scratch));
            (stored, loaded)
        }
    }

    fn round_trip<N: Number>(set: InstructionSet, numbers: &[f32]) -> (Vec<N>, Vec<f32>) {
        assert!(numbers.len().is_multiple_of(LANES_MAX));
        dispatch_on(set, RoundTrip(numbers, std::marker::PhantomData))
    }

    /// Numbers of all magnitudes and both signs, with ties between two halves.
    fn numbers() -> Vec<f32> {
        let mut state = 1_u32;
        let mut any = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(state)
        };
        let any = (0..100_000).map(|_| any()).filter(|x| x.is_finite());
        let near = (0..50_000).map(|i| (i as f32 - 25_000.0) * 1.000_1e-3);
        // Halfway between neighbours in bfloat16 and in half precision.
        let ties = (0..4_096).flat_map(|i| [1.0 + i as f32 / 256.0, 1.0 + i as f32 / 2_048.0]);
        let small = (0..4_096).map(|i| i as f32 * 2.0_f32.powi(-25));
        let large = [65_504.0, 65_519.0, 65_520.0, 1e5, f32::MAX];
        let mut all: Vec<f32> = any
            .chain(near)
            .chain(ties)
            .chain(small)
            .chain(large)
            .collect();
        all.extend(all.clone().iter().map(|x| -x));
        all.resize(all.len().next_multiple_of(LANES_MAX), 0.0);
        all
    }

    #[test]
    fn stored_numbers_are_rounded_to_nearest() {
        let numbers = numbers();
        for &set in InstructionSet::available() {
            let (stored, loaded) = round_trip::<bf16>(set, &numbers);
            for ((x, stored), loaded) in numbers.iter().zip(stored).zip(loaded) {
                let expected = bf16::from_f32(*x);
                assert_eq!(stored.to_bits(), expected.to_bits(), "{set:?}: {x}");
                assert_eq!(
                    loaded.to_bits(),
                    expected.to_f32().to_bits(),
                    "{set:?}: {x}"
                );
            }
            let (stored, loaded) = round_trip::<f16>(set, &numbers);
            for ((x, stored), loaded) in numbers.iter().zip(stored).zip(loaded) {
                let expected = f16::from_f32(x.clamp(-F16_MAX, F16_MAX));
                assert_eq!(stored.to_bits(), expected.to_bits(), "{set:?}: {x}");
                assert_eq!(
                    loaded.to_bits(),
                    expected.to_f32().to_bits(),
                    "{set:?}: {x}"
                );
            }
            let (_, loaded) = round_trip::<f32>(set, &numbers);
            assert_eq!(loaded, numbers);
        }
    }

    /// Every half.
    #[test]
    fn all_halves_are_read_exactly() {
        struct Widen<'a, N>(&'a [N]);

        impl<N: Number> Job for Widen<'_, N> {
            type Output = Vec<f32>;

            #[inline(always)]
            fn run<S: Simd>(self, simd: S) -> Vec<f32> {
                let mut scratch = vec![0.0; self.0.len()];
                N::widened(simd, self.0, self.0.len(), &mut scratch).to_vec()
            }
        }

        fn check<N: Number>(read: fn(u16) -> f32) {
            let all: Vec<u16> = (0..=u16::MAX).collect();
            for &set in InstructionSet::available() {
                let wide = dispatch_on(set, Widen::<N>(bytemuck::cast_slice(&all)));
                for (bits, found) in all.iter().zip(wide) {
                    let expected = read(*bits);
                    let same = found.to_bits() == expected.to_bits();
                    let neither = found.is_nan() && expected.is_nan();
                    assert!(
                        same || neither,
                        "{set:?}: {bits:#x} is {found}, not {expected}"
                    );
                }
            }
        }

        check::<bf16>(|bits| bf16::from_bits(bits).to_f32());
        check::<f16>(|bits| f16::from_bits(bits).to_f32_const());
    }

    #[test]
    fn nan_stays_nan() {
        let numbers = [f32::NAN; LANES_MAX];
        for &set in InstructionSet::available() {
            let (_, loaded) = round_trip::<bf16>(set, &numbers);
            assert!(loaded.iter().all(|x| x.is_nan()), "{set:?}");
            let (_, loaded) = round_trip::<f16>(set, &numbers);
            assert!(loaded.iter().all(|x| x.is_nan()), "{set:?}");
            // A NaN whose set bits would all be cut off.
            let numbers = [f32::from_bits(0x7F80_0001); LANES_MAX];
            let (_, loaded) = round_trip::<bf16>(set, &numbers);
            assert!(loaded.iter().all(|x| x.is_nan()), "{set:?}");
        }
    }
}
