//! Unsigned numbers of 2 to 8 bits that lie one after the other, from the lowest bit up.

use super::Simd;

/// Bytes whose upper half moves to the odd places: each of eight, twice.
const TWICE: [u8; 16] = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];
/// The lower half of bytes at even places.
const EVEN: [u8; 16] = [15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0];
/// The lower half of bytes at odd places.
const ODD: [u8; 16] = [0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15];

/// 16 numbers of `BITS` bits, a byte each.
///
/// # Safety
///
/// `from` is readable for `2 * BITS` bytes.
#[inline(always)]
pub(super) unsafe fn unpack<S: Simd, const BITS: usize>(simd: S, from: *const u8) -> S::Bytes {
    // SAFETY: the caller's promise; arrays have 16 bytes.
    unsafe {
        match BITS {
            8 => simd.load_bytes(from),
            4 => {
                let packed = u128::from(eight::<4>(from) | eight::<4>(from.add(4)) << 32);
                let packed = simd.load_bytes(packed.to_le_bytes().as_ptr());
                let twice = simd.look_up(packed, simd.load_bytes(TWICE.as_ptr()));
                let lower = simd.and(twice, simd.load_bytes(EVEN.as_ptr()));
                let upper = simd.and(simd.shift_right(twice, 4), simd.load_bytes(ODD.as_ptr()));
                simd.or(lower, upper)
            }
            _ => {
                let lower = spread::<BITS>(eight::<BITS>(from));
                let upper = spread::<BITS>(eight::<BITS>(from.add(BITS)));
                let both = u128::from(lower) | u128::from(upper) << 64;
                simd.load_bytes(both.to_le_bytes().as_ptr())
            }
        }
    }
}

/// Eight numbers of `BITS` bits each, as they lie.
///
/// # Safety
///
/// `from` is readable for `BITS` bytes.
#[inline(always)]
pub(super) unsafe fn eight<const BITS: usize>(from: *const u8) -> u64 {
    // SAFETY: the caller's promise; these are `BITS` bytes.
    unsafe {
        let two = |at: usize| u64::from(from.add(at).cast::<u16>().read_unaligned().to_le());
        let four = || u64::from(from.cast::<u32>().read_unaligned().to_le());
        match BITS {
            2 => two(0),
            3 => two(0) | u64::from(*from.add(2)) << 16,
            4 => four(),
            5 => four() | u64::from(*from.add(4)) << 32,
            6 => four() | two(4) << 32,
            8 => from.cast::<u64>().read_unaligned().to_le(),
            _ => unreachable!("numbers of 2, 3, 4, 5, 6 or 8 bits"),
        }
    }
}

/// Moves eight numbers of `BITS` bits to a byte each: the upper four, then the upper two of every
/// four, then the upper one of every two.
#[inline(always)]
fn spread<const BITS: usize>(numbers: u64) -> u64 {
    let all = apart(numbers, 4 * BITS, 32, 1);
    let all = apart(all, 2 * BITS, 16, 0x0000_0001_0000_0001);
    apart(all, BITS, 8, 0x0001_0001_0001_0001)
}

/// Moves the upper of two fields of `bits` bits to bit `place`, at each bit of `each`.
#[inline(always)]
fn apart(all: u64, bits: usize, place: usize, each: u64) -> u64 {
    let mask = ((1 << bits) - 1) * each;
    all & mask | (all >> bits & mask) << place
}

#[cfg(test)]
mod tests {
    use crate::simd::{InstructionSet, Job, Simd, dispatch_on};

    struct Unpack<'a, const BITS: usize>(&'a [u8]);

    impl<const BITS: usize> Job for Unpack<'_, BITS> {
        type Output = [[f32; 16]; 2];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [[f32; 16]; 2] {
            assert_eq!(self.0.len(), 2 * BITS);
            let mut found = [[f32::NAN; 16]; 2];
            for part in 0..16 / S::LANES {
                let at = part * S::LANES;
                // SAFETY: there are `2 * BITS` bytes.
                let (numbers, bytes) = unsafe {
                    let bytes = simd.unpack::<BITS>(self.0.as_ptr());
                    (simd.load_fields::<BITS>(self.0.as_ptr(), part), bytes)
                };
                simd.store_part(&mut found[0][at..at + S::LANES], numbers);
                simd.store_part(&mut found[1][at..at + S::LANES], simd.widen(bytes, part));
            }
            found
        }
    }

    fn check<const BITS: usize>() {
        for seed in 0..200_usize {
            let bytes: Vec<u8> = (0..2 * BITS)
                .map(|at| (seed * 7919 + at * 104_729) as u8)
                .collect();
            let bit = |at: usize| usize::from(bytes[at / 8] >> (at % 8) & 1);
            let number = |i: usize| (0..BITS).map(|at| bit(i * BITS + at) << at).sum::<usize>();
            for &set in InstructionSet::available() {
                let [numbers, widened] = dispatch_on(set, Unpack::<BITS>(&bytes));
                for i in 0..16 {
                    assert_eq!(
                        numbers[i],
                        number(i) as f32,
                        "{set:?}, {BITS} bits, number {i}"
                    );
                    // `widen` takes bytes as signed.
                    let signed = f32::from(number(i) as u8 as i8);
                    assert_eq!(widened[i], signed, "{set:?}, {BITS} bits, byte {i}");
                }
            }
        }
    }

    #[test]
    fn numbers_of_all_widths_are_unpacked() {
        check::<2>();
        check::<3>();
        check::<4>();
        check::<5>();
        check::<6>();
        check::<8>();
    }
}
