//! [`Bytes`] on AVX2, with or without VNNI's instruction for products of bytes.
//!
//! `vpmaddubsw` multiplies unsigned bytes with signed ones and adds pairs of products to 16 bits.
//! Codes of few bits leave room to add several such sums before they are widened. Codes with
//! signs are multiplied as their magnitudes, with others that take over the signs.

use std::arch::x86_64::*;

use motet_formats::simd::{Avx2, Simd};
use motet_formats::{BlockFormat, WideBytes};

use super::bytes::{Bytes, Work};

/// Without VNNI.
const PLAIN: u8 = 0;
/// `vpdpbusd` of AVX-512.
const AVX512_VNNI: u8 = 1;
/// `vpdpbusd` of AVX.
const AVX_VNNI: u8 = 2;

/// Runs `work` with AVX2.
///
/// # Safety
///
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2(work: impl Work) {
    // SAFETY: the caller's promise.
    work.run(X86::<PLAIN>(unsafe { Avx2::new() }));
}

/// Runs `work` with AVX2 and the VNNI of AVX-512.
///
/// # Safety
///
/// The machine has AVX2, FMA, F16C, and AVX-512 with BW, VL and VNNI.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn run_avx512_vnni(work: impl Work) {
    // SAFETY: the caller's promise.
    work.run(X86::<AVX512_VNNI>(unsafe { Avx2::new() }));
}

/// Runs `work` with AVX2 and the VNNI of AVX.
///
/// # Safety
///
/// The machine has AVX2, FMA, F16C and AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn run_avx_vnni(work: impl Work) {
    // SAFETY: the caller's promise.
    work.run(X86::<AVX_VNNI>(unsafe { Avx2::new() }));
}

/// Proof that the machine has AVX2 and this kind of VNNI.
#[derive(Clone, Copy)]
struct X86<const VNNI: u8>(Avx2);

/// Wraps intrinsics that need nothing but the instruction set.
macro_rules! intrinsic {
    ($call:expr) => {
        // SAFETY: `self` is the proof that the machine has the instruction.
        unsafe { $call }
    };
}

/// Sums of two products with codes that can be added in 16 bits.
const fn sums_in_16_bits<F: BlockFormat>() -> i32 {
    32_767 / (2 * 127 * F::CODE_MAX)
}

