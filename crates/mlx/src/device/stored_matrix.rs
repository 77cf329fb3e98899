//! Matrices as their files store them, for this crate's CPU kernels.

use std::sync::Arc;

use motet_kernels::Rows;
use motet_weights::{Format, Part, Tensor};

/// The kernels need row widths that are a multiple of this.
pub(crate) const KERNEL_GRAIN: usize = 16;

/// A matrix `[rows, columns]` as its files store it. It consists of parts that are stacked by
/// rows, each in a format of its own. Parts that lie in a file in the right order are mapped, not
/// copied. Clones share the bytes.
#[derive(Clone, Debug)]
pub(crate) struct StoredMatrix(Arc<Stacked>);

#[derive(Debug)]
struct Stacked {
    parts: Vec<Part>,
    rows: usize,
    columns: usize,
}

impl StoredMatrix {
    /// The tensors, stacked by rows. All but the last of a tensor's axes count as rows. None if
    /// the kernels cannot read them in place: where a row has no whole blocks of 16, or numbers
    /// are not aligned.
    pub(crate) fn new(tensors: Vec<Tensor<'_>>) -> Option<Self> {
        let columns = *tensors.first()?.shape.last()?;
        if !columns.is_multiple_of(KERNEL_GRAIN) {
            return None;
        }
        let parts = tensors.into_iter().flat_map(Tensor::into_parts);
        let parts: Vec<Part> = parts.collect();
        parts.iter().all(is_readable).then(|| {
            Self(Arc::new(Stacked {
                rows: parts.iter().map(|part| part.rows).sum(),
                columns,
                parts,
            }))
        })
    }

    pub(crate) fn rows(&self) -> usize {
        self.0.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.0.columns
    }

    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.0.parts.iter();
        parts.map(bytes_of).sum()
    }

    /// Bytes of the parts that are mapped from their file.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let mapped = self.0.parts.iter().filter(|part| part.is_mapped());
        mapped.map(bytes_of).sum()
    }

    /// The bytes that this process could overwrite: those of parts that are not mapped.
    pub(crate) fn own_bytes(&self) -> impl Iterator<Item = &[u8]> {
        let own = self.0.parts.iter().filter(|part| !part.is_mapped());
        own.flat_map(Part::arrays)
    }

    /// Writes a row in single precision into `output`.
    ///
    /// # Panics
    ///
    /// When there is no such row, or `output` is not as long as a row.
    pub(crate) fn decode(&self, row: usize, output: &mut [f32]) {
        let mut within = row;
        for part in &self.0.parts {
            if within < part.rows {
                return rows(part, self.0.columns).decode(within, output);
            }
            within -= part.rows;
        }
        panic!("row {row} of a matrix of {} rows", self.0.rows);
    }

    /// The parts, as the kernels take them.
    pub(crate) fn parts(&self) -> Vec<Rows<'_>> {
        let parts = self.0.parts.iter();
        parts.map(|part| rows(part, self.0.columns)).collect()
    }
}

/// A part as the kernels take it.
fn rows(part: &Part, columns: usize) -> Rows<'_> {
    let spans = [part.scales(), part.offsets()];
    Rows::grouped(part.format, part.bytes(), spans, columns)
}

fn bytes_of(part: &Part) -> usize {
    part.arrays().map(<[u8]>::len).sum()
}

/// Whether the kernels can read the part in place.
fn is_readable(part: &Part) -> bool {
    let address = part.bytes().as_ptr().addr();
    let has_numbers = !matches!(part.format, Format::U8 | Format::U32);
    has_numbers && address.is_multiple_of(part.format.alignment())
}
