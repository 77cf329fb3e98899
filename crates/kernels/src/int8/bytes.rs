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

    /// The products of eight rows of 32 codes with `other`, which is 32 codes from -127 to 127.
    fn dots<F: BlockFormat>(self, rows: &[Self::Bytes; 8], other: Self::Bytes) -> Self::Ints;

    /// The products of `E` eights of rows with `M` others. Each of `rows` is `[STEPS, 8, 4]` codes,
    /// each of `others` is `4 * STEPS` codes from -127 to 127. `STEPS` is 4 or 8.
    ///
    /// # Safety
    /// `rows` and `others` are readable.
    unsafe fn dots_across<F: BlockFormat, const E: usize, const M: usize, const STEPS: usize>(
        self,
        rows: [*const u8; E],
        others: [*const i8; M],
    ) -> [[Self::Ints; M]; E];

    /// Eight zeros.
    fn no_ints(self) -> Self::Ints;
    /// # Safety
    /// `from` is readable for eight integers.
    unsafe fn load_ints(self, from: *const i32) -> Self::Ints;
    /// # Safety
    /// `to` is writable for eight integers.
    unsafe fn store_ints(self, to: *mut i32, ints: Self::Ints);
    /// The first four words of each of eight rows: word `i` of all rows.
    ///
    /// # Safety
    /// Each row is readable for 16 bytes.
    unsafe fn words(self, rows: [*const u8; 8]) -> [Self::Bytes; 4];
    /// The lower and the upper halves of eight words, which are numbers in half precision.
    fn halves(self, words: Self::Bytes) -> [Vector<Self>; 2];
    /// Two bytes of each of eight words, as two integers of 16 bits.
    fn widen_pair<const HAS_SIGNS: bool>(self, words: Self::Bytes, two: [usize; 2]) -> Self::Ints;
    /// Two integers of 16 bits, eight times.
    ///
    /// # Safety
    /// `from` is readable for both.
    unsafe fn splat_pair(self, from: *const i32) -> Self::Ints;
    /// Writes what [`words`](Self::words) reads.
    fn store_words(self, words: [Self::Bytes; 4], rows: &mut [[u8; 16]; 8]);
    /// The first eight bytes as integers of 16 bits, twice.
    fn widen_eight(self, bytes: &[u8; 16]) -> Self::Ints;
    /// 16 bytes as integers of 16 bits: those with even places, then the others.
    fn widen_sixteen<const HAS_SIGNS: bool>(self, bytes: &[u8; 16]) -> Self::Ints;
    /// 16 integers of 16 bits: those with even places, then the others.
    ///
    /// # Safety
    /// `from` is readable for all.
    unsafe fn load_parted(self, from: *const i16) -> Self::Ints;
    /// Integer `at` of eight of each half, eight times in this half.
    fn splat_halves(self, ints: Self::Ints, at: usize) -> Self::Ints;
    /// `sum + a * b` for both integers of 16 bits in each of `a` and `b`.
    fn add_twos(self, sum: Self::Ints, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// `a - factor * b`.
    fn sub_times(self, a: Self::Ints, b: Self::Ints, factor: u8) -> Self::Ints;
    /// The sum of each of eight rows.
    fn sums(self, rows: &[Self::Ints; 8]) -> Self::Ints;
    /// Adds the products of 32 codes with `other`, which is 32 codes from -127 to 127: for each
    /// of eight groups of four, the sum of two products times the lower, and the sum of the others
    /// times the upper integer of 16 bits in `scales`.
    fn add_scaled<F: BlockFormat>(
        self,
        sum: Self::Ints,
        codes: Self::Bytes,
        other: Self::Bytes,
        scales: Self::Ints,
    ) -> Self::Ints;
    /// Adds [`Bytes::dots_across`] times `scales`, which has each scale twice, in 16 bits.
    ///
    /// # Safety
    /// As there.
    unsafe fn add_scaled_across<
        F: BlockFormat,
        const E: usize,
        const M: usize,
        const STEPS: usize,
    >(
        self,
        sums: &mut [[Self::Ints; M]; E],
        rows: [*const u8; E],
        others: [*const i8; M],
        scales: [Self::Ints; E],
    );
    /// The integers, rounded to the nearest number in single precision.
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