impl<const VNNI: u8> X86<VNNI> {
    /// For each of eight groups of four bytes, two sums of two products, in 16 bits.
    #[inline(always)]
    fn pairs<F: BlockFormat>(self, codes: __m256i, other: __m256i) -> __m256i {
        intrinsic!(if F::HAS_SIGNS {
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(other, codes))
        } else {
            _mm256_maddubs_epi16(codes, other)
        })
    }

    /// The sums of pairs of 16 bits, in 32 bits.
    #[inline(always)]
    fn widen(self, pairs: __m256i) -> __m256i {
        intrinsic!(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }

    /// `sum` and, for each of eight groups of four bytes, the sum of four products.
    #[inline(always)]
    fn fours<F: BlockFormat>(self, sum: __m256i, codes: __m256i, other: __m256i) -> __m256i {
        if VNNI == PLAIN {
            let fours = self.widen(self.pairs::<F>(codes, other));
            return intrinsic!(_mm256_add_epi32(sum, fours));
        }
        let (codes, other) = if F::HAS_SIGNS {
            intrinsic!((_mm256_abs_epi8(codes), _mm256_sign_epi8(other, codes)))
        } else {
            (codes, other)
        };
        if VNNI == AVX512_VNNI {
            intrinsic!(_mm256_dpbusd_epi32(sum, codes, other))
        } else {
            intrinsic!(_mm256_dpbusd_avx_epi32(sum, codes, other))
        }
    }

    /// Adds the halves of each half of two rows, in 16 or 32 bits. Each half of the result has
    /// two numbers of 32 bits of both rows.
    #[inline(always)]
    fn halve<const BITS: u8>(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!({
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            if BITS == 16 {
                _mm256_add_epi16(low, high)
            } else {
                _mm256_add_epi32(low, high)
            }
        })
    }

    /// [`halve`](Self::halve) for two of its results. Each half has one number of four rows.
    #[inline(always)]
    fn halve_again<const BITS: u8>(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!({
            let (low, high) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
            if BITS == 16 {
                _mm256_add_epi16(low, high)
            } else {
                _mm256_add_epi32(low, high)
            }
        })
    }

    /// For each half of four rows of 32 codes, the sum of all products: four sums in each half.
    #[inline(always)]
    fn four_rows<F: BlockFormat>(self, rows: &[__m256i], other: __m256i) -> __m256i {
        let [a, b, c, d] = [rows[0], rows[1], rows[2], rows[3]];
        if VNNI == PLAIN && sums_in_16_bits::<F>() >= 2 {
            let ab = self.halve::<16>(self.pairs::<F>(a, other), self.pairs::<F>(b, other));
            let cd = self.halve::<16>(self.pairs::<F>(c, other), self.pairs::<F>(d, other));
            if sums_in_16_bits::<F>() >= 4 {
                self.widen(self.halve_again::<16>(ab, cd))
            } else {
                self.halve_again::<32>(self.widen(ab), self.widen(cd))
            }
        } else {
            let zero = intrinsic!(_mm256_setzero_si256());
            let (a, b) = (
                self.fours::<F>(zero, a, other),
                self.fours::<F>(zero, b, other),
            );
            let (c, d) = (
                self.fours::<F>(zero, c, other),
                self.fours::<F>(zero, d, other),
            );
            self.halve_again::<32>(self.halve::<32>(a, b), self.halve::<32>(c, d))
        }
    }

    /// The sums of both halves of `a`, then those of `b`.
    #[inline(always)]
    fn add_halves(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(a, b),
            _mm256_permute2x128_si256::<0x31>(a, b),
        ))
    }

    /// Four rows of four numbers of four bytes, in each half: the columns.
    #[inline(always)]
    fn transpose_four(self, rows: &[__m256i]) -> [__m256i; 4] {
        let [a, b, c, d] = [rows[0], rows[1], rows[2], rows[3]];
        intrinsic!({
            let (ab, more_ab) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd, more_cd) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(more_ab, more_cd),
                _mm256_unpackhi_epi64(more_ab, more_cd),
            ]
        })
    }

    /// The codes of one step of each eight of rows.
    ///
    /// # Safety
    ///
    /// There are as many.
    #[inline(always)]
    unsafe fn load_step<const E: usize>(self, rows: [*const u8; E], step: usize) -> [__m256i; E] {
        let mut codes = [intrinsic!(_mm256_setzero_si256()); E];
        for (codes, rows) in codes.iter_mut().zip(rows) {
            // SAFETY: the caller's promise.
            *codes = unsafe { self.load(rows.add(32 * step)) };
        }
        codes
    }

    /// Four codes, eight times.
    ///
    /// # Safety
    ///
    /// `from` is readable for four codes.
    #[inline(always)]
    unsafe fn load_four(self, from: *const i8) -> __m256i {
        // SAFETY: the caller's promise.
        let four = unsafe { from.cast::<i32>().read_unaligned() };
        intrinsic!(_mm256_set1_epi32(four))
    }
}

impl<const VNNI: u8> WideBytes for X86<VNNI> {
    type Bytes = __m256i;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_twice(self, from: *const u8) -> __m256i {
        // SAFETY: the caller's promise.
        let half = unsafe { _mm_loadu_si128(from.cast()) };
        intrinsic!(_mm256_broadcastsi128_si256(half))
    }

