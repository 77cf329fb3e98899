//! A Hugging Face folder: JSON configuration beside safetensors files.

mod config;
mod json;
mod shards;

use std::path::Path;

use super::ModelError;
use super::config::LlamaConfig;
use super::stored::Directory;

/// Reads the folder's configuration and the headers of its weights.
pub(super) fn open(folder: &Path) -> Result<(LlamaConfig, Directory), ModelError> {
    let config = config::read(folder)?;
    let directory = shards::open(folder)?;
    Ok((config, directory))
}
