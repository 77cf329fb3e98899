//! The two interfaces of integer products: [`Bytes`] of an instruction set, 32 at a time, and
//! [`Codes`] of a format, as many.

use crate::simd::Simd;
use crate::weights::format::Format;

/// Vectors of 32 bytes of one instruction set, and products of codes.
///
/// A value of the implementing type proves that the machine has the instructions, so only
/// [`Unit::run`](super::unit::Unit::run) makes one.
pub(super) trait Bytes: Copy {
    /// Numbers in single precision, eight in a vector.
    type Floats: Simd;
    /// 32 bytes.
    type Bytes: Copy;
    /// Eight integers of 32 bits.
    type Ints: Copy;

    /// The operations on numbers.
    fn floats(self) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Vector<Self>, b: Vector<Self>, c: Vector<Self>) -> Vector<Self>;
    /// # Safety
    /// `from` is readable for 32 bytes.
    unsafe fn load(self, from: *const u8) -> Self::Bytes;
    /// 16 bytes, twice.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_twice(self, from: *const u8) -> Self::Bytes;
    /// # Safety
    /// `to` is writable for 32 bytes.
    unsafe fn store(self, to: *mut u8, bytes: Self::Bytes);
    /// 32 times `byte`.
    fn splat(self, byte: u8) -> Self::Bytes;
    /// `a & b`.
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `a | b`.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Each byte shifted right by 0 to 7. Bits of the next byte may come in from the left.
    fn shift_right(self, bytes: Self::Bytes, count: usize) -> Self::Bytes;
    /// Each byte shifted left by 0 to 7. Bits of the byte before may come in from the right.
    fn shift_left(self, bytes: Self::Bytes, count: usize) -> Self::Bytes;
    /// The lower four bits of the first 16 bytes, and the upper four bits of the others.
    fn lower_and_upper(self, bytes: Self::Bytes) -> Self::Bytes;
    /// Byte `i` is 255 where bit `i` of `word` is set, otherwise 0.
    fn spread(self, word: u32) -> Self::Bytes;
    /// The bytes of `table` at `indices`, which are below 16.
    fn look_up(self, table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes;
    /// Row `i` of the result is number `i`, of four bytes each, of all rows.
    fn transpose(self, rows: [Self::Bytes; 8]) -> [Self::Bytes; 8];
    /// [`Bytes::transpose`] for numbers in single precision.
    fn transpose_floats(self, rows: Eight<Self>) -> Eight<Self>;

    /// The products of eight rows of 32 codes with `other`, which is 32 codes from -127 to 127:
    /// the sums of the first 16, and those of the others.
    fn dots<F: Codes>(self, rows: &[Self::Bytes; 8], other: Self::Bytes) -> [Self::Ints; 2];

    /// The products of eight rows with `M` others. `rows` is `[STEPS, 8, 4]` codes, each of
    /// `others` is `4 * STEPS` codes from -127 to 127. `STEPS` is 4 or 8.
    ///
    /// # Safety
    /// `rows` and `others` are readable.
    unsafe fn dots_across<F: Codes, const M: usize, const STEPS: usize>(
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

/// A format whose codes are multiplied as integers.
pub(super) trait Codes: Format {
    /// The largest magnitude of a code.
    const CODE_MAX: i32;

    /// Where the scale and the offset lie in a block that has one of each, in half precision.
    /// None for other blocks.
    const HALVES: Option<Halves> = None;

    /// The codes of 32 elements.
    ///
    /// # Safety
    ///
    /// `chunk` is below `ELEMENTS / 32`.
    unsafe fn chunk<B: Bytes>(bytes: B, block: &Self::Block, chunk: usize) -> B::Bytes;

    /// The half-precision number at offset `at` of each block.
    #[inline(always)]
    fn halves<B: Bytes>(bytes: B, blocks: &[&Self::Block; 8], at: usize) -> Vector<B> {
        assert!(at + 2 <= size_of::<Self::Block>());
        let half = |block: &Self::Block| {
            let start: *const u8 = std::ptr::from_ref(block).cast();
            // SAFETY: two bytes of the block.
            unsafe { start.add(at).cast::<u16>().read_unaligned() }
        };
        let halves = blocks.map(half);
        // SAFETY: eight halves.
        unsafe { bytes.floats().load_f16(halves.as_ptr()) }
    }
}

/// Offsets within a block.
#[derive(Clone, Copy)]
pub(super) struct Halves {
    pub(super) scale: usize,
    pub(super) offset: Offset,
}

/// The offset of a block's elements.
#[derive(Clone, Copy)]
pub(super) enum Offset {
    None,
    /// This times the scale.
    Times(f32),
    /// The number at this offset of the block.
    At(usize),
}
