//! Models that LM Studio has downloaded: folders `PUBLISHER/NAME` of GGUF files, or of MLX's
//! safetensors.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{FindError, listing, select};

/// A machine has some dozens.
const MODELS_MAX: usize = 1000;

/// Path of the model in the first of the folders that has it.
pub(crate) fn find(
    folders: &[PathBuf],
    name: &str,
    choice: Option<&str>,
) -> Result<PathBuf, FindError> {
    let models = folders.iter().map(|folder| folder.join(name));
    let Some(folder) = models.into_iter().find(|folder| folder.is_dir()) else {
        let shown: Vec<String> = folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        return Err(FindError::NotThere {
            program: format!("LM Studio ({})", shown.join(", ")),
            name: name.to_owned(),
            found: folders.iter().flat_map(|folder| names(folder)).collect(),
            hint: String::new(),
        });
    };
    let files = listing::files(&folder)?;
    select::in_folder(&folder, &files, choice, &format!("lmstudio:{name}"))
}

/// Names of the models in the folder, as a caller would write them.
fn names(folder: &Path) -> Vec<String> {
    let folders = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let entries = entries.filter(|entry| entry.path().is_dir());
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.collect::<Vec<_>>()
    };
    let publishers = folders(folder).into_iter();
    let names = publishers.flat_map(|publisher| {
        let models = folders(&folder.join(&publisher)).into_iter();
        models.map(move |model| format!("lmstudio:{publisher}/{model}"))
    });
    let mut names: Vec<String> = names.take(MODELS_MAX).collect();
    names.sort();
    names
}
