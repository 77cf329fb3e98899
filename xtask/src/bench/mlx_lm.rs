//! mlx-lm, installed into the cache, with the weights that we run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::{checksum, component, process, ui, workspace};

/// Every package and its version.
const REQUIREMENTS: &str = "xtask/bench/requirements.txt";
/// The program that measures mlx-lm.
const PEER: &str = "xtask/bench/mlx_lm_peer.py";
/// Part of the exported weights' name: raise it when `benches/figures/export.rs` changes.
const EXPORT_VERSION: &str = "1";

/// The Python of a virtual environment that has mlx-lm and all it needs.
///
/// # Errors
///
/// When there is no Python with `venv`, or pip cannot get the packages.
pub(super) fn python(cache: &Cache) -> Result<PathBuf> {
    let requirements = workspace::root().join(REQUIREMENTS);
    let pins = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let version = process::capture(Command::new("python3").arg("--version"))?;
    let mut key = checksum::Key::default();
    key.add("requirements", &pins).add("python", &version);
    let dir = cache.tools().join(format!("mlx-lm-{}", key.finish()));

    let _lock = cache.lock()?;
    component::ensure(&dir, |fresh| {
        let task = ui::Task::start("install mlx-lm (about a minute)");
        process::capture(Command::new("python3").args(["-m", "venv"]).arg(fresh))?;
        // Run from where it will not stay: its scripts name this folder and will not work,
        // but the interpreter finds its packages beside itself.
        let mut pip = Command::new(interpreter(fresh));
        pip.args(["-I", "-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--no-cache-dir", "--no-deps"])
            .args(["--only-binary", ":all:", "--requirement"])
            .arg(&requirements)
            .env_remove("PIP_USER")
            .env_remove("PIP_TARGET");
        process::capture(&mut pip)?;
        task.done();
        Ok(())
    })?;
    Ok(interpreter(&dir))
}

/// A folder with the model as f32 safetensors, written by `exporter` unless it is there.
pub(super) fn weights(cache: &Cache, exporter: &Path, model: &Path) -> Result<PathBuf> {
    let mut key = checksum::Key::default();
    key.add("model", checksum::of_file(model)?)
        .add("export", EXPORT_VERSION);
    let name = model.file_stem().unwrap_or_default().to_string_lossy();
    let dir = cache.models().join(format!("{name}-f32-{}", key.finish()));
    let _lock = cache.lock()?;
    component::ensure(&dir, |fresh| {
        let task = ui::Task::start("write the weights for mlx-lm");
        process::capture(
            Command::new(exporter)
                .arg("--export-hf")
                .arg(model)
                .arg(fresh),
        )?;
        task.done();
        Ok(())
    })?;
    Ok(dir)
}

/// The peer on these weights, with the BLAS that we use.
pub(super) fn command(python: &Path, weights: &Path, blas_preload: Option<&Path>) -> Command {
    let mut command = Command::new(python);
    command
        .args(["-I", "-B"])
        .arg(workspace::root().join(PEER))
        .arg(weights);
    if let Some(library) = blas_preload {
        command.env("LD_PRELOAD", library);
    }
    command
}

fn interpreter(environment: &Path) -> PathBuf {
    environment.join("bin/python3")
}
