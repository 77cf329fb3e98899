//! [`Simd`] on AVX-512F.

use std::arch::x86_64::*;

use super::avx2::{field_shifts, field_words};
use super::{Job, Simd};

/// Runs `job` with AVX-512.
///
/// # Safety
///
/// The machine has AVX-512F, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(super) unsafe fn run<J: Job>(job: J) -> J::Output {
    job.run(Avx512(()))
}

/// Proof that the machine has AVX-512F.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Wraps intrinsics that need nothing but the instruction set.
macro_rules! intrinsic {
    ($call:expr) => {
        // SAFETY: `self` is the proof that the machine has the instruction.
        unsafe { $call }
    };
}

impl Simd for Avx512 {
    type Vector = __m512;
    type Bytes = __m128i;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        intrinsic!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn iota(self) -> __m512 {
        intrinsic!(_mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0
        ))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: __m512) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m512 {
        // SAFETY: the caller's promise.
        let halves = unsafe { _mm256_loadu_si256(from.cast()) };
        intrinsic!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(halves)
        )))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m512 {
        // SAFETY: the caller's promise.
        let halves = unsafe { _mm256_loadu_si256(from.cast()) };
        intrinsic!(_mm512_cvtph_ps(halves))
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, v: __m512) {
        let halves = intrinsic!(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), halves) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> __m512 {
        // SAFETY: the caller's promise.
        let bytes = unsafe { _mm_loadu_si128(from.cast()) };
        intrinsic!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
    }

    #[inline(always)]
    unsafe fn splat_bf16(self, from: *const u16) -> __m512 {
        // SAFETY: the caller's promise.
        let word = unsafe { from.cast::<i32>().read_unaligned() };
        intrinsic!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_set1_epi32(word)
        )))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        intrinsic!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn select_ge(self, a: __m512, b: __m512, then: __m512, otherwise: __m512) -> __m512 {
        intrinsic!(_mm512_mask_blend_ps(
            _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b),
            otherwise,
            then
        ))
    }

    #[inline(always)]
    fn round(self, v: __m512) -> __m512 {
        intrinsic!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(v))
    }

    #[inline(always)]
    fn scale(self, v: __m512, n: __m512) -> __m512 {
        intrinsic!(_mm512_scalef_ps(v, n))
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        intrinsic!(_mm512_reduce_add_ps(v))
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    fn largest(self, v: __m512) -> f32 {
        intrinsic!(_mm512_reduce_max_ps(v))
    }

    /// Four rounds. Each halves the number of vectors and places side by side the numbers that
    /// the next round adds.
    #[inline(always)]
    fn sum_each(self, vectors: &[__m512]) -> __m512 {
        let v: &[__m512; 16] = vectors.try_into().expect("as many vectors as lanes");
        intrinsic!({
            let mut fours = [_mm512_setzero_ps(); 4];
            for (i, four) in fours.iter_mut().enumerate() {
                let [a, b, c, d] = [v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]];
                let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                // Per 128-bit lane: partial sums of a, b, c, d.
                *four = _mm512_add_ps(
                    _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd),
                    _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd),
                );
            }
            let [p, q, r, s] = fours;
            let pq = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(p, q),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(p, q),
            );
            let rs = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(r, s),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(r, s),
            );
            _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(pq, rs),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(pq, rs),
            )
        })
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_si128(from.cast()) }
    }

    #[inline(always)]
    fn splat_byte(self, byte: u8) -> __m128i {
        intrinsic!(_mm_set1_epi8(byte as i8))
    }

    #[inline(always)]
    fn and(self, a: __m128i, b: __m128i) -> __m128i {
        intrinsic!(_mm_and_si128(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m128i, b: __m128i) -> __m128i {
        intrinsic!(_mm_or_si128(a, b))
    }

    #[inline(always)]
    fn shift_right(self, bytes: __m128i, count: u32) -> __m128i {
        intrinsic!(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn shift_left(self, bytes: __m128i, count: u32) -> __m128i {
        intrinsic!(_mm_sll_epi16(bytes, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn sub_bytes(self, a: __m128i, b: __m128i) -> __m128i {
        intrinsic!(_mm_sub_epi8(a, b))
    }

    #[inline(always)]
    fn look_up(self, table: __m128i, indices: __m128i) -> __m128i {
        intrinsic!(_mm_shuffle_epi8(table, indices))
    }

    #[inline(always)]
    fn widen(self, bytes: __m128i, _: usize) -> __m512 {
        intrinsic!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
    }

    #[inline(always)]
    unsafe fn load_fields<const BITS: usize>(self, from: *const u8, _: usize) -> __m512 {
        let shifts = const { [field_shifts(BITS); 2] };
        // SAFETY: the caller's promise; a vector is read from an array of its size.
        unsafe {
            let lower = _mm512_castsi256_si512(field_words::<BITS>(from));
            let upper = field_words::<BITS>(from.add(BITS));
            let words = _mm512_inserti64x4::<1>(lower, upper);
            if BITS == 8 {
                return _mm512_cvtepi32_ps(words);
            }
            let shifts = _mm512_loadu_si512(shifts.as_ptr().cast());
            let numbers = _mm512_srlv_epi32(words, shifts);
            let mask = _mm512_set1_epi32((1 << BITS) - 1);
            _mm512_cvtepi32_ps(_mm512_and_si512(numbers, mask))
        }
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        intrinsic!({
            let bits = _mm256_castsi128_si256(_mm_cvtsi32_si128(i32::from(bits)));
            _mm512_cvtss_f32(_mm512_cvtph_ps(bits))
        })
    }
}
