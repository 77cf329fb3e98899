//! The published crates, as a registry would serve them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{process, workspace};

/// A published crate, unpacked.
pub(super) struct Package {
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

/// Packs the published crates of the workspace, and unpacks them in this folder. An embedder's
/// build shows that they need nothing beside them.
pub(super) fn unpack(target: &Path, to: &Path) -> Result<Vec<Package>> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let published = published()?;
    let mut cargo = workspace::cargo();
    cargo
        .args(["package", "--no-verify", "--allow-dirty", "--offline"])
        .env("CARGO_TARGET_DIR", target);
    for (name, _) in &published {
        cargo.args(["--package", name]);
    }
    process::capture(&mut cargo)?;
    let unpacked = published.into_iter().map(|(name, version)| {
        let stem = format!("{name}-{version}");
        let archive = target.join("package").join(format!("{stem}.crate"));
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(archive).arg("-C").arg(to);
        process::capture(&mut tar)?;
        let folder = to.join(stem);
        Ok(Package { name, folder })
    });
    unpacked.collect()
}

/// Names and versions of the crates that may be published.
fn published() -> Result<Vec<(String, String)>> {
    let mut cargo = workspace::cargo();
    cargo.args(["metadata", "--no-deps", "--offline"]);
    let metadata = process::capture(cargo.args(["--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo metadata lists no packages")?;
    let published: Vec<(String, String)> = packages
        .iter()
        .filter(|package| package["publish"].is_null())
        .filter_map(|package| {
            let text = |field: &str| package[field].as_str().map(str::to_owned);
            Some((text("name")?, text("version")?))
        })
        .collect();
    ensure!(
        published.iter().any(|(name, _)| name == "motet"),
        "the crate motet is not published"
    );
    Ok(published)
}