    #[inline(always)]
    fn splat(self, byte: u8) -> __m256i {
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
    fn sub(self, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(_mm256_sub_epi8(a, b))
    }

    #[inline(always)]
    fn shift_right(self, bytes: __m256i, count: usize) -> __m256i {
        intrinsic!(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn shift_left(self, bytes: __m256i, count: usize) -> __m256i {
        intrinsic!(_mm256_sll_epi16(bytes, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn lower_and_upper(self, bytes: __m256i) -> __m256i {
        intrinsic!({
            let shifted = _mm256_srlv_epi64(bytes, _mm256_setr_epi64x(0, 0, 4, 4));
            _mm256_and_si256(shifted, _mm256_set1_epi8(15))
        })
    }

    #[inline(always)]
    fn spread(self, word: u32) -> __m256i {
        intrinsic!({
            let places = _mm256_setr_epi64x(
                0,
                0x0101_0101_0101_0101,
                0x0202_0202_0202_0202,
                0x0303_0303_0303_0303,
            );
            let word = _mm256_shuffle_epi8(_mm256_set1_epi32(word as i32), places);
            let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            _mm256_cmpeq_epi8(_mm256_and_si256(word, bits), bits)
        })
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: __m256i) -> __m256i {
        // SAFETY: 16 bytes.
        let table = unsafe { self.load_twice(table.as_ptr()) };
        intrinsic!(_mm256_shuffle_epi8(table, indices))
    }
}

impl<const VNNI: u8> Bytes for X86<VNNI> {
    type Floats = Avx2;
    type Ints = __m256i;

    #[inline(always)]
    fn floats(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        self.0.mul_add(a, b, c)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, bytes: __m256i) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), bytes) }
    }

    #[inline(always)]
    fn transpose(self, rows: [__m256i; 8]) -> [__m256i; 8] {
        let [a, b, c, d] = self.transpose_four(&rows[..4]);
        let [e, f, g, h] = self.transpose_four(&rows[4..]);
        intrinsic!({
            [
                _mm256_permute2x128_si256::<0x20>(a, e),
                _mm256_permute2x128_si256::<0x20>(b, f),
                _mm256_permute2x128_si256::<0x20>(c, g),
                _mm256_permute2x128_si256::<0x20>(d, h),
                _mm256_permute2x128_si256::<0x31>(a, e),
                _mm256_permute2x128_si256::<0x31>(b, f),
                _mm256_permute2x128_si256::<0x31>(c, g),
                _mm256_permute2x128_si256::<0x31>(d, h),
            ]
        })
    }

    #[inline(always)]
    fn transpose_floats(self, rows: [__m256; 8]) -> [__m256; 8] {
        let mut bits = [intrinsic!(_mm256_setzero_si256()); 8];
        for (bits, row) in bits.iter_mut().zip(rows) {
            *bits = intrinsic!(_mm256_castps_si256(row));
        }
        let mut transposed = rows;
        for (row, bits) in transposed.iter_mut().zip(self.transpose(bits)) {
            *row = intrinsic!(_mm256_castsi256_ps(bits));
        }
        transposed
    }

    #[inline(always)]
    fn dots<F: BlockFormat>(self, rows: &[__m256i; 8], other: __m256i) -> __m256i {
        let a = self.four_rows::<F>(&rows[..4], other);
        let b = self.four_rows::<F>(&rows[4..], other);
        self.add_halves(a, b)
    }

    #[inline(always)]
    unsafe fn dots_across<F: BlockFormat, const E: usize, const M: usize, const STEPS: usize>(
        self,
        rows: [*const u8; E],
        others: [*const i8; M],
    ) -> [[__m256i; M]; E] {
        let mut sums = [[intrinsic!(_mm256_setzero_si256()); M]; E];
        if VNNI == PLAIN && sums_in_16_bits::<F>() >= 2 {
            let ones = [intrinsic!(_mm256_set1_epi16(1)); E];
            // SAFETY: the caller's promise.
            unsafe { self.add_scaled_across::<F, E, M, STEPS>(&mut sums, rows, others, ones) };
            return sums;
        }
        for step in 0..STEPS {
            // SAFETY: the caller promises that there are as many codes.
            let codes = unsafe { self.load_step(rows, step) };
            for m in 0..M {
                // SAFETY: as above.
                let other = unsafe { self.load_four(others[m].add(4 * step)) };
                for e in 0..E {
                    sums[e][m] = self.fours::<F>(sums[e][m], codes[e], other);
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn no_ints(self) -> __m256i {
        intrinsic!(_mm256_setzero_si256())
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const i32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_ints(self, to: *mut i32, ints: __m256i) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), ints) }
    }

    #[inline(always)]
    unsafe fn words(self, rows: [*const u8; 8]) -> [__m256i; 4] {
        let mut both = [intrinsic!(_mm256_setzero_si256()); 4];
        for (row, both) in both.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *both = unsafe {
                let lower = _mm256_castsi128_si256(_mm_loadu_si128(rows[row].cast()));
                let upper = _mm_loadu_si128(rows[row + 4].cast());
                _mm256_inserti128_si256::<1>(lower, upper)
            };
        }
        self.transpose_four(&both)
    }

    #[inline(always)]
    fn halves(self, words: __m256i) -> [__m256; 2] {
        intrinsic!({
            let lower = _mm256_and_si256(words, _mm256_set1_epi32(0xFFFF));
            let both = _mm256_packus_epi32(lower, _mm256_srli_epi32::<16>(words));
            let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(both)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(both)),
            ]
        })
    }

