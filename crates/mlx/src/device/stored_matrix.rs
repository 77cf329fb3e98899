//! Matrices as their files store them, for this crate's CPU kernels.

use std::sync::Arc;

use motet_kernels::weights::{self, Rows, Storage};
use motet_weights::{Format, Part, ScaleFormat, Tensor};

/// The kernels need row widths that are a multiple of this.
pub(crate) const KERNEL_GRAIN: usize = 16;

/// A matrix `[rows, columns]` as its files store it. It consists of parts that are stacked by
/// rows, each in a format of its own. Parts that lie in a file in the right order are mapped, not
/// copied. Clones share the bytes.
#[derive(Clone, Debug)]
pub(crate) struct StoredMatrix(Arc<Stacked>);

#[derive(Debug)]
struct Stacked {
    parts: Vec<(Storage, Part)>,
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
        let parts = parts
            .map(|part| Some((storage(&part)?, part)))
            .collect::<Option<Vec<_>>>()?;
        Some(Self(Arc::new(Stacked {
            rows: parts.iter().map(|(_, part)| part.rows).sum(),
            columns,
            parts,
        })))
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
        parts.map(|(_, part)| bytes_of(part)).sum()
    }

    /// Bytes of the parts that are mapped from their file.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let mapped = self.0.parts.iter().filter(|(_, part)| part.is_mapped());
        mapped.map(|(_, part)| bytes_of(part)).sum()
    }

    /// The bytes that this process could overwrite: those of parts that are not mapped.
    pub(crate) fn own_bytes(&self) -> impl Iterator<Item = &[u8]> {
        let own = self.0.parts.iter().filter(|(_, part)| !part.is_mapped());
        own.flat_map(|(_, part)| part.arrays())
    }

    /// Writes a row in single precision into `output`.
    ///
    /// # Panics
    ///
    /// When there is no such row, or `output` is not as long as a row.
    pub(crate) fn decode(&self, row: usize, output: &mut [f32]) {
        let mut within = row;
        for (storage, part) in &self.0.parts {
            if within < part.rows {
                return rows(*storage, part, self.0.columns).decode(within, output);
            }
            within -= part.rows;
        }
        panic!("row {row} of a matrix of {} rows", self.0.rows);
    }

    /// The parts, as the kernels take them.
    pub(crate) fn parts(&self) -> Vec<Rows<'_>> {
        let parts = self.0.parts.iter();
        parts
            .map(|(storage, part)| rows(*storage, part, self.0.columns))
            .collect()
    }
}

/// A part as the kernels take it.
fn rows(storage: Storage, part: &Part, columns: usize) -> Rows<'_> {
    let spans = [part.scales(), part.offsets()];
    Rows::grouped(storage, part.bytes(), spans, columns)
}

fn bytes_of(part: &Part) -> usize {
    part.arrays().map(<[u8]>::len).sum()
}

/// The format as the kernels call it. None if they cannot read the part in place.
fn storage(part: &Part) -> Option<Storage> {
    let storage = match part.format {
        Format::F32 => Storage::F32,
        Format::F16 => Storage::F16,
        Format::BF16 => Storage::Bf16,
        Format::Q8_0 => Storage::Q8_0,
        Format::Q4_0 => Storage::Q4_0,
        Format::Q4_1 => Storage::Q4_1,
        Format::Q5_0 => Storage::Q5_0,
        Format::Q5_1 => Storage::Q5_1,
        Format::Q2K => Storage::Q2K,
        Format::Q3K => Storage::Q3K,
        Format::Q4K => Storage::Q4K,
        Format::Q5K => Storage::Q5K,
        Format::Q6K => Storage::Q6K,
        Format::Iq4Nl => Storage::Iq4Nl,
        Format::Iq4Xs => Storage::Iq4Xs,
        Format::Mxfp4 => Storage::Mxfp4,
        Format::Affine(affine) => Storage::Affine {
            bits: affine.bits,
            group: affine.group,
            scales: match affine.scales {
                ScaleFormat::F32 => weights::ScaleFormat::F32,
                ScaleFormat::F16 => weights::ScaleFormat::F16,
                ScaleFormat::BF16 => weights::ScaleFormat::Bf16,
            },
        },
        Format::GroupedMxfp4 => Storage::GroupedMxfp4,
        Format::U8 | Format::U32 => return None,
    };
    let aligned = part
        .bytes()
        .as_ptr()
        .addr()
        .is_multiple_of(storage.alignment());
    aligned.then_some(storage)
}
