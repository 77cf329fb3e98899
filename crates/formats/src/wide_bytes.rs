//! The interface to vectors of 32 bytes, for readers of 32 codes at a time.

/// Vectors of 32 bytes of one instruction set.
///
/// Integer products implement it beside their own operations. A value of the implementing type
/// proves that the machine has the instructions.
pub trait WideBytes: Copy {
    /// 32 bytes.
    type Bytes: Copy;

    /// # Safety
    /// `from` is readable for 32 bytes.
    unsafe fn load(self, from: *const u8) -> Self::Bytes;
    /// 16 bytes, twice.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_twice(self, from: *const u8) -> Self::Bytes;
    /// 32 times `byte`.
    fn splat(self, byte: u8) -> Self::Bytes;
    /// `a & b`.
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `a | b`.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `a - b`, modulo 256.
    fn sub(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
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
}
