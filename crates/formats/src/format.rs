//! The table of all formats.
//!
//! Layouts and formulas of blocks are ggml's (`ggml-common.h` and `ggml-quants.c`; in Python
//! `gguf/quants.py`). Everything is little-endian.

use half::{bf16, f16};

use crate::block_format::BlockFormat;
use crate::{blocks, codebooks, k_quants};

/// Makes [`Format`] of its rows. Each has a variant and, in brackets, its type in Rust; then its
/// name and its number in GGUF. The type of a format of blocks describes and decodes a block.
macro_rules! formats {
    (
        numbers { $($(#[$number_doc:meta])* $number:ident($plain:ty) $number_name:literal $number_gguf:literal,)* }
        blocks { $($(#[$block_doc:meta])* $block:ident($blocks:ty) $block_name:literal $block_gguf:literal,)* }
    ) => {
        /// How the elements of a tensor are stored, all little-endian.
        ///
        /// Most quantised formats are ggml's: rows are cut into blocks of 32 or 256 elements, each
        /// with one or more scales. `d` and `m` are in half precision. `Affine` and `GroupedMxfp4`
        /// are MLX's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$number_doc])* $number,)*
            $($(#[$block_doc])* $block,)*
            /// Unsigned bytes. They are parts of a quantised tensor that a file keeps in several
            /// pieces, as gpt-oss' MXFP4, and no weights by themselves.
            U8,
            /// Words of 32 bits. They hold the elements of MLX's quantised tensors, and are no
            /// weights by themselves.
            U32,
            /// MLX's groups of unsigned elements of a few bits, with a scale and an offset (the
            /// bias) for each group in arrays of their own: `w = scale * q + offset`.
            Affine(Affine),
            /// The numbers of `Mxfp4` in MLX's order, element `2i` in the lower and `2i + 1` in
            /// the upper four bits of byte `i`, with the exponents in an array of their own.
            GroupedMxfp4,
        }

        impl Format {
            /// The formats that store every element by itself.
            pub const NUMBERS: &[Format] = &[$(Format::$number,)*];
            /// Their names, as an error lists them.
            pub const NUMBER_NAMES: &str = concat!($(", ", $number_name),*).split_at(2).1;
            /// The formats with a number in GGUF: numbers, then blocks.
            pub const ALL: &[Format] = &[$(Format::$number,)* $(Format::$block,)*];
            /// Their names, as an error lists them.
            pub const ALL_NAMES: &str =
                concat!($(", ", $number_name,)* $(", ", $block_name),*).split_at(2).1;

            /// The format's usual name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Format::$number => $number_name,)*
                    $(Format::$block => $block_name,)*
                    Format::U8 => "U8",
                    Format::U32 => "U32",
                    Format::Affine(affine) => affine.name(),
                    Format::GroupedMxfp4 => "MXFP4 in groups",
                }
            }

            /// The format's number in GGUF files, if it has one.
            #[must_use]
            pub const fn gguf_number(self) -> Option<u32> {
                match self {
                    $(Format::$number => Some($number_gguf),)*
                    $(Format::$block => Some($block_gguf),)*
                    _ => None,
                }
            }

            /// Elements and bytes of the smallest unit that can be stored, without scales that
            /// have an array of their own. Rows have whole units.
            #[must_use]
            pub const fn block(self) -> (usize, usize) {
                match self {
                    $(Format::$number => (1, size_of::<$plain>()),)*
                    $(Format::$block => shape::<$blocks>(),)*
                    Format::U8 => (1, 1),
                    Format::U32 => (1, 4),
                    Format::Affine(Affine { bits, group, .. }) => {
                        (group as usize, group as usize * bits as usize / 8)
                    }
                    Format::GroupedMxfp4 => (32, 16),
                }
            }

            /// The alignment that a processor wants for numbers of this format, in bytes.
            #[must_use]
            pub const fn alignment(self) -> usize {
                match self {
                    $(Format::$number => align_of::<$plain>(),)*
                    _ => 1,
                }
            }

            /// Calls `visitor` with the type that describes the blocks. None for formats that are
            /// not blocks.
            pub fn visit_block<V: BlockVisitor>(self, visitor: V) -> Option<V::Output> {
                match self {
                    $(Format::$block => Some(visitor.visit::<$blocks>()),)*
                    _ => None,
                }
            }
        }
    };
}

formats! {
    numbers {
        /// IEEE single precision.
        F32(f32) "F32" 0,
        /// IEEE half precision.
        F16(f16) "F16" 1,
        /// The upper half of single precision.
        BF16(bf16) "BF16" 30,
    }
    blocks {
        /// `d`, then 32 signed bytes: `w = d * q`.
        Q8_0(blocks::Q8_0) "Q8_0" 8,
        /// `d`, then 16 bytes: elements 0..16 in their lower four bits, 16..32 in their upper:
        /// `w = d * (q - 8)`.
        Q4_0(blocks::Q4_0) "Q4_0" 2,
        /// `d`, `m`, then 16 bytes as in Q4_0: `w = d * q + m`.
        Q4_1(blocks::Q4_1) "Q4_1" 3,
        /// `d`, 32 fifth bits, then 16 bytes as in Q4_0: `w = d * (q - 16)`.
        Q5_0(blocks::Q5_0) "Q5_0" 6,
        /// `d`, `m`, 32 fifth bits, then 16 bytes as in Q4_0: `w = d * q + m`.
        Q5_1(blocks::Q5_1) "Q5_1" 7,
        /// 256 elements of 2 bits; scale and minimum of every 16 in 4 bits each:
        /// `w = d * scale * q - m * minimum`.
        Q2K(k_quants::Q2K) "Q2_K" 10,
        /// 256 elements of 3 bits; scale of every 16 in 6 bits: `w = d * (scale - 32) * (q - 4)`.
        Q3K(k_quants::Q3K) "Q3_K" 11,
        /// 256 elements of 4 bits; scale and minimum of every 32 in 6 bits each:
        /// `w = d * scale * q - m * minimum`.
        Q4K(k_quants::Q4K) "Q4_K" 12,
        /// 256 elements of 5 bits; scales, minima and formula as in Q4_K.
        Q5K(k_quants::Q5K) "Q5_K" 13,
        /// 256 elements of 6 bits; scale of every 16 in a signed byte: `w = d * scale * (q - 32)`.
        Q6K(k_quants::Q6K) "Q6_K" 14,
        /// 32 elements of 4 bits, which index a table of 16 values: `w = d * table[q]`.
        Iq4Nl(codebooks::Iq4Nl) "IQ4_NL" 20,
        /// 256 elements as in IQ4_NL; scale of every 32 in 6 bits:
        /// `w = d * (scale - 32) * table[q]`.
        Iq4Xs(codebooks::Iq4Xs) "IQ4_XS" 23,
        /// 32 numbers of 4 bits (sign, 2 bits of exponent, 1 of mantissa) and one common exponent
        /// of 8 bits, by the Open Compute Project's specification of microscaling formats 1.0.
        Mxfp4(codebooks::Mxfp4) "MXFP4" 39,
    }
}

/// Elements and bytes of a block.
const fn shape<F: BlockFormat>() -> (usize, usize) {
    (F::ELEMENTS, size_of::<F::Block>())
}

/// Work that is compiled once for each format of blocks.
pub trait BlockVisitor {
    /// The result of the work.
    type Output;
    /// Does the work.
    fn visit<F: BlockFormat>(self) -> Self::Output;
}

impl Format {
    /// Bytes of a group's scale and of its offset, where they have arrays of their own.
    #[must_use]
    pub const fn span_bytes(self) -> (usize, usize) {
        match self {
            Format::Affine(affine) => (affine.scales.bytes(), affine.scales.bytes()),
            Format::GroupedMxfp4 => (1, 0),
            _ => (0, 0),
        }
    }

    /// Where the numbers in half precision lie in a block: see [`BlockFormat::HALVES`].
    #[must_use]
    pub fn halves(self) -> &'static [usize] {
        struct Halves;

        impl BlockVisitor for Halves {
            type Output = &'static [usize];

            fn visit<F: BlockFormat>(self) -> &'static [usize] {
                F::HALVES
            }
        }

        self.visit_block(Halves).unwrap_or_default()
    }

    /// Bytes of a row of `width` elements.
    ///
    /// # Panics
    ///
    /// When the row is not whole blocks.
    #[must_use]
    pub fn row_bytes(self, width: usize) -> usize {
        let (elements, bytes) = self.block();
        let whole = width.is_multiple_of(elements);
        assert!(whole, "{width} elements are not whole blocks of {self:?}");
        width / elements * bytes
    }
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

impl Affine {
    const fn name(self) -> &'static str {
        match self.bits {
            2 => "affine of 2 bits",
            3 => "affine of 3 bits",
            4 => "affine of 4 bits",
            5 => "affine of 5 bits",
            6 => "affine of 6 bits",
            _ => "affine of 8 bits",
        }
    }
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
    /// The same format, of elements.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::F32 => Format::F32,
            Self::F16 => Format::F16,
            Self::BF16 => Format::BF16,
        }
    }

    /// Bytes of one.
    const fn bytes(self) -> usize {
        self.format().block().1
    }
}