    #[inline(always)]
    fn widen_pair<const HAS_SIGNS: bool>(self, words: __m256i, two: [usize; 2]) -> __m256i {
        const NONE: u32 = 0x80;
        let [a, b] = two.map(|at| at as u32);
        // The place of each byte of a word; a byte with a sign is shifted down from the upper one.
        let places = if HAS_SIGNS {
            NONE | a << 8 | NONE << 16 | b << 24
        } else {
            a | NONE << 8 | b << 16 | NONE << 24
        };
        intrinsic!({
            let first = _mm_set_epi64x(0x0C0C_0C0C_0808_0808, 0x0404_0404_0000_0000);
            let first = _mm256_broadcastsi128_si256(first);
            let places = _mm256_add_epi8(first, _mm256_set1_epi32(places as i32));
            let found = _mm256_shuffle_epi8(words, places);
            if HAS_SIGNS {
                _mm256_srai_epi16::<8>(found)
            } else {
                found
            }
        })
    }

    #[inline(always)]
    unsafe fn splat_pair(self, from: *const i32) -> __m256i {
        // SAFETY: the caller's promise.
        let both = unsafe { from.read_unaligned() };
        intrinsic!(_mm256_set1_epi32(both))
    }

    #[inline(always)]
    fn store_words(self, words: [__m256i; 4], rows: &mut [[u8; 16]; 8]) {
        for (row, both) in self.transpose_four(&words).into_iter().enumerate() {
            // SAFETY: 16 bytes each.
            unsafe {
                _mm_storeu_si128(rows[row].as_mut_ptr().cast(), _mm256_castsi256_si128(both));
                let upper = _mm256_extracti128_si256::<1>(both);
                _mm_storeu_si128(rows[row + 4].as_mut_ptr().cast(), upper);
            }
        }
    }

