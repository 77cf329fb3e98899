//! Models that are split over several files, as llama.cpp's `gguf-split` writes them.
//!
//! Each part is a GGUF file with tensors of its own, and says which part it is. The first one has
//! the metadata. The names of all parts differ in their number only: `NAME-00001-of-00003.gguf`.

use std::path::{Path, PathBuf};

use super::super::ModelError;
use super::super::fields::Fields;
use super::super::opened::FileAccess;
use super::super::stored::Directory;
use super::{GgufMetadata, open_file};

/// Index of the part, from 0.
const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
/// Tensors of all parts.
const TENSORS: &str = "split.tensors.count";
/// Parts have numbers of five digits.
const PARTS_MAX: u64 = 99_999;

/// The number of files, if there are several.
pub(super) fn count(metadata: &GgufMetadata) -> Result<Option<u64>, ModelError> {
    match metadata.integer(COUNT)? {
        Some(count) if count > PARTS_MAX => {
            let expected = format!("at most {PARTS_MAX} parts");
            Err(metadata.wrong(COUNT, format!("found {count}"), expected))
        }
        count => Ok(count.filter(|count| *count > 1)),
    }
}

/// Opens all parts of a model of which one was opened. Returns the first part's metadata, and the
/// tensors of all.
pub(super) fn join(
    (metadata, directory): (GgufMetadata, Directory),
    count: u64,
    access: FileAccess,
) -> Result<(GgufMetadata, Directory), ModelError> {
    let given = metadata.path().to_owned();
    let number = metadata.integer(NUMBER)?;
    let number = metadata.required(NUMBER, number, "the index of this part")?;
    let path_of = |index: u64| path_of(&given, number, index, count);
    let (metadata, mut directory) = if number == 0 {
        (metadata, directory)
    } else {
        open_part(&metadata, path_of(0)?, 0, count, access)?
    };
    for index in 1..count {
        let (part, tensors) = open_part(&metadata, path_of(index)?, index, count, access)?;
        for (name, stored) in tensors {
            if directory.contains_key(&name) {
                let what = format!("tensor `{name}` is in another part, too");
                return Err(damaged(part.path(), what, "every tensor once"));
            }
            directory.insert(name, stored);
        }
    }
    match metadata.integer(TENSORS)? {
        Some(tensors) if tensors != directory.len() as u64 => {
            let found = format!("found {tensors}, and {} in all parts", directory.len());
            Err(metadata.wrong(TENSORS, found, "the number of tensors of all parts"))
        }
        _ => Ok((metadata, directory)),
    }
}

/// The path of another part than the given one, which has this number.
fn path_of(given: &Path, number: u64, index: u64, count: u64) -> Result<PathBuf, ModelError> {
    let end = |index: u64| format!("-{:05}-of-{count:05}.gguf", index + 1);
    let name = given.file_name().and_then(|name| name.to_str());
    match name.and_then(|name| name.strip_suffix(&end(number))) {
        Some(stem) => Ok(given.with_file_name(format!("{stem}{}", end(index)))),
        None => Err(ModelError::Field {
            path: given.to_owned(),
            field: NUMBER.to_owned(),
            what: format!("part {} of {count}", number + 1),
            expected: format!("a file whose name ends in {}", end(number)),
        }),
    }
}

/// Opens a part, and checks that it is what its name says.
fn open_part(
    given: &GgufMetadata,
    path: PathBuf,
    index: u64,
    count: u64,
    access: FileAccess,
) -> Result<(GgufMetadata, Directory), ModelError> {
    let opened = open_file(
        &path,
        "a part of the model that another part belongs to",
        access,
    )?;
    for (key, expected) in [(NUMBER, index), (COUNT, count)] {
        let found = opened.0.integer(key)?;
        if found != Some(expected) {
            let found = found.map_or("it is missing".to_owned(), |found| format!("found {found}"));
            let expected = format!("{expected}, as {} requires", given.path().display());
            return Err(opened.0.wrong(key, found, expected));
        }
    }
    Ok(opened)
}

fn damaged(path: &Path, what: String, expected: &str) -> ModelError {
    ModelError::Damaged {
        path: path.to_owned(),
        what,
        expected: expected.to_owned(),
    }
}
