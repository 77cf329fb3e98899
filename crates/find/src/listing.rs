//! The files of a folder, as names with `/` between their parts.

use std::fs;
use std::path::Path;

use crate::FindError;

/// Models keep their files in their folder, in folders of quantisations and of poolings.
const DEPTH_MAX: usize = 2;
/// Far above any model's; a folder of other things is not listed to its end.
const FILES_MAX: usize = 10_000;

/// The regular files of the folder, sorted; links are followed, and those to nothing left out.
/// An unreadable folder is an error; a missing one has no files.
pub(crate) fn files(folder: &Path) -> Result<Vec<String>, FindError> {
    let mut found = Vec::new();
    list(folder, "", DEPTH_MAX, &mut found)?;
    found.sort();
    Ok(found)
}

fn list(
    folder: &Path,
    prefix: &str,
    depth: usize,
    found: &mut Vec<String>,
) -> Result<(), FindError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(FindError::io("list", folder, error)),
    };
    for entry in entries {
        if found.len() >= FILES_MAX {
            return Ok(());
        }
        let entry = entry.map_err(|error| FindError::io("list", folder, error))?;
        // No model has a file whose name is not UTF-8.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let name = format!("{prefix}{name}");
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_file() => found.push(name),
            Ok(metadata) if metadata.is_dir() && depth > 1 => {
                list(&entry.path(), &format!("{name}/"), depth - 1, found)?;
            }
            _ => {}
        }
    }
    Ok(())
}
