//! [`Simd`] in plain Rust, for machines without a specific implementation.

use super::{Job, Simd};

/// Runs `job` with plain loops.
pub(super) fn run<J: Job>(job: J) -> J::Output {
    job.run(Portable)
}

/// Plain loops, which every machine has.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

type Lanes = [f32; 8];

#[inline(always)]
fn each(a: Lanes, b: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type Vector = Lanes;
    type Bytes = [u8; 16];
    const LANES: usize = 8;
    const REGISTERS: usize = 8;
    const HAS_BYTES: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Lanes {
        [x; 8]
    }

    #[inline(always)]
    fn iota(self) -> Lanes {
        std::array::from_fn(|i| i as f32)
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Lanes {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        unsafe { from.cast::<Lanes>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: Lanes) {
        // SAFETY: the caller's promise; `write_unaligned` asks for no alignment.
        unsafe { to.cast::<Lanes>().write_unaligned(v) }
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // Not `f32::mul_add`, which is a library call on machines without such an instruction.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn select_ge(self, a: Lanes, b: Lanes, then: Lanes, otherwise: Lanes) -> Lanes {
        std::array::from_fn(|i| if a[i] >= b[i] { then[i] } else { otherwise[i] })
    }

    #[inline(always)]
    fn round(self, v: Lanes) -> Lanes {
        // Adding 1.5 * 2^23 leaves no bits for a fraction.
        const SHIFT: f32 = 12_582_912.0;
        std::array::from_fn(|i| (v[i] + SHIFT) - SHIFT)
    }

    #[inline(always)]
    fn scale(self, v: Lanes, n: Lanes) -> Lanes {
        // `as` saturates and takes NaN to 0, so the result is always a valid exponent.
        std::array::from_fn(|i| v[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn sum(self, v: Lanes) -> f32 {
        v.iter().sum()
    }

    #[inline(always)]
    fn largest(self, v: Lanes) -> f32 {
        v.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn sum_each(self, vectors: &[Lanes]) -> Lanes {
        assert_eq!(vectors.len(), Self::LANES, "as many vectors as lanes");
        std::array::from_fn(|i| self.sum(vectors[i]))
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> [u8; 16] {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        unsafe { from.cast::<[u8; 16]>().read_unaligned() }
    }

    #[inline(always)]
    fn splat_byte(self, byte: u8) -> [u8; 16] {
        [byte; 16]
    }

    #[inline(always)]
    fn and(self, a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
        std::array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(self, a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shift_right(self, bytes: [u8; 16], count: u32) -> [u8; 16] {
        bytes.map(|byte| byte >> count)
    }

    #[inline(always)]
    fn shift_left(self, bytes: [u8; 16], count: u32) -> [u8; 16] {
        bytes.map(|byte| byte << count)
    }

    #[inline(always)]
    fn sub_bytes(self, a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i]))
    }

    #[inline(always)]
    fn look_up(self, table: [u8; 16], indices: [u8; 16]) -> [u8; 16] {
        indices.map(|index| table[usize::from(index & 15)])
    }

    #[inline(always)]
    fn widen(self, bytes: [u8; 16], part: usize) -> Lanes {
        std::array::from_fn(|i| f32::from(bytes[8 * part + i] as i8))
    }
}
