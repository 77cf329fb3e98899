//! Python packages with all their versions given, installed into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::{checksum, component, process, ui, workspace};

/// A folder of packages, and the Python that they were installed for. Not a virtual
/// environment: that knows its own path and could not be put into place when it is complete.
pub(crate) struct Packages {
    python: PathBuf,
    folder: PathBuf,
}

/// Installs what the file lists, a path in the checkout, unless the cache has it.
///
/// # Errors
///
/// When there is no Python with pip, or pip cannot get the packages.
pub(crate) fn install(cache: &Cache, name: &str, requirements: &str) -> Result<Packages> {
    let requirements = workspace::root().join(requirements);
    let pins = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let python = python_with_pip(cache)?;
    let version = process::capture(Command::new(&python).arg("--version"))?;
    let mut key = checksum::Key::default();
    key.add("requirements", &pins).add("python", &version);
    let folder = cache.wheels().join(format!("{name}-{}", key.finish()));

    let _lock = cache.lock()?;
    component::ensure(&folder, |fresh| {
        let task = ui::Task::start(format!("install {name} (about a minute)"));
        process::capture(&mut pip_install(&python, &requirements, fresh))?;
        task.done();
        Ok(())
    })?;
    Ok(Packages { python, folder })
}

impl Packages {
    /// Where they are.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A program of the checkout, with no packages but those it imports from
    /// [`folder`](Self::folder) itself.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = Command::new(&self.python);
        command
            .args(["-I", "-S", "-B"])
            .arg(workspace::root().join(program));
        command
    }
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
