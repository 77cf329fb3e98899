//! Models that ollama has pulled:
//!
//! ```text
//! manifests/registry.ollama.ai/library/NAME/TAG   JSON that lists the model's layers
//! blobs/sha256-DIGEST                             a layer; the weights' is a GGUF file
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::FindError;
use crate::hub_cache::is_digest;

const HOST: &str = "registry.ollama.ai";
const USER: &str = "library";
const LAYER: &str = "application/vnd.ollama.image.";
/// Real ones have about a kilobyte.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// A machine has some dozens.
const MODELS_MAX: usize = 1000;

/// Path of the weights of `name:tag`, in the first folder that exists.
pub(crate) fn find(folders: &[PathBuf], name: &str, tag: &str) -> Result<PathBuf, FindError> {
    let full = match name.split('/').count() {
        1 => format!("{HOST}/{USER}/{name}"),
        2 => format!("{HOST}/{name}"),
        _ => name.to_owned(),
    };
    let store = folders.iter().find(|folder| folder.is_dir());
    let manifest = store.map(|store| store.join("manifests").join(full).join(tag));
    let (Some(store), Some(manifest)) = (store, manifest.filter(|path| path.is_file())) else {
        return Err(not_there(folders, name, tag));
    };
    let layers = layers(&manifest)?;
    if layers.iter().any(|layer| layer.kind == "adapter") {
        let what = "its model has an adapter; expected one without".to_owned();
        return Err(FindError::Damaged {
            path: manifest,
            what,
        });
    }
    let weights = layers.iter().find(|layer| layer.kind == "model");
    let Some(weights) = weights else {
        let what = "it lists no model; expected a layer of GGUF".to_owned();
        return Err(FindError::Damaged {
            path: manifest,
            what,
        });
    };
    let blob = store
        .join("blobs")
        .join(format!("sha256-{}", weights.digest));
    let bytes = fs::metadata(&blob).map(|metadata| metadata.len()).ok();
    if bytes != Some(weights.bytes) {
        return Err(FindError::Incomplete {
            place: format!(
                "ollama ({}, `ollama pull {name}:{tag}` mends it)",
                store.display()
            ),
            file: format!("{} with {} bytes", blob.display(), weights.bytes),
        });
    }
    Ok(blob)
}

struct Layer {
    /// The end of its media type.
    kind: String,
    digest: String,
    bytes: u64,
}

fn layers(manifest: &Path) -> Result<Vec<Layer>, FindError> {
    let damaged = |what: String| FindError::Damaged {
        path: manifest.to_owned(),
        what,
    };
    let bytes = fs::metadata(manifest).map_or(0, |metadata| metadata.len());
    if bytes > MANIFEST_BYTES_MAX {
        return Err(damaged(format!(
            "{bytes} bytes; expected ollama's manifest"
        )));
    }
    let json = fs::read(manifest).map_err(|error| FindError::io("read", manifest, error))?;
    let json: Value = serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))?;
    let layers = json["layers"].as_array().map_or(&[][..], Vec::as_slice);
    let layer = |layer: &Value| {
        let kind = layer["mediaType"].as_str()?.strip_prefix(LAYER)?;
        let digest = layer["digest"].as_str()?.strip_prefix("sha256:")?;
        is_digest(digest).then_some(Layer {
            kind: kind.to_owned(),
            digest: digest.to_owned(),
            bytes: layer["size"].as_u64()?,
        })
    };
    Ok(layers.iter().filter_map(layer).collect())
}

fn not_there(folders: &[PathBuf], name: &str, tag: &str) -> FindError {
    let shown: Vec<String> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let store = folders.iter().find(|folder| folder.is_dir());
    FindError::NotThere {
        program: format!("ollama ({})", shown.join(", ")),
        name: format!("{name}:{tag}"),
        found: store.map(|store| models(store)).unwrap_or_default(),
        hint: format!(". Get it with `ollama pull {name}:{tag}`, or set OLLAMA_MODELS"),
    }
}

/// Names of the models in the store, as a caller would write them.
fn models(store: &Path) -> Vec<String> {
    let mut level = vec![(store.join("manifests"), String::new())];
    for _ in ["host", "user", "name", "tag"] {
        let next = level.iter().flat_map(|(folder, name)| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.filter_map(move |entry| {
                let part = entry.file_name().into_string().ok()?;
                let is_first = name.is_empty();
                let whole = if is_first {
                    part
                } else {
                    format!("{name}/{part}")
                };
                Some((entry.path(), whole))
            })
        });
        level = next.take(MODELS_MAX).collect();
    }
    let mut names: Vec<String> = level.into_iter().map(|(_, name)| written(&name)).collect();
    names.sort();
    names
}

/// `registry.ollama.ai/library/NAME/TAG` as `ollama:NAME:TAG`.
fn written(full: &str) -> String {
    let (name, tag) = full.rsplit_once('/').unwrap_or((full, ""));
    let name = name.strip_prefix(&format!("{HOST}/")).unwrap_or(name);
    let name = name.strip_prefix(&format!("{USER}/")).unwrap_or(name);
    format!("ollama:{name}:{tag}")
}
