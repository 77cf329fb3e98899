//! The interface to 32 bytes at a time, and to integer products.

use super::codes::Codes;
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::simd::{InstructionSet, Simd};

/// Vectors of 32 bytes of one instruction set, and products of codes.
///
/// A value of the implementing type proves that the machine has the instructions, so only
/// [`Unit::run`] makes one.
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

/// Instructions that compute products of integers. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// AVX2, and `vpdpbusd` as AVX-512 has it, on vectors of 256 bits.
    Avx512Vnni,
    /// AVX2, and `vpdpbusd` as AVX has it.
    AvxVnni,
    /// AVX2.
    Avx2,
    /// Plain loops, as the compiler vectorises them.
    Portable,
}

impl Unit {
    /// Those of this machine that belong to an instruction set, the fastest first.
    pub(super) fn available(set: InstructionSet) -> Vec<Unit> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if set != InstructionSet::Portable
            && InstructionSet::available().contains(&InstructionSet::Avx2)
        {
            let has_vnni = is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw");
            if set == InstructionSet::Avx512 && has_vnni {
                found.push(Unit::Avx512Vnni);
            }
            if is_x86_feature_detected!("avxvnni") {
                found.push(Unit::AvxVnni);
            }
            found.push(Unit::Avx2);
        }
        let _ = set;
        found.push(Unit::Portable);
        found
    }

    /// The fastest one of this machine that belongs to an instruction set.
    pub(super) fn best(set: InstructionSet) -> Unit {
        Unit::available(set)[0]
    }

    /// Runs `work` with these instructions.
    ///
    /// # Panics
    ///
    /// When this machine does not have them.
    pub(super) fn run(self, work: impl Work) {
        let available = Unit::available(InstructionSet::best());
        assert!(
            available.contains(&self),
            "this machine does not have {self:?}"
        );
        match self {
            // SAFETY: the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512Vnni => unsafe { x86::run_avx512_vnni(work) },
            // SAFETY: the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Unit::AvxVnni => unsafe { x86::run_avx_vnni(work) },
            // SAFETY: the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => unsafe { x86::run_avx2(work) },
            _ => portable::run(work),
        }
    }
}
