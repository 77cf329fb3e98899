//! Tensors in the form that computing needs, whatever form the files have.

use std::borrow::Cow;

pub use super::formats::Format;
pub(super) use super::formats::{BLOCK, Formats, half_at};

/// The tensor of a role, in canonical form: all rows in order, norm weights as factors, matrices
/// as `[out, in]`, rotated heads in half-split order.
///
/// It consists of parts that are stacked by rows. A part borrows the file's bytes where these
/// have the canonical form already, and owns converted bytes elsewhere.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Name in its file; that of the first file's tensor where there are several.
    pub name: &'a str,
    /// Row-major, outermost first: `[out, in]` for a matrix, `[experts, out, in]` for experts.
    pub shape: Vec<usize>,
    parts: Vec<Part<'a>>,
}

/// Some consecutive rows of a [`Tensor`].
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// How its elements are stored.
    pub format: Format,
    /// Its rows, with all but the last dimension of the tensor's shape flattened. The elements
    /// of a vector are one row.
    pub rows: usize,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    pub(super) fn new(name: &'a str, shape: Vec<usize>, parts: Vec<Part<'a>>) -> Self {
        let width = shape.last().copied().unwrap_or(1);
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        assert_eq!(
            rows * width,
            shape.iter().product::<usize>(),
            "the parts have the rows of the shape"
        );
        for part in &parts {
            let (elements, stride) = part.format.block();
            assert_eq!(
                part.bytes.len(),
                part.rows * width / elements * stride,
                "the bytes match the rows, as checked when the file was opened"
            );
        }
        Self { name, shape, parts }
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The parts, from the first row to the last. There is at least one.
    #[must_use]
    pub fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// The format of all parts. None if they have several.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        let first = self.parts.first()?.format;
        let alike = self.parts.iter().all(|part| part.format == first);
        alike.then_some(first)
    }

    /// All elements in single precision, row-major. Quantised elements are converted by the
    /// formula of their [`Format`]. Takes `4 * elements()` bytes, and up to eight threads for
    /// more than a million elements.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.elements()];
        self.write_f32(&mut out);
        out
    }

    /// Writes what [`to_f32`](Self::to_f32) returns into `out`.
    ///
    /// # Panics
    ///
    /// Unless `out` has [`elements`](Self::elements) elements.
    pub fn write_f32(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.elements(), "the elements fit");
        let width = self.shape.last().copied().unwrap_or(1);
        let mut rest = out;
        for part in &self.parts {
            let (own, others) = rest.split_at_mut(part.rows * width);
            part.format.to_f32(&part.bytes, own);
            rest = others;
        }
    }
}

impl<'a> Part<'a> {
    pub(super) fn new(format: Format, rows: usize, bytes: Cow<'a, [u8]>) -> Self {
        Self {
            format,
            rows,
            bytes,
        }
    }

    /// The elements as stored: row after row, in [`format`](Self::format). The bytes have no
    /// particular alignment.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the bytes are the file's own, which is mapped into memory.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        matches!(self.bytes, Cow::Borrowed(_))
    }
}
