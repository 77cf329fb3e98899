//! Matrices as checkpoints store them.
//!
//! A product with few rows takes as long as the weights take to arrive from memory, and weights
//! of 4 bits are an eighth of those in single precision. Kernels therefore read the stored
//! blocks and decode them in registers. Every element is decoded to the same `f32` that ggml
//! decodes it to, and products are summed in the same order as those of `f32`, so results
//! have the same bits as with the decoded matrix.
//!
//! | file | contents |
//! |---|---|
//! | `blocks.rs` | Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32 with one scale |
//! | `k_quants.rs` | Q2_K to Q6_K: blocks of 256 with a scale for every 16 or 32 |
//! | `codebooks.rs` | IQ4_NL, IQ4_XS, MXFP4: quants that index a table of values |
//! | `grouped.rs` | MLX's formats: codes, scales and offsets in arrays of their own |
//! | `format.rs` | the interface to block formats |
//! | `packed.rs` | products with blocks of any format |
//! | `matrix.rs` | the interface to matrices of any storage |

pub(crate) mod blocks;
pub(crate) mod codebooks;
pub(crate) mod format;
mod grouped;
pub(crate) mod k_quants;
mod matrix;
mod packed;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;

use half::{bf16, f16};

use super::simd::{InstructionSet, Job, Simd, dispatch_on};
use format::shape;
use grouped::{Exponents, Grouped, Halves, Scaling, Singles};
pub(super) use matrix::Matrix;
use matrix::Plain;
use packed::Packed;

/// How the numbers of a matrix are stored, all little-endian.
///
/// The quantised formats without arrays of scales are ggml's. Rows are cut into blocks of 32 or
/// 256 elements, each with one or more scales. Those with such arrays are MLX's; their rows
/// come from [`Rows::grouped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// 32 elements of 8 bits with a scale.
    Q8_0,
    /// 32 elements of 4 bits with a scale.
    Q4_0,
    /// 32 elements of 4 bits with a scale and an offset.
    Q4_1,
    /// 32 elements of 5 bits with a scale.
    Q5_0,
    /// 32 elements of 5 bits with a scale and an offset.
    Q5_1,
    /// 256 elements of 2 bits; a scale and an offset for every 16.
    Q2K,
    /// 256 elements of 3 bits; a scale for every 16.
    Q3K,
    /// 256 elements of 4 bits; a scale and an offset for every 32.
    Q4K,
    /// 256 elements of 5 bits; a scale and an offset for every 32.
    Q5K,
    /// 256 elements of 6 bits; a scale for every 16.
    Q6K,
    /// 32 elements of 4 bits that index a table, with a scale.
    Iq4Nl,
    /// 256 elements of 4 bits that index a table; a scale for every 32.
    Iq4Xs,
    /// 32 floating-point numbers of 4 bits with a common exponent.
    Mxfp4,
    /// Groups of elements with a scale and an offset in arrays of their own.
    Affine {
        /// Bits of an element: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Elements of a group: a multiple of 16.
        group: u8,
        /// How scales and offsets are stored.
        scales: ScaleFormat,
    },
    /// The elements of `Mxfp4`, two consecutive ones in a byte, with the exponents in an array of
    /// their own.
    GroupedMxfp4,
}

/// How the scales and offsets of groups are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleFormat {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
}

impl ScaleFormat {
    /// Bytes of one.
    const fn bytes(self) -> usize {
        match self {
            ScaleFormat::F32 => 4,
            ScaleFormat::F16 | ScaleFormat::Bf16 => 2,
        }
    }
}

