//! The formats of stored elements, and their conversion to single precision.
//!
//! | file | formats |
//! |---|---|
//! | `plain.rs` | F32, F16, BF16: every element by itself |
//! | `blocks.rs` | Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32 with one scale |
//! | `k_quants.rs` | Q2_K to Q6_K: blocks of 256 with a scale for every 16 or 32 |
//! | `codebooks.rs` | IQ4_NL, IQ4_XS, MXFP4: quants that index a table of values |
//! | `grouped.rs` | MLX's affine formats and MXFP4, with arrays of scales |
//! | `mxfp4_pair.rs` | MXFP4 in two tensors, as gpt-oss' safetensors have it |
//!
//! Layouts and formulas of blocks are ggml's (`ggml-common.h` and `ggml-quants.c`; in Python
//! `gguf/quants.py`). Everything is little-endian. A conversion takes a run of whole blocks, and
//! its operations are ggml's in ggml's order, so that results are equal to the last bit.

mod blocks;
mod codebooks;
mod grouped;
mod k_quants;
mod mxfp4_pair;
mod plain;
#[cfg(test)]
mod tests;

use std::thread;

use half::f16;

pub(super) use blocks::BLOCK;
pub(super) use grouped::grouped_to_f32;
pub(super) use mxfp4_pair::mxfp4_block;

/// Minimum elements for each thread of a conversion.
const THREAD_ELEMENTS: usize = 1 << 20;
/// Maximum threads of a conversion. Beyond these, memory bandwidth is the limit.
const THREADS_MAX: usize = 8;

/// How a tensor's elements are stored, all little-endian.
///
/// Most quantised formats are ggml's: rows are cut into blocks of 32 or 256 elements, each with
/// one or more scales. `d` and `m` are in half precision. `Affine` and `GroupedMxfp4` are MLX's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// `d`, then 32 signed bytes: `w = d * q`.
    Q8_0,
    /// `d`, then 16 bytes: elements 0..16 in their lower four bits, 16..32 in
    /// their upper: `w = d * (q - 8)`.
    Q4_0,
    /// `d`, `m`, then 16 bytes as in Q4_0: `w = d * q + m`.
    Q4_1,
    /// `d`, 32 fifth bits, then 16 bytes as in Q4_0: `w = d * (q - 16)`.
    Q5_0,
    /// `d`, `m`, 32 fifth bits, then 16 bytes as in Q4_0: `w = d * q + m`.
    Q5_1,
    /// 256 elements of 2 bits; scale and minimum of every 16 in 4 bits each:
    /// `w = d * scale * q - m * minimum`.
    Q2K,
    /// 256 elements of 3 bits; scale of every 16 in 6 bits:
    /// `w = d * (scale - 32) * (q - 4)`.
    Q3K,
    /// 256 elements of 4 bits; scale and minimum of every 32 in 6 bits each:
    /// `w = d * scale * q - m * minimum`.
    Q4K,
    /// 256 elements of 5 bits; scales, minima and formula as in Q4_K.
    Q5K,
    /// 256 elements of 6 bits; scale of every 16 in a signed byte:
    /// `w = d * scale * (q - 32)`.
    Q6K,
    /// 32 elements of 4 bits, which index a table of 16 values: `w = d * table[q]`.
    Iq4Nl,
    /// 256 elements as in IQ4_NL; scale of every 32 in 6 bits: `w = d * (scale - 32) * table[q]`.
    Iq4Xs,
    /// 32 numbers of 4 bits (sign, 2 bits of exponent, 1 of mantissa) and one common exponent of
    /// 8 bits, by the Open Compute Project's specification of microscaling formats 1.0.
    Mxfp4,
    /// Unsigned bytes. They are parts of a quantised tensor that a file keeps in several pieces,
    /// as gpt-oss' MXFP4, and no weights by themselves.
    U8,
    /// Words of 32 bits. They hold the elements of MLX's quantised tensors, and are no weights by
    /// themselves.
    U32,
    /// MLX's groups of unsigned elements of a few bits, with a scale and an offset (the bias)
    /// for each group in arrays of their own: `w = scale * q + offset`.
    Affine(Affine),
    /// The numbers of `Mxfp4` in MLX's order, element `2i` in the lower and `2i + 1` in the upper
    /// four bits of byte `i`, with the exponents in an array of their own.
    GroupedMxfp4,
}

