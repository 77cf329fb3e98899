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
//! | `packed.rs` | products with blocks of any format |
//! | `grouped.rs` | products with codes whose scales lie in arrays of their own |
//! | `matrix.rs` | the interface to matrices of any format, and products with numbers |

mod grouped;
mod matrix;
mod packed;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;

use motet_formats::simd::{InstructionSet, Number};
use motet_formats::{BlockFormat, Encoded, Format, ScaleFormat, Scaling};

use grouped::Grouped;
pub(super) use matrix::Matrix;
use matrix::Plain;
use packed::Packed;

/// Rows of a matrix as they are stored, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    encoded: Encoded<'a>,
    width: usize,
}

impl<'a> Rows<'a> {
    /// Rows of `width` elements each, whose scales, if any, are among `bytes`.
    ///
    /// # Panics
    ///
    /// When `width` is zero, no multiple of 16 or no multiple of the format's block, when
    /// `bytes` are not whole rows, or when they are not aligned to [`Format::alignment`]. Also for
    /// formats with arrays of scales.
    #[must_use]
    pub fn new(format: Format, bytes: &'a [u8], width: usize) -> Rows<'a> {
        Rows::grouped(format, bytes, [&[], &[]], width)
    }

    /// Rows of `width` elements each, with arrays of scales and offsets: one of each for every group
    /// of every row, in order. They need no alignment.
    ///
    /// # Panics
    ///
    /// As for [`Rows::new`], and where [`Encoded::new`] does.
    #[must_use]
    pub fn grouped(
        format: Format,
        bytes: &'a [u8],
        spans: [&'a [u8]; 2],
        width: usize,
    ) -> Rows<'a> {
        let sixteens = width > 0 && width.is_multiple_of(16);
        assert!(sixteens, "{width} columns: a multiple of 16 expected");
        let row = format.row_bytes(width);
        let whole = bytes.len().is_multiple_of(row);
        assert!(
            whole,
            "{} bytes are not whole rows of {row} bytes",
            bytes.len()
        );
        let aligned = bytes.as_ptr().addr().is_multiple_of(format.alignment());
        assert!(aligned, "the rows of {format:?} are not aligned");
        Rows {
            encoded: Encoded::new(format, bytes, spans),
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
        Rows::new(Format::F32, bytemuck::cast_slice(numbers), width)
    }

    /// How the rows are stored.
    #[must_use]
    pub fn format(&self) -> Format {
        self.encoded.format()
    }

    /// Elements in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Their bytes: of the elements' codes alone, where scales lie apart.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.encoded.bytes()
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.bytes().len() / self.format().row_bytes(self.width)
    }

    /// Some of the rows.
    ///
    /// # Panics
    ///
    /// When there are fewer rows.
    #[must_use]
    pub fn slice(&self, rows: Range<usize>) -> Rows<'a> {
        let blocks = self.width / self.format().block().0;
        Rows {
            encoded: self.encoded.blocks(rows.start * blocks..rows.end * blocks),
            width: self.width,
        }
    }

    /// Decodes one row to single precision.
    ///
    /// # Panics
    ///
    /// When there is no such row, or `output` is not `width` numbers.
    pub fn decode(&self, row: usize, output: &mut [f32]) {
        assert_eq!(output.len(), self.width, "numbers of a decoded row");
        let row = self.slice(row..row + 1);
        row.decode_span(InstructionSet::best(), 0..self.width, output, self.width);
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
        self.encoded
            .decode_rows(set, self.width, along, output, stride);
    }

    /// The stored bytes of the elements `along` each row, which are whole blocks.
    pub(super) fn span_bytes(self, along: Range<usize>) -> impl Iterator<Item = &'a [u8]> {
        let (elements, bytes) = self.format().block();
        let span = along.start / elements * bytes..along.end / elements * bytes;
        let rows = self
            .bytes()
            .chunks_exact(self.format().row_bytes(self.width));
        rows.map(move |row| &row[span.clone()])
    }

    /// Maximum rows of an input for which products read these weights as they are stored. With
    /// more, decoding once into memory was measured to be as fast or faster.
    pub(super) fn direct_rows(&self, set: InstructionSet) -> usize {
        match (self.format(), set) {
            (Format::F32, _) => 16,
            (Format::F16 | Format::BF16, _) => 12,
            (_, InstructionSet::Portable) => 0,
            (Format::Affine(affine), _) if affine.scales == ScaleFormat::F32 => 0,
            (Format::Q4_0 | Format::Q4_1, _) => 2,
            _ => 4,
        }
    }

    /// Calls `visitor` with the matrix as a type of its own for each format.
    pub(super) fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        self.encoded.visit(OfMatrix {
            rows: self,
            visitor,
        })
    }
}

/// Work that is compiled once for each format.
pub(super) trait Visitor {
    type Output;
    fn visit<W: Matrix>(self, matrix: W) -> Self::Output;
}

/// A visitor of matrices, as a visitor of formats.
struct OfMatrix<'a, V> {
    rows: Rows<'a>,
    visitor: V,
}

impl<V: Visitor> motet_formats::Visitor for OfMatrix<'_, V> {
    type Output = V::Output;

    fn numbers<N: Number>(self) -> V::Output {
        let Rows { encoded, width } = self.rows;
        self.visitor.visit(Plain::<N>::new(encoded.bytes(), width))
    }

    fn blocks<F: BlockFormat>(self) -> V::Output {
        let Rows { encoded, width } = self.rows;
        self.visitor.visit(Packed::<F>::new(encoded.bytes(), width))
    }

    fn groups<G: Scaling, const BITS: usize>(self, scaling: G, group: usize) -> V::Output {
        let Rows { encoded, width } = self.rows;
        let matrix = Grouped::<G, BITS>::new(encoded.bytes(), scaling, width, group);
        self.visitor.visit(matrix)
    }
}
