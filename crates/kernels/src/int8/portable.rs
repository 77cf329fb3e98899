//! [`Bytes`] in plain Rust.

use half::f16;
use motet_formats::simd::Portable;
use motet_formats::{BlockFormat, WideBytes};

use super::bytes::{Bytes, Eight, Work};

/// Runs `work` with plain loops.
pub(super) fn run(work: impl Work) {
    work.run(PortableBytes);
}

#[derive(Clone, Copy)]
struct PortableBytes;

type Array = [u8; 32];

#[inline(always)]
fn each(a: Array, b: Array, f: impl Fn(u8, u8) -> u8) -> Array {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// The product of a code of a weight and one of the input.
#[inline(always)]
fn product<F: BlockFormat>(code: u8, other: i8) -> i32 {
    let code = if F::HAS_SIGNS {
        i16::from(code as i8)
    } else {
        i16::from(code)
    };
    i32::from(code * i16::from(other))
}

/// Two integers of 16 bits as one of 32.
fn joined([lower, upper]: [i16; 2]) -> i32 {
    i32::from(lower) & 0xFFFF | i32::from(upper) << 16
}

/// The integers of [`joined`].
fn parted(both: i32) -> [i32; 2] {
    [both << 16 >> 16, both >> 16]
}

/// A byte as an integer of 16 bits.
fn long<const HAS_SIGNS: bool>(byte: u8) -> i16 {
    if HAS_SIGNS {
        i16::from(byte as i8)
    } else {
        i16::from(byte)
    }
}

/// The place of number `at` of 16 once those with even places come first.
fn parted_place(at: usize) -> usize {
    2 * (at % 8) + at / 8
}

impl WideBytes for PortableBytes {
    type Bytes = Array;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Array {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        unsafe { from.cast::<Array>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_twice(self, from: *const u8) -> Array {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        let half = unsafe { from.cast::<[u8; 16]>().read_unaligned() };
        std::array::from_fn(|i| half[i % 16])
    }

    #[inline(always)]
    fn splat(self, byte: u8) -> Array {
        [byte; 32]
    }

    #[inline(always)]
    fn and(self, a: Array, b: Array) -> Array {
        each(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: Array, b: Array) -> Array {
        each(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn sub(self, a: Array, b: Array) -> Array {
        each(a, b, u8::wrapping_sub)
    }

    #[inline(always)]
    fn shift_right(self, bytes: Array, count: usize) -> Array {
        bytes.map(|byte| byte >> count)
    }

    #[inline(always)]
    fn shift_left(self, bytes: Array, count: usize) -> Array {
        bytes.map(|byte| byte << count)
    }

    #[inline(always)]
    fn lower_and_upper(self, bytes: Array) -> Array {
        std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i] >> 4 })
    }

    #[inline(always)]
    fn spread(self, word: u32) -> Array {
        std::array::from_fn(|i| if word >> i & 1 == 1 { 255 } else { 0 })
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: Array) -> Array {
        indices.map(|index| table[usize::from(index & 15)])
    }
}

impl Bytes for PortableBytes {
    type Floats = Portable;
    type Ints = [i32; 8];

    #[inline(always)]
    fn floats(self) -> Portable {
        Portable
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, bytes: Array) {
        // SAFETY: the caller's promise; `write_unaligned` asks for no alignment.
        unsafe { to.cast::<Array>().write_unaligned(bytes) }
    }

    #[inline]
    fn transpose(self, rows: [Array; 8]) -> [Array; 8] {
        let byte = |row: usize, i: usize| rows[i / 4][4 * row + i % 4];
        std::array::from_fn(|row| std::array::from_fn(|i| byte(row, i)))
    }

    #[inline]
    fn transpose_floats(self, rows: Eight<Self>) -> Eight<Self> {
        std::array::from_fn(|row| std::array::from_fn(|i| rows[i][row]))
    }

    #[inline]
    fn dots<F: BlockFormat>(self, rows: &[Array; 8], other: Array) -> [i32; 8] {
        rows.map(|row| {
            let pairs = row.iter().zip(&other);
            pairs.map(|(code, x)| product::<F>(*code, *x as i8)).sum()
        })
    }

    #[inline]
    unsafe fn dots_across<F: BlockFormat, const E: usize, const M: usize, const STEPS: usize>(
        self,
        rows: [*const u8; E],
        others: [*const i8; M],
    ) -> [[[i32; 8]; M]; E] {
        rows.map(|rows| {
            let mut sums = [[0; 8]; M];
            for step in 0..STEPS {
                // SAFETY: `rows` has that many codes, which the caller promises.
                let rows = unsafe { self.load(rows.add(32 * step)) };
                for (sums, other) in sums.iter_mut().zip(others) {
                    // SAFETY: `other` has that many codes, which the caller promises.
                    let other = unsafe { other.add(4 * step).cast::<[i8; 4]>().read() };
                    for (sum, row) in sums.iter_mut().zip(rows.as_chunks::<4>().0) {
                        let pairs = row.iter().zip(other);
                        *sum += pairs.map(|(code, x)| product::<F>(*code, x)).sum::<i32>();
                    }
                }
            }
            sums
        })
    }

    #[inline(always)]
    fn no_ints(self) -> [i32; 8] {
        [0; 8]
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const i32) -> [i32; 8] {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        unsafe { from.cast::<[i32; 8]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_ints(self, to: *mut i32, ints: [i32; 8]) {
        // SAFETY: the caller's promise; `write_unaligned` asks for no alignment.
        unsafe { to.cast::<[i32; 8]>().write_unaligned(ints) }
    }

    #[inline(always)]
    unsafe fn words(self, rows: [*const u8; 8]) -> [Array; 4] {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        let rows = rows.map(|row| unsafe { row.cast::<[u8; 16]>().read_unaligned() });
        std::array::from_fn(|word| std::array::from_fn(|i| rows[i / 4][4 * word + i % 4]))
    }

    #[inline(always)]
    fn halves(self, words: Array) -> [[f32; 8]; 2] {
        let half = |half: usize, row: usize| {
            let at = 4 * row + 2 * half;
            f16::from_le_bytes([words[at], words[at + 1]]).to_f32()
        };
        [0, 1].map(|part| std::array::from_fn(|row| half(part, row)))
    }

    #[inline(always)]
    fn widen_pair<const HAS_SIGNS: bool>(self, words: Array, two: [usize; 2]) -> [i32; 8] {
        std::array::from_fn(|row| joined(two.map(|at| long::<HAS_SIGNS>(words[4 * row + at]))))
    }

    #[inline(always)]
    unsafe fn splat_pair(self, from: *const i32) -> [i32; 8] {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        [unsafe { from.read_unaligned() }; 8]
    }

    #[inline(always)]
    fn store_words(self, words: [Array; 4], rows: &mut [[u8; 16]; 8]) {
        for (row, bytes) in rows.iter_mut().enumerate() {
            *bytes = std::array::from_fn(|i| words[i / 4][4 * row + i % 4]);
        }
    }

    #[inline(always)]
    fn widen_eight(self, bytes: &[u8; 16]) -> [i32; 8] {
        let long = |at: usize| i16::from(bytes[at % 8]);
        std::array::from_fn(|i| joined([long(2 * i), long(2 * i + 1)]))
    }

    #[inline(always)]
    fn widen_sixteen<const HAS_SIGNS: bool>(self, bytes: &[u8; 16]) -> [i32; 8] {
        let long = |at: usize| long::<HAS_SIGNS>(bytes[parted_place(at)]);
        std::array::from_fn(|i| joined([long(2 * i), long(2 * i + 1)]))
    }

    #[inline(always)]
    unsafe fn load_parted(self, from: *const i16) -> [i32; 8] {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        let all = unsafe { from.cast::<[i16; 16]>().read_unaligned() };
        let long = |at: usize| all[parted_place(at)];
        std::array::from_fn(|i| joined([long(2 * i), long(2 * i + 1)]))
    }

    #[inline(always)]
    fn splat_halves(self, ints: [i32; 8], at: usize) -> [i32; 8] {
        std::array::from_fn(|i| {
            let int = parted(ints[i / 4 * 4 + at / 2])[at % 2] as i16;
            joined([int; 2])
        })
    }

    #[inline(always)]
    fn add_twos(self, sum: [i32; 8], a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        let product = |a: i32, b: i32| {
            let ([a, b], [c, d]) = (parted(a), parted(b));
            a * c + b * d
        };
        std::array::from_fn(|i| sum[i] + product(a[i], b[i]))
    }

    #[inline(always)]
    fn sub_times(self, a: [i32; 8], b: [i32; 8], factor: u8) -> [i32; 8] {
        std::array::from_fn(|i| a[i] - i32::from(factor) * b[i])
    }

    #[inline(always)]
    fn sums(self, rows: &[[i32; 8]; 8]) -> [i32; 8] {
        rows.map(|row| row.iter().sum())
    }

    #[inline(always)]
    fn add_scaled<F: BlockFormat>(
        self,
        sum: [i32; 8],
        codes: Array,
        other: Array,
        scales: [i32; 8],
    ) -> [i32; 8] {
        let two = |at: usize| -> i32 {
            let products = (at..at + 2).map(|at| product::<F>(codes[at], other[at] as i8));
            products.sum()
        };
        std::array::from_fn(|i| {
            let [first, second] = parted(scales[i]);
            sum[i] + two(4 * i) * first + two(4 * i + 2) * second
        })
    }

    #[inline]
    unsafe fn add_scaled_across<
        F: BlockFormat,
        const E: usize,
        const M: usize,
        const STEPS: usize,
    >(
        self,
        sums: &mut [[[i32; 8]; M]; E],
        rows: [*const u8; E],
        others: [*const i8; M],
        scales: [[i32; 8]; E],
    ) {
        // SAFETY: the caller's promise.
        let dots = unsafe { self.dots_across::<F, E, M, STEPS>(rows, others) };
        for ((sums, dots), scales) in sums.iter_mut().zip(dots).zip(scales) {
            for (sums, dots) in sums.iter_mut().zip(dots) {
                for ((sum, dot), scale) in sums.iter_mut().zip(dots).zip(scales) {
                    *sum += dot * parted(scale)[0];
                }
            }
        }
    }

    #[inline(always)]
    fn to_floats(self, ints: [i32; 8]) -> [f32; 8] {
        ints.map(|int| int as f32)
    }
}
