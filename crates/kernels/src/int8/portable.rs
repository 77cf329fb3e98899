//! [`Bytes`] in plain Rust.

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
    fn dots<F: BlockFormat>(self, rows: &[Array; 8], other: Array) -> [[i32; 8]; 2] {
        let dot = |row: &Array, half: usize| -> i32 {
            let pairs = row[16 * half..][..16].iter().zip(&other[16 * half..]);
            pairs.map(|(code, x)| product::<F>(*code, *x as i8)).sum()
        };
        [0, 1].map(|half| std::array::from_fn(|row| dot(&rows[row], half)))
    }

    #[inline]
    unsafe fn dots_across<F: BlockFormat, const M: usize, const STEPS: usize>(
        self,
        rows: *const u8,
        others: [*const i8; M],
    ) -> [[i32; 8]; M] {
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
    }

    #[inline(always)]
    fn add(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn to_floats(self, ints: [i32; 8]) -> [f32; 8] {
        ints.map(|int| int as f32)
    }
}
