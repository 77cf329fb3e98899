//! rustdoc's JSON of the library's crates.
//!
//! Each file describes one crate, and names items of others by their paths. `public-api` reads one
//! file, so that a re-export of another crate's item would be a name without content.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{process, ui, workspace};

/// The crates whose items `motet` exports.
pub(super) const CRATES: [&str; 13] = [
    "motet",
    "motet-core",
    "motet-device",
    "motet-find",
    "motet-formats",
    "motet-kernels",
    "motet-mlx",
    "motet-model",
    "motet-protocol",
    "motet-storage",
    "motet-sync",
    "motet-text",
    "motet-weights",
];
const FEATURES: &str = "motet/mlx,motet/tower,motet/hub";
/// The form of the JSON that is read here. Another compiler may write another one.
const FORMAT_VERSION: u64 = 57;

pub(super) struct Documented {
    crates: HashMap<String, Crate>,
}

struct Crate {
    json: Value,
    /// The crate's own items by kind and path.
    by_path: HashMap<String, String>,
}

/// An item of a crate.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) of_crate: &'a str,
    pub(super) value: &'a Value,
}

impl<'a> Item<'a> {
    /// `struct`, `use`, `function` and so on, and what belongs to it.
    pub(super) fn inner(self) -> (&'a str, &'a Value) {
        let inner = self.value["inner"].as_object();
        let (kind, value) = inner
            .and_then(|inner| inner.iter().next())
            .expect("an item has a kind");
        (kind, value)
    }

    pub(super) fn name(self) -> Option<&'a str> {
        self.value["name"].as_str()
    }

    pub(super) fn is_public(self) -> bool {
        self.value["visibility"] == "public"
    }
}

impl Documented {
    /// `None` if the compiler describes crates in another version of the format, which is unstable.
    pub(super) fn build() -> Result<Option<Self>> {
        let mut cargo = workspace::cargo();
        cargo
            .env(
                "RUSTDOC",
                workspace::root().join("xtask/compilers/rustdoc-json"),
            )
            .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json")
            .args(["doc", "--no-deps", "--features", FEATURES]);
        for name in CRATES {
            cargo.args(["--package", name]);
        }
        process::run(&mut cargo)?;

        let mut cargo = workspace::cargo();
        let metadata =
            process::capture(cargo.args(["metadata", "--no-deps", "--format-version=1"]))?;
        let metadata: Value = serde_json::from_str(&metadata).context("cargo's metadata")?;
        let target = metadata["target_directory"]
            .as_str()
            .context("cargo names no target")?;
        let mut crates = HashMap::new();
        for name in CRATES.map(|name| name.replace('-', "_")) {
            let path = Path::new(target).join(format!("doc/{name}.json"));
            let file =
                File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let json: Value = serde_json::from_reader(BufReader::new(file))?;
            if json["format_version"] != FORMAT_VERSION {
                ui::note(&format!(
                    "this compiler describes crates in version {}, and {FORMAT_VERSION} is known",
                    json["format_version"]
                ));
                return Ok(None);
            }
            crates.insert(name, Crate::new(json));
        }
        Ok(Some(Self { crates }))
    }

    #[cfg(test)]
    pub(super) fn of(crates: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let crates = crates.into_iter();
        let crates = crates.map(|(name, json)| (name.to_owned(), Crate::new(json)));
        Self {
            crates: crates.collect(),
        }
    }

    pub(super) fn root(&self) -> Result<Item<'_>> {
        let root = &self.crates["motet"].json["root"];
        self.item("motet", root)
            .context("rustdoc describes no `motet`")
    }

    /// The item with this id in a crate's JSON, which may be another crate's.
    pub(super) fn item<'a>(&'a self, of_crate: &'a str, id: &Value) -> Option<Item<'a>> {
        let json = &self.crates[of_crate].json;
        let id = id.to_string();
        if let Some(value) = json["index"].get(&id) {
            return Some(Item { of_crate, value });
        }
        let summary = &json["paths"][&id];
        let (of_crate, other) = self.crates.get_key_value(summary["path"][0].as_str()?)?;
        let id = other.by_path.get(&key(summary))?;
        let value = other.json["index"].get(id)?;
        Some(Item { of_crate, value })
    }

    /// The path under which a crate of ours defines the item with this id.
    pub(super) fn defined(&self, of_crate: &str, id: &Value) -> Option<String> {
        let summary = &self.crates[of_crate].json["paths"][id.to_string()];
        let is_ours = summary["path"][0].as_str()?.starts_with("motet");
        is_ours.then(|| path(summary))
    }
}

impl Crate {
    fn new(json: Value) -> Self {
        let paths = json["paths"].as_object().into_iter().flatten();
        let own = paths.filter(|(_, summary)| summary["crate_id"] == 0);
        let by_path = own
            .map(|(id, summary)| (key(summary), id.clone()))
            .collect();
        Self { json, by_path }
    }
}

fn key(summary: &Value) -> String {
    format!("{} {}", summary["kind"], path(summary))
}

fn path(summary: &Value) -> String {
    let parts = summary["path"].as_array().into_iter().flatten();
    parts
        .filter_map(Value::as_str)
        .collect::<Vec<_>>()
        .join("::")
}