/// The parameters of MLX's affine quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    /// Bits of an element: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Elements of a group: 32, 64 or 128.
    pub group: u8,
    /// How scales and offsets are stored.
    pub scales: ScaleFormat,
}

/// How the scales and offsets of groups are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleFormat {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
}

impl ScaleFormat {
    /// Bytes of one.
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Numbers in this format.
    pub(super) fn to_f32(self, bytes: &[u8]) -> Vec<f32> {
        let mut numbers = vec![0.0; bytes.len() / self.bytes()];
        match self {
            Self::F32 => plain::f32(bytes, &mut numbers),
            Self::F16 => plain::f16(bytes, &mut numbers),
            Self::BF16 => plain::bf16(bytes, &mut numbers),
        }
        numbers
    }
}

impl Format {
    /// The format's usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::Q8_0 => "Q8_0",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q5_0 => "Q5_0",
            Format::Q5_1 => "Q5_1",
            Format::Q2K => "Q2_K",
            Format::Q3K => "Q3_K",
            Format::Q4K => "Q4_K",
            Format::Q5K => "Q5_K",
            Format::Q6K => "Q6_K",
            Format::Iq4Nl => "IQ4_NL",
            Format::Iq4Xs => "IQ4_XS",
            Format::Mxfp4 => "MXFP4",
            Format::U8 => "U8",
            Format::U32 => "U32",
            Format::Affine(affine) => match affine.bits {
                2 => "affine of 2 bits",
                3 => "affine of 3 bits",
                4 => "affine of 4 bits",
                5 => "affine of 5 bits",
                6 => "affine of 6 bits",
                _ => "affine of 8 bits",
            },
            Format::GroupedMxfp4 => "MXFP4 in groups",
        }
    }

    /// Elements and bytes of the smallest unit that can be stored, without scales that have an array
    /// of their own. Rows have whole units.
    #[must_use]
    pub fn block(self) -> (usize, usize) {
        match self {
            Format::F32 => (1, 4),
            Format::F16 | Format::BF16 => (1, 2),
            Format::U8 => (1, 1),
            Format::U32 => (1, 4),
            Format::Affine(Affine { bits, group, .. }) => {
                (group.into(), usize::from(group) / 8 * usize::from(bits))
            }
            Format::GroupedMxfp4 => (BLOCK, BLOCK / 2),
            Format::Q8_0 => (BLOCK, blocks::Q8_0_BYTES),
            Format::Q4_0 => (BLOCK, blocks::Q4_0_BYTES),
            Format::Q4_1 => (BLOCK, blocks::Q4_1_BYTES),
            Format::Q5_0 => (BLOCK, blocks::Q5_0_BYTES),
            Format::Q5_1 => (BLOCK, blocks::Q5_1_BYTES),
            Format::Q2K => (k_quants::BLOCK, k_quants::Q2_K_BYTES),
            Format::Q3K => (k_quants::BLOCK, k_quants::Q3_K_BYTES),
            Format::Q4K => (k_quants::BLOCK, k_quants::Q4_K_BYTES),
            Format::Q5K => (k_quants::BLOCK, k_quants::Q5_K_BYTES),
            Format::Q6K => (k_quants::BLOCK, k_quants::Q6_K_BYTES),
            Format::Iq4Nl => (BLOCK, codebooks::IQ4_NL_BYTES),
            Format::Iq4Xs => (k_quants::BLOCK, codebooks::IQ4_XS_BYTES),
            Format::Mxfp4 => (BLOCK, codebooks::MXFP4_BYTES),
        }
    }

    /// Bytes of a block's scale and of its offset, where they have arrays of their own.
    #[must_use]
    pub fn span_bytes(self) -> (usize, usize) {
        match self {
            Format::Affine(affine) => (affine.scales.bytes(), affine.scales.bytes()),
            Format::GroupedMxfp4 => (1, 0),
            _ => (0, 0),
        }
    }

    /// The conversion of a run of whole blocks.
    fn conversion(self) -> fn(&[u8], &mut [f32]) {
        match self {
            Format::F32 => plain::f32,
            Format::F16 => plain::f16,
            Format::BF16 => plain::bf16,
            Format::U8 => plain::u8,
            Format::U32 | Format::Affine(_) | Format::GroupedMxfp4 => {
                unreachable!("{self:?} has no numbers without its scales")
            }
            Format::Q8_0 => blocks::q8_0,
            Format::Q4_0 => blocks::q4_0,
            Format::Q4_1 => blocks::q4_1,
            Format::Q5_0 => blocks::q5_0,
            Format::Q5_1 => blocks::q5_1,
            Format::Q2K => k_quants::q2_k,
            Format::Q3K => k_quants::q3_k,
            Format::Q4K => k_quants::q4_k,
            Format::Q5K => k_quants::q5_k,
            Format::Q6K => k_quants::q6_k,
            Format::Iq4Nl => codebooks::iq4_nl,
            Format::Iq4Xs => codebooks::iq4_xs,
            Format::Mxfp4 => codebooks::mxfp4,
        }
    }

    /// Converts a run of whole blocks, on several threads where it is long.
    ///
    /// # Panics
    ///
    /// Unless `bytes` are whole blocks and `out` has exactly their elements.
    pub(super) fn to_f32(self, bytes: &[u8], out: &mut [f32]) {
        let (elements, stride) = self.block();
        assert!(
            bytes.len().is_multiple_of(stride) && bytes.len() / stride * elements == out.len(),
            "{} bytes of {} are not {} elements",
            bytes.len(),
            self.name(),
            out.len()
        );
        let convert = self.conversion();
        let threads = threads_of(out.len());
        if threads == 1 {
            return convert(bytes, out);
        }
        let blocks = (bytes.len() / stride).div_ceil(threads);
        thread::scope(|scope| {
            let parts = bytes.chunks(blocks * stride);
            for (bytes, out) in parts.zip(out.chunks_mut(blocks * elements)) {
                scope.spawn(move || convert(bytes, out));
            }
        });
    }
}