impl Storage {
    /// Elements and bytes of the smallest unit that can be stored, without scales that have an
    /// array of their own. Rows have whole units.
    #[must_use]
    pub const fn block(self) -> (usize, usize) {
        match self {
            Storage::F32 => (1, 4),
            Storage::F16 | Storage::Bf16 => (1, 2),
            Storage::Q8_0 => shape::<blocks::Q8_0>(),
            Storage::Q4_0 => shape::<blocks::Q4_0>(),
            Storage::Q4_1 => shape::<blocks::Q4_1>(),
            Storage::Q5_0 => shape::<blocks::Q5_0>(),
            Storage::Q5_1 => shape::<blocks::Q5_1>(),
            Storage::Q2K => shape::<k_quants::Q2K>(),
            Storage::Q3K => shape::<k_quants::Q3K>(),
            Storage::Q4K => shape::<k_quants::Q4K>(),
            Storage::Q5K => shape::<k_quants::Q5K>(),
            Storage::Q6K => shape::<k_quants::Q6K>(),
            Storage::Iq4Nl => shape::<codebooks::Iq4Nl>(),
            Storage::Iq4Xs => shape::<codebooks::Iq4Xs>(),
            Storage::Mxfp4 => shape::<codebooks::Mxfp4>(),
            Storage::Affine { bits, group, .. } => {
                (group as usize, group as usize * bits as usize / 8)
            }
            Storage::GroupedMxfp4 => (32, 16),
        }
    }

    /// Bytes of a group's scale and of its offset, where they have arrays of their own.
    #[must_use]
    pub const fn span_bytes(self) -> (usize, usize) {
        match self {
            Storage::Affine { scales, .. } => (scales.bytes(), scales.bytes()),
            Storage::GroupedMxfp4 => (1, 0),
            _ => (0, 0),
        }
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

    /// The required alignment of stored rows, in bytes.
    #[must_use]
    pub const fn alignment(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::F16 | Storage::Bf16 => 2,
            _ => 1,
        }
    }
}

/// Rows of a matrix as they are stored, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    storage: Storage,
    bytes: &'a [u8],
    /// Scales and offsets in arrays of their own. Empty where the storage has none.
    scales: &'a [u8],
    offsets: &'a [u8],
    width: usize,
}

impl<'a> Rows<'a> {
    /// Rows of `width` elements each, whose scales, if any, are among `bytes`.
    ///
    /// # Panics
    ///
    /// When `width` is zero, no multiple of 16 or no multiple of the storage's block, when
    /// `bytes` are not whole rows, or when they are not aligned to [`Storage::alignment`]. Also for
    /// storage with arrays of scales.
    #[must_use]
    pub fn new(storage: Storage, bytes: &'a [u8], width: usize) -> Rows<'a> {
        Rows::grouped(storage, bytes, [&[], &[]], width)
    }

    /// Rows of `width` elements each, with arrays of scales and offsets: one of each for every group
    /// of every row, in order. They need no alignment.
    ///
    /// # Panics
    ///
    /// As for [`Rows::new`], and when the arrays are not as long as [`Storage::span_bytes`] says,
    /// or elements have another number of bits than 2, 3, 4, 5, 6 or 8.
    #[must_use]
    pub fn grouped(
        storage: Storage,
        bytes: &'a [u8],
        [scales, offsets]: [&'a [u8]; 2],
        width: usize,
    ) -> Rows<'a> {
        let sixteens = width > 0 && width.is_multiple_of(16);
        assert!(sixteens, "{width} columns: a multiple of 16 expected");
        let row = storage.row_bytes(width);
        let whole = bytes.len().is_multiple_of(row);
        assert!(
            whole,
            "{} bytes are not whole rows of {row} bytes",
            bytes.len()
        );
        let aligned = bytes.as_ptr().addr().is_multiple_of(storage.alignment());
        assert!(aligned, "the rows of {storage:?} are not aligned");
        let (elements, _) = storage.block();
        let groups = bytes.len() / row * (width / elements);
        let (scale, offset) = storage.span_bytes();
        let [found, expected] = [
            [scales.len(), offsets.len()],
            [scale, offset].map(|n| n * groups),
        ];
        assert_eq!(
            found, expected,
            "bytes of the scales and offsets of {storage:?}"
        );
        if let Storage::Affine { bits, .. } = storage {
            assert!(matches!(bits, 2..=6 | 8), "elements of {bits} bits");
        }
        Rows {
            storage,
            bytes,
            scales,
            offsets,
            width,
        }
    }

    /// Rows of `width` numbers each in single precision.
    ///
    /// # Panics
    ///
    /// As for [`Rows::new`].
    #[must_use]
    pub fn from_f32(numbers: &'a [f32], width: usize) -> Rows<'a> {
        Rows::new(Storage::F32, bytemuck::cast_slice(numbers), width)
    }

    /// How the rows are stored.
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// Elements in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Their bytes: of the elements' codes alone, where scales lie apart.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.bytes.len() / self.storage.row_bytes(self.width)
    }

    /// Some of the rows.
    ///
    /// # Panics
    ///
    /// When there are fewer rows.
    #[must_use]
    pub fn slice(&self, rows: Range<usize>) -> Rows<'a> {
        let row = self.storage.row_bytes(self.width);
        let groups = self.width / self.storage.block().0;
        let (scale, offset) = self.storage.span_bytes();
        let part = |all: &'a [u8], row: usize| &all[rows.start * row..rows.end * row];
        Rows {
            bytes: part(self.bytes, row),
            scales: part(self.scales, scale * groups),
            offsets: part(self.offsets, offset * groups),
            ..*self
        }
    }

