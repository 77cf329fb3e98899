//! The checkout's own programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::report;
use super::workbench::Unavailable;
use crate::{process, workspace};

/// A package of its own, so that no other package depends on its peers' dependencies.
const CACHE_MANIFEST: &str = "benches/cache/Cargo.toml";

/// How programs are built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build {
    pub(super) with_mlx: bool,
    /// For a smoke run: not in release mode, because the other checks have built most of it.
    pub(super) quick: bool,
}

/// Builds `benches/figures/` and returns the program's path.
pub(super) fn figures(how: Build) -> Result<PathBuf> {
    build(["--bench", "figures"], how)
}

/// Builds `benches/scheduler/` and returns the program's path.
pub(super) fn scheduler(how: Build) -> Result<PathBuf> {
    build(["--bench", "scheduler"], how)
}

/// Builds `benches/pager/` and returns the program's path.
pub(super) fn pager(how: Build) -> Result<PathBuf> {
    build(["--bench", "pager"], how)
}

/// Builds `benches/recovery/` and returns the program's path. It kills device threads, for which
/// the library is built with `--cfg motet_injected`. For a smoke run, the other checks have built
/// that without MLX.
pub(super) fn recovery(how: Build) -> Result<PathBuf> {
    let with_mlx = how.with_mlx && !how.quick;
    let mut cargo = cargo_build(["--bench", "recovery"], Build { with_mlx, ..how });
    workspace::built(
        cargo.env("RUSTC_WORKSPACE_WRAPPER", workspace::INJECTED_COMPILER),
        Some("recovery"),
    )
}

/// Builds `benches/cache/` and returns the program's path.
///
/// # Errors
///
/// [`Unavailable`] when its dependencies are not available.
pub(super) fn cache_core(quick: bool) -> Result<PathBuf> {
    let mut download = workspace::cargo();
    download.args(["fetch", "--manifest-path", CACHE_MANIFEST]);
    process::capture(&mut download)
        .map_err(|error| Unavailable(format!("no kvbm-logical: {error:#}")))?;
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--manifest-path", CACHE_MANIFEST]);
    if !quick {
        cargo.arg("--release");
    }
    if env::var_os("CARGO_TARGET_DIR").is_none() {
        cargo.env("CARGO_TARGET_DIR", workspace::root().join("target"));
    }
    workspace::built(&mut cargo, None)
}

/// Builds a package of `examples/` and returns its program's path.
pub(super) fn package(name: &str, how: Build) -> Result<PathBuf> {
    let selected = if how.quick { "--bin" } else { "--package" };
    build([selected, name], how)
}

/// Runs an example with these arguments and returns what it writes as JSON.
pub(super) fn example(name: &str, how: Build, arguments: &[&str]) -> Result<Value> {
    let program = build(["--example", name], how)?;
    report_of(&program, name, arguments)
}

/// Runs a program with these arguments and returns what it writes as JSON.
pub(super) fn report_of(program: &Path, name: &str, arguments: &[&str]) -> Result<Value> {
    let path = report::folder()?.join(format!("{name}.json"));
    let mut command = Command::new(program);
    command.args(arguments).arg("--json").arg(&path);
    process::capture(&mut command)?;
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
}

fn build(target: [&str; 2], how: Build) -> Result<PathBuf> {
    let [_, name] = target;
    workspace::built(&mut cargo_build(target, how), Some(name))
}

/// A smoke run shares the build of the stages of `cargo xtask test`.
fn cargo_build(target: [&str; 2], how: Build) -> Command {
    let mut cargo = workspace::cargo();
    cargo.arg("build").args(target);
    if how.quick {
        if how.with_mlx {
            cargo.args(workspace::WHOLE);
        } else {
            cargo.args(["--workspace", "--exclude", "motet-mlx"]);
            cargo.args(["--features", workspace::FEATURES_NO_MLX]);
        }
    } else {
        cargo.arg("--release");
        if how.with_mlx {
            cargo.args(["--features", "mlx"]);
        }
    }
    cargo
}