/// Threads for the conversion of so many elements.
fn threads_of(elements: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (elements / THREAD_ELEMENTS).clamp(1, cores.min(THREADS_MAX))
}

/// The formats that are allowed for some tensor, and their names in an error.
pub(super) struct Formats {
    pub(super) allowed: &'static [Format],
    pub(super) names: &'static str,
}

impl Formats {
    /// Every format of weights.
    pub(super) const ALL: Formats = Formats {
        allowed: &[
            Format::F32,
            Format::F16,
            Format::BF16,
            Format::Q8_0,
            Format::Q4_0,
            Format::Q4_1,
            Format::Q5_0,
            Format::Q5_1,
            Format::Q2K,
            Format::Q3K,
            Format::Q4K,
            Format::Q5K,
            Format::Q6K,
            Format::Iq4Nl,
            Format::Iq4Xs,
            Format::Mxfp4,
        ],
        names: "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, \
                IQ4_XS, MXFP4",
    };
    /// Formats that store every element separately.
    pub(super) const UNQUANTISED: Formats = Formats {
        allowed: &[Format::F32, Format::F16, Format::BF16],
        names: "F32, F16, BF16",
    };
}

/// The half-precision number at offset `at` of a block.
pub(super) fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// Converts block after block. The sizes are constants, so that the compiler unrolls the
/// conversion of a block and leaves out checks of bounds.
fn each_block<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    convert: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, _) = bytes.as_chunks();
    let (out, _) = out.as_chunks_mut();
    for (block, out) in blocks.iter().zip(out) {
        convert(block, out);
    }
}
