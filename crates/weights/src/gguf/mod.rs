//! GGUF, llama.cpp's container in one or several files: a header, typed metadata, a table of
//! tensors, and the tensors themselves.
//!
//! Versions 2 and 3 are read. They differ only in that version 3 may be big-endian, which is
//! rejected, as are the 32-bit counts of version 1.

mod cursor;
mod metadata;
mod parts;
mod tensors;
mod value;

use std::path::Path;
use std::sync::Arc;

pub use metadata::GgufMetadata;

use super::ModelError;
use super::fields::Fields;
use super::opened::{FileAccess, OpenedFile};
use super::stored::Directory;
use cursor::Cursor;
use motet_protocol::{DeclaredPooling, Pooling};

const MAGIC: [u8; 4] = *b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
const ALIGNMENT_DEFAULT: u64 = 32;

/// Reads everything but the tensors' bytes.
pub(super) fn open(
    path: &Path,
    access: FileAccess,
) -> Result<(GgufMetadata, Directory), ModelError> {
    let opened = open_file(path, "a Hugging Face folder or a GGUF file", access)?;
    match parts::count(&opened.0)? {
        Some(count) => parts::join(opened, count, access),
        None => Ok(opened),
    }
}

/// Reads one file, which may be a part of a model.
fn open_file(
    path: &Path,
    expected: &'static str,
    access: FileAccess,
) -> Result<(GgufMetadata, Directory), ModelError> {
    let file = Arc::new(OpenedFile::open(path, expected, access)?);
    read_header(&file)
}

/// The pooling that the metadata declares, by llama.cpp's numbers.
pub(super) fn pooling(metadata: &GgufMetadata) -> Result<DeclaredPooling, ModelError> {
    let Some(architecture) = metadata.get_str("general.architecture")? else {
        return Ok(DeclaredPooling::Undeclared);
    };
    let number = metadata.get_u32(&format!("{architecture}.pooling_type"))?;
    Ok(match number {
        None | Some(0) => DeclaredPooling::Undeclared,
        Some(1) => DeclaredPooling::Declared(Pooling::Mean),
        Some(3) => DeclaredPooling::Declared(Pooling::Last),
        Some(2) => DeclaredPooling::Unsupported("mode `cls`".to_owned()),
        Some(4) => DeclaredPooling::Unsupported("mode `rank`".to_owned()),
        Some(other) => DeclaredPooling::Unsupported(format!("`pooling_type` {other}")),
    })
}

fn read_header(file: &Arc<OpenedFile>) -> Result<(GgufMetadata, Directory), ModelError> {
    let mut cursor = Cursor::new(file, 0);
    if cursor.bytes(4, "the magic number")? != MAGIC {
        return Err(file.damaged("it does not begin with `GGUF`", "a GGUF file"));
    }
    let version = cursor.u32("the version")?;
    if !VERSIONS.contains(&version) {
        return Err(file.damaged(
            match version.swap_bytes() {
                swapped if VERSIONS.contains(&swapped) => "it is big-endian".to_owned(),
                _ => format!("its version is {version}"),
            },
            "little-endian GGUF of version 2 or 3",
        ));
    }
    let tensors = cursor.u64("the number of tensors")?;
    let fields = cursor.u64("the number of metadata fields")?;
    let metadata = GgufMetadata::parse(file, &mut cursor, fields)?;
    let alignment = alignment(&metadata)?;
    let directory = tensors::parse(file, &mut cursor, tensors, alignment)?;
    Ok((metadata, directory))
}

/// Reads the alignment of the tensors' bytes.
fn alignment(metadata: &GgufMetadata) -> Result<u64, ModelError> {
    let name = "general.alignment";
    match metadata.integer(name)? {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(found) if found.is_power_of_two() && found <= 1 << 16 => Ok(found),
        Some(found) => {
            Err(metadata.wrong(name, format!("found {found}"), "a power of two up to 65536"))
        }
    }
}
