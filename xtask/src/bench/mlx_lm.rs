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

/// mlx-lm and all it needs, and the Python that they were installed for.
pub(super) struct MlxLm {
    python: PathBuf,
    /// A folder with all packages. Not a virtual environment: that knows its own path and
    /// could not be put into place when it is complete.
    packages: PathBuf,
}

/// Installs mlx-lm unless the cache has it.
///
/// # Errors
///
/// When there is no Python with pip, or pip cannot get the packages.
pub(super) fn install(cache: &Cache) -> Result<MlxLm> {
    let requirements = workspace::root().join(REQUIREMENTS);
    let pins = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let python = python_with_pip(cache)?;
    let version = process::capture(Command::new(&python).arg("--version"))?;
    let mut key = checksum::Key::default();
    key.add("requirements", &pins).add("python", &version);
    let packages = cache.wheels().join(format!("mlx-lm-{}", key.finish()));

    let _lock = cache.lock()?;
    component::ensure(&packages, |fresh| {
        let task = ui::Task::start("install mlx-lm (about a minute)");
        process::capture(&mut pip_install(&python, &requirements, fresh))?;
        task.done();
        Ok(())
    })?;
    Ok(MlxLm { python, packages })
}

/// The system's Python, or the one that set-up made where that has no pip.
fn python_with_pip(cache: &Cache) -> Result<PathBuf> {
    [
        PathBuf::from("python3"),
        cache.tools().join("python/bin/python3"),
    ]
    .into_iter()
    .find(|python| process::succeeds(Command::new(python).args(["-m", "pip", "--version"])))
    .context("python3 has no pip: install it (Debian, Ubuntu: `apt install python3-pip`)")
}

fn pip_install(python: &Path, requirements: &Path, to: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", "--no-cache-dir", "--no-deps"])
        .args(["--only-binary", ":all:", "--target"])
        .arg(to)
        .arg("--requirement")
        .arg(requirements);
    pip.env_remove("PIP_REQUIRE_VIRTUALENV")
        .env_remove("PIP_USER");
    pip
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

impl MlxLm {
    /// The peer on these weights, with the BLAS that we use.
    pub(super) fn peer(&self, weights: &Path, blas_preload: Option<&Path>) -> Command {
        let mut command = Command::new(&self.python);
        command
            .args(["-I", "-S", "-B"]) // nothing but what was installed for it
            .arg(workspace::root().join(PEER))
            .arg(&self.packages)
            .arg(weights);
        if let Some(library) = blas_preload {
            command.env("LD_PRELOAD", library);
        }
        command
    }
}
