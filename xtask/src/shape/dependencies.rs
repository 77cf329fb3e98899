//! External crates that each library crate is built with, alone and for its tests.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::source;
use crate::workspace;

pub(super) fn table(root: &Path) -> Result<String> {
    let mut table = String::from("| crate | external crates | with its tests |\n|---|--:|--:|\n");
    for package in packages(root)? {
        let built = external(root, &package, "normal,build")?;
        let tested = external(root, &package, "normal,build,dev")?;
        table += &format!("| {package} | {built} | {tested} |\n");
    }
    Ok(table)
}

/// `motet` and the crates under `crates/`.
fn packages(root: &Path) -> Result<Vec<String>> {
    let mut packages = vec!["motet".to_owned()];
    let folder = root.join("crates");
    if folder.is_dir() {
        let mut manifests = Vec::new();
        source::files(&folder, "toml", &mut manifests)?;
        let names = manifests
            .iter()
            .filter(|path| path.ends_with("Cargo.toml"))
            .filter_map(|path| path.parent()?.file_name()?.to_str())
            .map(|name| format!("motet-{name}"));
        packages.extend(names);
    }
    Ok(packages)
}

/// Counts the crates from outside the workspace that cargo would build.
fn external(root: &Path, package: &str, edges: &str) -> Result<usize> {
    let output = workspace::cargo()
        .current_dir(root)
        .args(["tree", "--locked", "--prefix", "none", "--package", package])
        .args(["--edges", edges])
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cargo tree of {package} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = String::from_utf8_lossy(&output.stdout);
    let crates: BTreeSet<&str> = lines
        .lines()
        .filter(|line| !line.contains("(/") && !line.is_empty())
        .map(|line| line.trim_end_matches(" (*)"))
        .collect();
    Ok(crates.len())
}
