//! Tensors in the form that computing needs, whatever form the files have.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use motet_formats::{Encoded, Format};

use super::formats;
use super::opened::OpenedFile;

/// The tensor of a role, in canonical form: all rows in order, norm weights as factors, matrices
/// as `[out, in]`, rotated heads in half-split order.
///
/// It consists of parts that are stacked by rows. A part is the file's own bytes where these
/// have the canonical form already, and a converted copy elsewhere.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Name in its file; that of the first file's tensor where there are several.
    pub name: &'a str,
    /// Row-major, outermost first: `[out, in]` for a matrix, `[experts, out, in]` for experts.
    pub shape: Vec<usize>,
    parts: Vec<Part>,
}

/// Some consecutive rows of a [`Tensor`]. Clones share the bytes. A part outlives its
/// [`ModelFiles`](super::ModelFiles): it keeps the file mapped.
#[derive(Clone, Debug)]
pub struct Part {
    /// How its elements are stored.
    pub format: Format,
    /// Its rows, with all but the last dimension of the tensor's shape flattened. The elements
    /// of a vector are one row.
    pub rows: usize,
    bytes: Bytes,
    /// Scales and offsets, where the format has arrays of them.
    spans: [Option<Bytes>; 2],
}

#[derive(Clone)]
pub(super) enum Bytes {
    /// A range of a file.
    File(Arc<OpenedFile>, Range<usize>),
    Owned(Arc<Vec<u8>>),
}

impl<'a> Tensor<'a> {
    pub(super) fn new(name: &'a str, shape: Vec<usize>, parts: Vec<Part>) -> Self {
        let width = shape.last().copied().unwrap_or(1);
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        assert_eq!(
            rows * width,
            shape.iter().product::<usize>(),
            "the parts have the rows of the shape"
        );
        for part in &parts {
            let (elements, stride) = part.format.block();
            let (scale, offset) = part.format.span_bytes();
            let blocks = part.rows * width / elements;
            assert_eq!(
                [part.bytes(), part.scales(), part.offsets()].map(<[u8]>::len),
                [stride, scale, offset].map(|bytes| blocks * bytes),
                "the bytes match the rows, as checked when the file was opened"
            );
        }
        Self { name, shape, parts }
    }

    /// The first `rows` rows of a matrix, or all if it has no more.
    pub(super) fn first_rows(mut self, rows: usize) -> Self {
        if self.shape[0] <= rows {
            return self;
        }
        self.shape[0] = rows;
        let mut left = rows;
        self.parts.retain_mut(|part| {
            part.keep_rows(left.min(part.rows));
            left -= part.rows;
            part.rows > 0
        });
        Self::new(self.name, self.shape, self.parts)
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The parts, from the first row to the last. There is at least one.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The parts by themselves.
    #[must_use]
    pub fn into_parts(self) -> Vec<Part> {
        self.parts
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
            part.write_f32(own);
            rest = others;
        }
    }
}

impl Part {
    /// A part with converted bytes.
    pub(super) fn owned(format: Format, rows: usize, bytes: Vec<u8>) -> Self {
        Self::new(format, rows, Bytes::owned(bytes), [None, None])
    }

    /// A part with these bytes, and its scales and offsets if the format has arrays of them.
    pub(super) fn new(
        format: Format,
        rows: usize,
        bytes: Bytes,
        spans: [Option<Bytes>; 2],
    ) -> Self {
        Self {
            format,
            rows,
            bytes,
            spans,
        }
    }

    /// Leaves out all but the first rows.
    fn keep_rows(&mut self, rows: usize) {
        let before = self.rows;
        if rows == before {
            return;
        }
        let spans = self.spans.iter_mut().flatten();
        for bytes in std::iter::once(&mut self.bytes).chain(spans) {
            bytes.truncate(bytes.get().len() / before * rows);
        }
        self.rows = rows;
    }

    /// The elements as stored: row after row, in [`format`](Self::format). The bytes have no
    /// particular alignment.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get()
    }

    /// The scales of a format that has an array of them, as stored: those of the first row's
    /// groups, then those of the next one's. Empty for other formats.
    #[must_use]
    pub fn scales(&self) -> &[u8] {
        self.spans[0].as_ref().map_or(&[], Bytes::get)
    }

    /// The offsets of a format that has an array of them, in the order of the scales. Empty for
    /// other formats.
    #[must_use]
    pub fn offsets(&self) -> &[u8] {
        self.spans[1].as_ref().map_or(&[], Bytes::get)
    }

    /// Its arrays: elements, scales and offsets. Those that the format has not are left out.
    pub fn arrays(&self) -> impl Iterator<Item = &[u8]> {
        let all = [self.bytes(), self.scales(), self.offsets()];
        all.into_iter().filter(|array| !array.is_empty())
    }

    /// Writes all elements in single precision into `out`.
    pub(super) fn write_f32(&self, out: &mut [f32]) {
        let spans = [self.scales(), self.offsets()];
        formats::write_f32(Encoded::new(self.format, self.bytes(), spans), out);
    }

    /// Whether the bytes are the file's own, which is mapped into memory. Such bytes cannot be
    /// written to.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(&self.bytes, Bytes::File(file, _) if file.is_mapped())
    }
}

impl Bytes {
    pub(super) fn owned(bytes: Vec<u8>) -> Self {
        Self::Owned(Arc::new(bytes))
    }

    fn truncate(&mut self, length: usize) {
        match self {
            Self::File(_, range) => range.end = range.start + length,
            Self::Owned(bytes) => *bytes = Arc::new(bytes[..length].to_vec()),
        }
    }

    fn get(&self) -> &[u8] {
        match self {
            Self::File(file, range) => &file.bytes()[range.clone()],
            Self::Owned(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bytes::File(file, range) => {
                write!(f, "bytes {range:?} of {}", file.path().display())
            }
            Bytes::Owned(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}
