//! The interface of integer products: [`Bytes`] of an instruction set, 32 at a time.

use motet_formats::simd::Simd;
use motet_formats::{BlockFormat, WideBytes};

/// Products of codes in the [`WideBytes`] of one instruction set.
///
/// A value of the implementing type proves that the machine has the instructions, so only
/// [`Unit::run`](super::unit::Unit::run) makes one.
pub(super) trait Bytes: WideBytes {
    /// Numbers in single precision, eight in a vector.
    type Floats: Simd;
    /// Eight integers of 32 bits.
    type Ints: Copy;

    /// The operations on numbers.
    fn floats(self) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Vector<Self>, b: Vector<Self>, c: Vector<Self>) -> Vector<Self>;
    /// # Safety
    /// `to` is writable for 32 bytes.
    unsafe fn store(self, to: *mut u8, bytes: Self::Bytes);
    /// Row `i` of the result is number `i`, of four bytes each, of all rows.
    fn transpose(self, rows: [Self::Bytes; 8]) -> [Self::Bytes; 8];
    /// [`Bytes::transpose`] for numbers in single precision.
    fn transpose_floats(self, rows: Eight<Self>) -> Eight<Self>;

    /// The products of eight rows of 32 codes with `other`, which is 32 codes from -127 to 127:
    /// the sums of the first 16, and those of the others.
    fn dots<F: BlockFormat>(self, rows: &[Self::Bytes; 8], other: Self::Bytes) -> [Self::Ints; 2];

    /// The products of eight rows with `M` others. `rows` is `[STEPS, 8, 4]` codes, each of
    /// `others` is `4 * STEPS` codes from -127 to 127. `STEPS` is 4 or 8.
    ///
    /// # Safety
    /// `rows` and `others` are readable.
    unsafe fn dots_across<F: BlockFormat, const M: usize, const STEPS: usize>(
        self,
        rows: *const u8,
        others: [*const i8; M],
    ) -> [Self::Ints; M];

    /// `a + b`.
    fn add(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// The integers, which are exact in single precision.
    fn to_floats(self, ints: Self::Ints) -> Vector<Self>;
}

/// Eight numbers in single precision.
pub(super) type Vector<B> = <<B as Bytes>::Floats as Simd>::Vector;

/// Eight vectors of them.
pub(super) type Eight<B> = [Vector<B>; 8];

/// Work that is compiled once per implementation of [`Bytes`].
pub(super) trait Work {
    /// Does the work. Implementations are `#[inline(always)]`.
    fn run<B: Bytes>(self, bytes: B);
}
