//! The table of tensors.

use std::ops::Range;
use std::sync::Arc;

use motet_formats::Format;

use super::super::ModelError;
use super::super::opened::OpenedFile;
use super::super::stored::{Directory, Stored};
use super::cursor::Cursor;

/// ggml's own limit.
const DIMENSIONS_MAX: u32 = 4;
/// The smallest entry: an empty name, no dimensions, type and offset.
const ENTRY_BYTES_MIN: u64 = 8 + 4 + 4 + 8;

/// An entry of the table, before the start of the tensors' bytes is known.
struct Entry<'a> {
    name: &'a str,
    /// Row-major, outermost first.
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

/// Reads the table at the cursor and checks that all tensors lie within the file.
pub(super) fn parse(
    file: &Arc<OpenedFile>,
    cursor: &mut Cursor<'_>,
    tensors: u64,
    alignment: u64,
) -> Result<Directory, ModelError> {
    cursor.expect_remaining(tensors, ENTRY_BYTES_MIN, "tensors")?;
    let entries = (0..tensors)
        .map(|_| Entry::parse(file, cursor))
        .collect::<Result<Vec<_>, _>>()?;
    let data_start = (cursor.at() as u64).next_multiple_of(alignment);
    let mut directory = Directory::with_capacity(entries.len());
    for entry in entries {
        let stored = entry.locate(file, data_start, alignment)?;
        if directory.insert(entry.name.to_owned(), stored).is_some() {
            return Err(file.damaged(
                format!("tensor `{}` is there twice", entry.name),
                "every tensor once",
            ));
        }
    }
    Ok(directory)
}

impl<'a> Entry<'a> {
    fn parse(file: &OpenedFile, cursor: &mut Cursor<'a>) -> Result<Self, ModelError> {
        let name = cursor.name("a tensor's name")?;
        let dimensions = cursor.u32(name)?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return Err(file.damaged(
                format!("tensor `{name}` has {dimensions} dimensions"),
                format!("1 to {DIMENSIONS_MAX}"),
            ));
        }
        let mut shape = (0..dimensions)
            .map(|_| cursor.u64(name))
            .collect::<Result<Vec<_>, _>>()?;
        // GGUF lists the innermost dimension first.
        shape.reverse();
        Ok(Self {
            name,
            shape,
            kind: cursor.u32(name)?,
            offset: cursor.u64(name)?,
        })
    }

    fn locate(
        &self,
        file: &Arc<OpenedFile>,
        data_start: u64,
        alignment: u64,
    ) -> Result<Stored, ModelError> {
        if !self.offset.is_multiple_of(alignment) {
            return Err(file.damaged(
                format!("tensor `{}` begins at {}", self.name, self.offset),
                format!("a multiple of {alignment}"),
            ));
        }
        let shape = self.shape.iter().map(|size| usize::try_from(*size));
        let shape = shape
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| self.too_large(file))?;
        let format = format(self.kind);
        let range = match format {
            Ok(format) => self.range(file, data_start, format)?,
            Err(_) => 0..0,
        };
        Ok(Stored {
            file: Arc::clone(file),
            shape,
            format: format.map_err(unsupported),
            range,
        })
    }

    /// The range of the tensor's bytes, if its shape is valid and the file is long enough.
    fn range(
        &self,
        file: &OpenedFile,
        data_start: u64,
        format: Format,
    ) -> Result<Range<usize>, ModelError> {
        let (elements, block_bytes) = format.block();
        let (row, rows) = self.shape.split_last().expect("1 dimension or more");
        if !row.is_multiple_of(elements as u64) {
            return Err(file.damaged(
                format!(
                    "tensor `{}` has rows of {row} elements in {}",
                    self.name,
                    format.name()
                ),
                format!("a multiple of {elements}"),
            ));
        }
        let bytes = rows
            .iter()
            .try_fold(row / elements as u64, |blocks, size| {
                blocks.checked_mul(*size)
            })
            .and_then(|blocks| blocks.checked_mul(block_bytes as u64));
        let start = data_start.checked_add(self.offset);
        let end = start
            .zip(bytes)
            .and_then(|(start, bytes)| start.checked_add(bytes));
        match start.zip(end) {
            Some((start, end)) if end <= file.bytes().len() as u64 => {
                Ok(start as usize..end as usize)
            }
            _ => Err(self.too_large(file)),
        }
    }

    fn too_large(&self, file: &OpenedFile) -> ModelError {
        file.damaged(
            format!(
                "tensor `{}` of shape {:?} reaches beyond its end",
                self.name, self.shape
            ),
            "every tensor within the file",
        )
    }
}

/// The format with this ggml number, or the number itself for unsupported formats.
fn format(kind: u32) -> Result<Format, u32> {
    let mut formats = Format::ALL.iter().copied();
    let format = formats.find(|format| format.gguf_number() == Some(kind));
    format.ok_or(kind)
}

/// ggml's name of an unsupported format.
fn unsupported(kind: u32) -> String {
    let name = match kind {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return format!("ggml type {kind}"),
    };
    name.to_owned()
}
