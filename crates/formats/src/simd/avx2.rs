//! [`Simd`] on AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::fields::eight;
use super::{Job, Simd};

/// Runs `job` with AVX2.
///
/// # Safety
///
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<J: Job>(job: J) -> J::Output {
    job.run(Avx2(()))
}

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The proof.
    ///
    /// # Safety
    ///
    /// The machine has AVX2, FMA and F16C.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

/// Eight numbers of `BITS` bits, each in the lowest bits of its lane after the shift that
/// [`field_shifts`] has for it. Other numbers are above them.
///
/// # Safety
///
/// The machine has AVX2, and `from` is readable for `BITS` bytes.
#[inline(always)]
pub(super) unsafe fn field_words<const BITS: usize>(from: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        match BITS {
            8 => _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())),
            2..=4 => _mm256_set1_epi32(eight::<BITS>(from) as i32),
            _ => {
                let all = eight::<BITS>(from);
                let upper = _mm_set1_epi32((all >> (4 * BITS)) as i32);
                _mm256_set_m128i(upper, _mm_set1_epi32(all as i32))
            }
        }
    }
}

/// The place of each lane's number in [`field_words`].
#[inline(always)]
pub(super) const fn field_shifts(bits: usize) -> [i32; 8] {
    let mut shifts = [0; 8];
    let mut lane = 0;
    while lane < 8 {
        shifts[lane] = match bits {
            8 => 0,
            5.. => (bits * (lane % 4)) as i32,
            _ => (bits * lane) as i32,
        };
        lane += 1;
    }
    shifts
}

/// Wraps intrinsics that need nothing but the instruction set.
macro_rules! intrinsic {
    ($call:expr) => {
        // SAFETY: `self` is the proof that the machine has the instruction.
        unsafe { $call }
    };
}

impl Simd for Avx2 {
    type Vector = __m256;
    /// The 16 bytes, twice.
    type Bytes = __m256i;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        intrinsic!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn iota(self) -> __m256 {
        intrinsic!(_mm256_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: __m256) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m256 {
        // SAFETY: the caller's promise.
        let halves = unsafe { _mm_loadu_si128(from.cast()) };
        intrinsic!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(
            _mm256_cvtepu16_epi32(halves)
        )))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m256 {
        // SAFETY: the caller's promise.
        let halves = unsafe { _mm_loadu_si128(from.cast()) };
        intrinsic!(_mm256_cvtph_ps(halves))
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, v: __m256) {
        let halves = intrinsic!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        // SAFETY: the caller's promise.
        unsafe { _mm_storeu_si128(to.cast(), halves) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> __m256 {
        // SAFETY: the caller's promise; the load takes eight bytes.
        let bytes = unsafe { _mm_loadl_epi64(from.cast()) };
        intrinsic!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)))
    }

    #[inline(always)]
    unsafe fn splat_bf16(self, from: *const u16) -> __m256 {
        // SAFETY: the caller's promise.
        let word = unsafe { from.cast::<i32>().read_unaligned() };
        intrinsic!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(
            _mm256_set1_epi32(word)
        )))
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        intrinsic!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn select_ge(self, a: __m256, b: __m256, then: __m256, otherwise: __m256) -> __m256 {
        intrinsic!(_mm256_blendv_ps(
            otherwise,
            then,
            _mm256_cmp_ps::<_CMP_GE_OQ>(a, b)
        ))
    }

    #[inline(always)]
    fn round(self, v: __m256) -> __m256 {
        intrinsic!(_mm256_round_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(v))
    }

    #[inline(always)]
    fn scale(self, v: __m256, n: __m256) -> __m256 {
        intrinsic!({
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        })
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        intrinsic!({
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    fn largest(self, v: __m256) -> f32 {
        intrinsic!({
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn sum_each(self, vectors: &[__m256]) -> __m256 {
        let &[a, b, c, d, e, f, g, h] = vectors else {
            panic!("expected as many vectors as lanes")
        };
        intrinsic!({
            // Per 128-bit lane: partial sums of a, b, c, d, and of e, f, g, h.
            let low = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let high = _mm256_hadd_ps(_mm256_hadd_ps(e, f), _mm256_hadd_ps(g, h));
            _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(low, high),
                _mm256_permute2f128_ps::<0x31>(low, high),
            )
        })
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m256i {
        // SAFETY: the caller's promise.
        let bytes = unsafe { _mm_loadu_si128(from.cast()) };
        intrinsic!(_mm256_broadcastsi128_si256(bytes))
    }

    #[inline(always)]
    fn splat_byte(self, byte: u8) -> __m256i {
        intrinsic!(_mm256_set1_epi8(byte as i8))
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn shift_right(self, bytes: __m256i, count: u32) -> __m256i {
        intrinsic!(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn shift_left(self, bytes: __m256i, count: u32) -> __m256i {
        intrinsic!(_mm256_sll_epi16(bytes, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn sub_bytes(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_sub_epi8(a, b))
    }

    #[inline(always)]
    fn look_up(self, table: __m256i, indices: __m256i) -> __m256i {
        intrinsic!(_mm256_shuffle_epi8(table, indices))
    }

    #[inline(always)]
    fn widen(self, bytes: __m256i, part: usize) -> __m256 {
        intrinsic!({
            let bytes = _mm256_castsi256_si128(bytes);
            let bytes = if part == 0 {
                bytes
            } else {
                _mm_srli_si128::<8>(bytes)
            };
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
        })
    }

    #[inline(always)]
    fn widen_small(self, bytes: __m256i, part: usize) -> __m256 {
        // An index of -1 gives zero. The bytes are in both halves, so none must cross over.
        intrinsic!({
            let first = _mm256_setr_epi8(
                0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 4, -1, -1, -1, 5, -1,
                -1, -1, 6, -1, -1, -1, 7, -1, -1, -1,
            );
            let second = _mm256_setr_epi8(
                8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1, 11, -1, -1, -1, 12, -1, -1, -1, 13,
                -1, -1, -1, 14, -1, -1, -1, 15, -1, -1, -1,
            );
            let places = if part == 0 { first } else { second };
            _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, places))
        })
    }

    /// The compiler's own conversion of one number inserts it into a register whose other bits it
    /// leaves as they are, and so waits for whatever wrote that register last.
    #[inline(always)]
    unsafe fn load_fields<const BITS: usize>(self, from: *const u8, part: usize) -> __m256 {
        let shifts = const { field_shifts(BITS) };
        // SAFETY: the caller's promise; a vector is read from an array of its size.
        unsafe {
            let words = field_words::<BITS>(from.add(part * BITS));
            if BITS == 8 {
                return _mm256_cvtepi32_ps(words);
            }
            let shifts = _mm256_loadu_si256(shifts.as_ptr().cast());
            let numbers = _mm256_srlv_epi32(words, shifts);
            let mask = _mm256_set1_epi32((1 << BITS) - 1);
            _mm256_cvtepi32_ps(_mm256_and_si256(numbers, mask))
        }
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        intrinsic!({
            let bits = _mm_cvtsi32_si128(i32::from(bits));
            let number: __m128;
            std::arch::asm!(
                "vcvtph2ps {number}, {bits}",
                bits = in(xmm_reg) bits,
                number = lateout(xmm_reg) number,
                options(pure, nomem, nostack, preserves_flags),
            );
            _mm_cvtss_f32(number)
        })
    }
}
