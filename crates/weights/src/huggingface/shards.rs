//! safetensors: one file, or several under an index.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;

use motet_formats::Format;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::super::ModelError;
use super::super::fields::Fields;
use super::super::opened::{FileAccess, OpenedFile};
use super::super::stored::{Directory, Stored};
use super::json::JsonObject;

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The largest real headers, of mixtures with 100,000 tensors, have nine megabytes.
const INDEX_BYTES_MAX: usize = 16 << 20;
/// The limit of the format's own library.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of the header's length, which precedes the header.
const LENGTH_BYTES: usize = 8;

/// Opens `model.safetensors`, or else the shards of its index.
pub(super) fn open(folder: &Path, access: FileAccess) -> Result<Directory, ModelError> {
    let whole = folder.join(WHOLE);
    let index = folder.join(INDEX);
    if index.exists() && !whole.exists() {
        return open_shards(folder, &index, access);
    }
    let expected = "model.safetensors, or model.safetensors.index.json and its shards";
    Ok(open_file(&whole, expected, access)?.collect())
}

fn open_shards(folder: &Path, index: &Path, access: FileAccess) -> Result<Directory, ModelError> {
    let json = JsonObject::read(index, INDEX, INDEX_BYTES_MAX)?;
    let map = json.object("weight_map")?;
    let map = json.required("weight_map", map, "an object from tensors to files")?;
    let mut tensors_by_shard: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, value) in map.entries() {
        let shard = value
            .as_str()
            .filter(|shard| is_plain_name(shard))
            .ok_or_else(|| map.unlike(tensor, value, "the name of a file in this folder"))?;
        tensors_by_shard.entry(shard).or_default().push(tensor);
    }
    let mut directory = Directory::new();
    for (shard, tensors) in tensors_by_shard {
        let path = folder.join(shard);
        let mut stored: Directory = open_file(
            &path,
            "a shard that model.safetensors.index.json names",
            access,
        )?
        .collect();
        for tensor in tensors {
            // A tensor that is missing from its shard is reported when it is needed.
            directory.extend(stored.remove_entry(tensor));
        }
    }
    Ok(directory)
}

/// Whether an index may name that file, which must lie in the folder itself.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(_)), None)
    )
}

/// Reads a file's header and checks that the file is as long as the header states.
///
/// The header is located here and not by `SafeTensors::read_metadata`, whose sum of lengths can
/// overflow on a hostile header (safetensors 0.8.0).
fn open_file(
    path: &Path,
    expected: &'static str,
    access: FileAccess,
) -> Result<impl Iterator<Item = (String, Stored)>, ModelError> {
    let file = Arc::new(OpenedFile::open(path, expected, access)?);
    let bytes = file.bytes();
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(file.damaged(
            format!("it has {} bytes", bytes.len()),
            "a safetensors header",
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_BYTES_MAX || length > rest.len() as u64 {
        return Err(file.damaged(
            format!("a header of {length} bytes in {} bytes", bytes.len()),
            "a whole safetensors header",
        ));
    }
    let (header, data) = rest.split_at(length as usize);
    let header: Metadata = serde_json::from_slice(header)
        .map_err(|error| file.damaged(error.to_string(), "a safetensors header"))?;
    if header.data_len() != data.len() {
        return Err(file.damaged(
            format!("{} bytes of tensors", data.len()),
            format!("{}, as its header says", header.data_len()),
        ));
    }
    let data_start = bytes.len() - data.len();
    Ok(header.offset_keys().into_iter().map(move |name| {
        let info = header.info(&name).expect("a key has its tensor");
        let stored = stored(&file, info, data_start);
        (name, stored)
    }))
}

fn stored(file: &Arc<OpenedFile>, info: &TensorInfo, data_start: usize) -> Stored {
    let (start, end) = info.data_offsets;
    Stored {
        file: Arc::clone(file),
        shape: info.shape.clone(),
        format: match info.dtype {
            Dtype::F32 => Ok(Format::F32),
            Dtype::F16 => Ok(Format::F16),
            Dtype::BF16 => Ok(Format::BF16),
            Dtype::U8 => Ok(Format::U8),
            Dtype::U32 => Ok(Format::U32),
            other => Err(format!("{other:?}")),
        },
        // Within the file: the header was checked to be contiguous and to cover the file
        // exactly.
        range: data_start + start..data_start + end,
    }
}