    #[inline(always)]
    fn widen_eight(self, bytes: &[u8; 16]) -> __m256i {
        intrinsic!({
            let eight = _mm_loadu_si128(bytes.as_ptr().cast());
            _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(eight))
        })
    }

    #[inline(always)]
    fn widen_sixteen<const HAS_SIGNS: bool>(self, bytes: &[u8; 16]) -> __m256i {
        intrinsic!({
            let all = _mm_loadu_si128(bytes.as_ptr().cast());
            let parted = _mm_set_epi64x(0x0F0D_0B09_0705_0301, 0x0E0C_0A08_0604_0200);
            let parted = _mm_shuffle_epi8(all, parted);
            if HAS_SIGNS {
                _mm256_cvtepi8_epi16(parted)
            } else {
                _mm256_cvtepu8_epi16(parted)
            }
        })
    }

    #[inline(always)]
    unsafe fn load_parted(self, from: *const i16) -> __m256i {
        // SAFETY: the caller's promise.
        let all = unsafe { _mm256_loadu_si256(from.cast()) };
        intrinsic!({
            let parted = _mm_set_epi64x(0x0F0E_0B0A_0706_0302, 0x0D0C_0908_0504_0100);
            let parted = _mm256_shuffle_epi8(all, _mm256_broadcastsi128_si256(parted));
            _mm256_permute4x64_epi64::<0b11_01_10_00>(parted)
        })
    }

    #[inline(always)]
    fn splat_halves(self, ints: __m256i, at: usize) -> __m256i {
        let place = (2 * at + ((2 * at + 1) << 8)) as i16;
        intrinsic!(_mm256_shuffle_epi8(ints, _mm256_set1_epi16(place)))
    }

    #[inline(always)]
    fn add_twos(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        intrinsic!(match VNNI {
            AVX512_VNNI => _mm256_dpwssd_epi32(sum, a, b),
            AVX_VNNI => _mm256_dpwssd_avx_epi32(sum, a, b),
            _ => _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)),
        })
    }

    #[inline(always)]
    fn sub_times(self, a: __m256i, b: __m256i, factor: u8) -> __m256i {
        intrinsic!({
            let factor = _mm256_set1_epi32(i32::from(factor));
            _mm256_sub_epi32(a, _mm256_mullo_epi32(b, factor))
        })
    }

    #[inline(always)]
    fn sums(self, rows: &[__m256i; 8]) -> __m256i {
        let four = |a: usize| {
            let first = self.halve::<32>(rows[a], rows[a + 1]);
            self.halve_again::<32>(first, self.halve::<32>(rows[a + 2], rows[a + 3]))
        };
        self.add_halves(four(0), four(4))
    }

    #[inline(always)]
    fn add_scaled<F: BlockFormat>(
        self,
        sum: __m256i,
        codes: __m256i,
        other: __m256i,
        scales: __m256i,
    ) -> __m256i {
        self.add_twos(sum, self.pairs::<F>(codes, other), scales)
    }

    #[inline(always)]
    unsafe fn add_scaled_across<
        F: BlockFormat,
        const E: usize,
        const M: usize,
        const STEPS: usize,
    >(
        self,
        sums: &mut [[__m256i; M]; E],
        rows: [*const u8; E],
        others: [*const i8; M],
        scales: [__m256i; E],
    ) {
        if VNNI != PLAIN {
            // SAFETY: the caller's promise.
            let dots = unsafe { self.dots_across::<F, E, M, STEPS>(rows, others) };
            for e in 0..E {
                let scales = intrinsic!(_mm256_srai_epi32::<16>(scales[e]));
                for (sum, dots) in sums[e].iter_mut().zip(dots[e]) {
                    *sum = intrinsic!(_mm256_add_epi32(*sum, _mm256_mullo_epi32(dots, scales)));
                }
            }
            return;
        }
        // Steps whose products are added in 16 bits.
        let group = 1 << sums_in_16_bits::<F>().ilog2();
        for first in (0..STEPS).step_by(group) {
            let mut pairs = [[intrinsic!(_mm256_setzero_si256()); M]; E];
            for step in first..STEPS.min(first + group) {
                // SAFETY: the caller promises that there are as many codes.
                let codes = unsafe { self.load_step(rows, step) };
                for m in 0..M {
                    // SAFETY: as above.
                    let other = unsafe { self.load_four(others[m].add(4 * step)) };
                    for e in 0..E {
                        let product = self.pairs::<F>(codes[e], other);
                        pairs[e][m] = intrinsic!(_mm256_add_epi16(pairs[e][m], product));
                    }
                }
            }
            for e in 0..E {
                for m in 0..M {
                    sums[e][m] = self.add_twos(sums[e][m], pairs[e][m], scales[e]);
                }
            }
        }
    }

    #[inline(always)]
    fn to_floats(self, ints: __m256i) -> __m256 {
        intrinsic!(_mm256_cvtepi32_ps(ints))
    }
}