    /// Decodes one row to single precision.
    ///
    /// # Panics
    ///
    /// When there is no such row, or `output` is not `width` numbers.
    pub fn decode(&self, row: usize, output: &mut [f32]) {
        self.decode_on(InstructionSet::best(), row, output);
    }

    fn decode_on(&self, set: InstructionSet, row: usize, output: &mut [f32]) {
        assert_eq!(output.len(), self.width, "numbers of a decoded row");
        self.slice(row..row + 1)
            .decode_span(set, 0..self.width, output, self.width);
    }

    /// Decodes the elements `along` each row, which are whole blocks, with one instruction set.
    /// The rows of `output` begin `stride` numbers apart.
    pub(super) fn decode_span(
        &self,
        set: InstructionSet,
        along: Range<usize>,
        output: &mut [f32],
        stride: usize,
    ) {
        let rows = self.rows();
        self.visit(DecodeOn {
            set,
            rows,
            along,
            output,
            stride,
        });
    }

    /// The stored bytes of the elements `along` each row, which are whole blocks.
    pub(super) fn span_bytes(self, along: Range<usize>) -> impl Iterator<Item = &'a [u8]> {
        let (elements, bytes) = self.storage.block();
        let span = along.start / elements * bytes..along.end / elements * bytes;
        let rows = self.bytes.chunks_exact(self.storage.row_bytes(self.width));
        rows.map(move |row| &row[span.clone()])
    }

    /// Maximum rows of an input for which products read these weights as they are stored. With
    /// more, decoding once into memory was measured to be as fast or faster.
    pub(super) fn direct_rows(&self, set: InstructionSet) -> usize {
        match (self.storage, set) {
            (Storage::F32, _) => 16,
            (Storage::F16 | Storage::Bf16, _) => 12,
            (_, InstructionSet::Portable) => 0,
            (
                Storage::Affine {
                    scales: ScaleFormat::F32,
                    ..
                },
                _,
            ) => 0,
            (Storage::Q4_0 | Storage::Q4_1, _) => 2,
            _ => 4,
        }
    }

    /// Calls `visitor` with the matrix as a type of its own for each storage.
    pub(super) fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        let Rows { bytes, width, .. } = self;
        match self.storage {
            Storage::F32 => visitor.visit(Plain::<f32>::new(bytes, width)),
            Storage::F16 => visitor.visit(Plain::<f16>::new(bytes, width)),
            Storage::Bf16 => visitor.visit(Plain::<bf16>::new(bytes, width)),
            Storage::Q8_0 => visitor.visit(Packed::<blocks::Q8_0>::new(bytes, width)),
            Storage::Q4_0 => visitor.visit(Packed::<blocks::Q4_0>::new(bytes, width)),
            Storage::Q4_1 => visitor.visit(Packed::<blocks::Q4_1>::new(bytes, width)),
            Storage::Q5_0 => visitor.visit(Packed::<blocks::Q5_0>::new(bytes, width)),
            Storage::Q5_1 => visitor.visit(Packed::<blocks::Q5_1>::new(bytes, width)),
            Storage::Q2K => visitor.visit(Packed::<k_quants::Q2K>::new(bytes, width)),
            Storage::Q3K => visitor.visit(Packed::<k_quants::Q3K>::new(bytes, width)),
            Storage::Q4K => visitor.visit(Packed::<k_quants::Q4K>::new(bytes, width)),
            Storage::Q5K => visitor.visit(Packed::<k_quants::Q5K>::new(bytes, width)),
            Storage::Q6K => visitor.visit(Packed::<k_quants::Q6K>::new(bytes, width)),
            Storage::Iq4Nl => visitor.visit(Packed::<codebooks::Iq4Nl>::new(bytes, width)),
            Storage::Iq4Xs => visitor.visit(Packed::<codebooks::Iq4Xs>::new(bytes, width)),
            Storage::Mxfp4 => visitor.visit(Packed::<codebooks::Mxfp4>::new(bytes, width)),
            Storage::Affine {
                bits,
                group,
                scales,
            } => match scales {
                ScaleFormat::F32 => {
                    let scaling = Singles {
                        scales: self.scales.as_chunks().0,
                        offsets: self.offsets.as_chunks().0,
                    };
                    self.visit_affine(visitor, scaling, bits, group)
                }
                format => {
                    let scaling = Halves {
                        scales: self.scales.as_chunks().0,
                        offsets: self.offsets.as_chunks().0,
                        format,
                    };
                    self.visit_affine(visitor, scaling, bits, group)
                }
            },
            Storage::GroupedMxfp4 => {
                let scaling = Exponents {
                    scales: self.scales,
                };
                visitor.visit(Grouped::<_, 4>::new(bytes, scaling, width, 32))
            }
        }
    }

    fn visit_affine<V: Visitor>(
        self,
        visitor: V,
        scaling: impl Scaling,
        bits: u8,
        group: u8,
    ) -> V::Output {
        let Rows { bytes, width, .. } = self;
        let group = usize::from(group);
        match bits {
            2 => visitor.visit(Grouped::<_, 2>::new(bytes, scaling, width, group)),
            3 => visitor.visit(Grouped::<_, 3>::new(bytes, scaling, width, group)),
            4 => visitor.visit(Grouped::<_, 4>::new(bytes, scaling, width, group)),
            5 => visitor.visit(Grouped::<_, 5>::new(bytes, scaling, width, group)),
            6 => visitor.visit(Grouped::<_, 6>::new(bytes, scaling, width, group)),
            8 => visitor.visit(Grouped::<_, 8>::new(bytes, scaling, width, group)),
            _ => unreachable!("the bits were checked"),
        }
    }
}

/// Work that is compiled once for each storage.
pub(super) trait Visitor {
    type Output;
    fn visit<W: Matrix>(self, matrix: W) -> Self::Output;
}

/// Decodes a span of all rows with one instruction set.
struct DecodeOn<'a> {
    set: InstructionSet,
    rows: usize,
    along: Range<usize>,
    output: &'a mut [f32],
    stride: usize,
}

impl Visitor for DecodeOn<'_> {
    type Output = ();

    fn visit<W: Matrix>(self, matrix: W) {
        let DecodeOn {
            set,
            rows,
            along,
            output,
            stride,
        } = self;
        let decode = Decode {
            matrix,
            rows,
            along,
            output,
            stride,
        };
        dispatch_on(set, decode);
    }
}

struct Decode<'a, W> {
    matrix: W,
    rows: usize,
    along: Range<usize>,
    output: &'a mut [f32],
    stride: usize,
}

impl<W: Matrix> Job for Decode<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (row, output) in (0..self.rows).zip(self.output.chunks_mut(self.stride)) {
            let output = &mut output[..self.along.len()];
            self.matrix.decode(simd, row, self.along.clone(), output);
        }
    }
}
