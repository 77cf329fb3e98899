//! [`Simd`] on NEON.

use std::arch::aarch64::*;

use super::{Job, Simd};

/// Runs `job` with NEON.
///
/// # Safety
///
/// The machine has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<J: Job>(job: J) -> J::Output {
    job.run(Neon(()))
}

/// Proof that the machine has NEON.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

/// Wraps intrinsics that need nothing but the instruction set.
macro_rules! intrinsic {
    ($call:expr) => {
        // SAFETY: `self` is the proof that the machine has the instruction.
        unsafe { $call }
    };
}

impl Simd for Neon {
    type Vector = float32x4_t;
    type Bytes = uint8x16_t;
    const LANES: usize = 4;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        intrinsic!(vdupq_n_f32(x))
    }

    #[inline(always)]
    fn iota(self) -> float32x4_t {
        intrinsic!(vld1q_f32([0.0, 1.0, 2.0, 3.0].as_ptr()))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: float32x4_t) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_f32(to, v) }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vsubq_f32(a, b))
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        intrinsic!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vmaxq_f32(a, b))
    }

    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!(vminq_f32(a, b))
    }

    #[inline(always)]
    fn select_ge(
        self,
        a: float32x4_t,
        b: float32x4_t,
        then: float32x4_t,
        otherwise: float32x4_t,
    ) -> float32x4_t {
        intrinsic!(vbslq_f32(vcgeq_f32(a, b), then, otherwise))
    }

    #[inline(always)]
    fn round(self, v: float32x4_t) -> float32x4_t {
        intrinsic!(vrndnq_f32(v))
    }

    #[inline(always)]
    fn scale(self, v: float32x4_t, n: float32x4_t) -> float32x4_t {
        intrinsic!({
            let exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(v, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        })
    }

    #[inline(always)]
    fn sum(self, v: float32x4_t) -> f32 {
        intrinsic!(vaddvq_f32(v))
    }

    #[inline(always)]
    fn largest(self, v: float32x4_t) -> f32 {
        intrinsic!(vmaxvq_f32(v))
    }

    #[inline(always)]
    fn sum_each(self, vectors: &[float32x4_t]) -> float32x4_t {
        let &[a, b, c, d] = vectors else {
            panic!("expected as many vectors as lanes")
        };
        intrinsic!(vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)))
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> uint8x16_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_u8(from) }
    }

    #[inline(always)]
    fn splat_byte(self, byte: u8) -> uint8x16_t {
        intrinsic!(vdupq_n_u8(byte))
    }

    #[inline(always)]
    fn and(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        intrinsic!(vandq_u8(a, b))
    }

    #[inline(always)]
    fn or(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        intrinsic!(vorrq_u8(a, b))
    }

    #[inline(always)]
    fn shift_right(self, bytes: uint8x16_t, count: u32) -> uint8x16_t {
        // A shift to the left by a negative count.
        intrinsic!(vshlq_u8(bytes, vdupq_n_s8(-(count as i8))))
    }

    #[inline(always)]
    fn shift_left(self, bytes: uint8x16_t, count: u32) -> uint8x16_t {
        intrinsic!(vshlq_u8(bytes, vdupq_n_s8(count as i8)))
    }

    #[inline(always)]
    fn sub_bytes(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        intrinsic!(vsubq_u8(a, b))
    }

    #[inline(always)]
    fn look_up(self, table: uint8x16_t, indices: uint8x16_t) -> uint8x16_t {
        intrinsic!(vqtbl1q_u8(table, indices))
    }

    #[inline(always)]
    fn widen(self, bytes: uint8x16_t, part: usize) -> float32x4_t {
        intrinsic!({
            let bytes = vreinterpretq_s8_u8(bytes);
            let eight = if part < 2 {
                vmovl_s8(vget_low_s8(bytes))
            } else {
                vmovl_s8(vget_high_s8(bytes))
            };
            let four = if part.is_multiple_of(2) {
                vmovl_s16(vget_low_s16(eight))
            } else {
                vmovl_s16(vget_high_s16(eight))
            };
            vcvtq_f32_s32(four)
        })
    }
}
