//! The pooling that a folder of sentence-transformers declares.

use std::path::{Component, Path};

use serde_json::Value;

use super::super::ModelError;
use super::super::fields::Fields;
use super::super::opened::{FileAccess, OpenedFile};
use super::super::python_json;
use super::{CONFIG_BYTES_MAX, JsonObject};
use motet_protocol::{DeclaredPooling, Pooling};

/// Reads `modules.json`, the list of a pipeline's modules, and the configuration of its pooling.
/// Without that list, reads `1_Pooling/config.json`. A pipeline with other modules than a
/// transformer, a pooling and a normalisation is not supported.
pub(crate) fn read(folder: &Path) -> Result<DeclaredPooling, ModelError> {
    let Some(modules) = modules(&folder.join("modules.json"))? else {
        return of_module(&folder.join("1_Pooling"));
    };
    let mut declared = DeclaredPooling::Undeclared;
    for module in &modules {
        let text = |name: &str| module.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = text("type").rsplit('.').next().unwrap_or_default();
        match kind {
            "Transformer" | "Normalize" => {}
            "Pooling" => declared = of_module(&folder.join(inside(text("path"))))?,
            other => return Ok(DeclaredPooling::Unsupported(format!("module `{other}`"))),
        }
    }
    Ok(declared)
}

/// The modules, if there is a list.
fn modules(path: &Path) -> Result<Option<Vec<Value>>, ModelError> {
    let expected = "a list of a pipeline's modules";
    let file = match OpenedFile::open(path, expected, FileAccess::Map) {
        Ok(file) => file,
        Err(ModelError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.bytes().len() > CONFIG_BYTES_MAX {
        return Err(file.damaged(
            format!("it has {} bytes", file.bytes().len()),
            format!("at most {CONFIG_BYTES_MAX} bytes"),
        ));
    }
    let modules = python_json::from_slice(file.bytes());
    modules
        .map(Some)
        .map_err(|error| file.damaged(error.to_string(), expected))
}

/// A path that stays in the folder; empty where it would not.
fn inside(path: &str) -> &Path {
    let path = Path::new(path);
    let mut parts = path.components();
    if parts.all(|part| matches!(part, Component::Normal(_))) {
        path
    } else {
        Path::new("")
    }
}

/// The pooling of this module's configuration. Earlier versions of sentence-transformers write a
/// flag for each mode, later ones the mode's name.
fn of_module(module: &Path) -> Result<DeclaredPooling, ModelError> {
    let path = module.join("config.json");
    let config = match JsonObject::read(&path, "a pooling's config.json", CONFIG_BYTES_MAX) {
        Ok(config) => config,
        Err(ModelError::Missing { .. }) => return Ok(DeclaredPooling::Undeclared),
        Err(error) => return Err(error),
    };
    if let Some(mode) = config.text("pooling_mode")? {
        return Ok(named(mode));
    }
    let mut modes = Vec::new();
    for (name, _) in config.entries() {
        let Some(mode) = name.strip_prefix("pooling_mode_") else {
            continue;
        };
        if config.flag(name)? == Some(true) {
            modes.push(
                mode.strip_suffix("_tokens")
                    .or(mode.strip_suffix("_token"))
                    .unwrap_or(mode),
            );
        }
    }
    Ok(match modes[..] {
        [] => DeclaredPooling::Undeclared,
        [mode] => named(mode),
        _ => {
            modes.sort_unstable();
            DeclaredPooling::Unsupported(format!("modes {}", modes.join(", ")))
        }
    })
}

fn named(mode: &str) -> DeclaredPooling {
    match mode {
        "mean" => DeclaredPooling::Declared(Pooling::Mean),
        "lasttoken" | "last" => DeclaredPooling::Declared(Pooling::Last),
        other => DeclaredPooling::Unsupported(format!("mode `{other}`")),
    }
}
