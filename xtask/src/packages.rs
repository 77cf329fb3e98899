//! Python packages, pinned by version and digest, installed into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::{checksum, component, process, ui, workspace};

/// A folder of packages, and the Python that they were installed for. It is not a virtual
/// environment: that contains its own path and could not be renamed into place.
#[derive(Debug)]
pub struct Packages {
    python: PathBuf,
    folder: PathBuf,
}

/// Installs the packages that the file `requirements` of the checkout lists, unless the cache has
/// them.
///
/// # Errors
///
/// When there is no Python with pip, or pip cannot get the packages, or gets files with other
/// digests.
pub fn install(cache: &Cache, name: &str, requirements: &str) -> Result<Packages> {
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
    /// Path of the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Command for a program of the checkout. It has no packages but those that it imports from
    /// [`folder`](Self::folder) itself.
    #[must_use]
    pub fn program(&self, program: &str) -> Command {
        let mut command = Command::new(&self.python);
        command
            .args(["-I", "-S", "-B"])
            .arg(workspace::root().join(program));
        command
    }
}

/// The system's Python, or set-up's own where that has no pip.
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
        // Every package has its digests in the file, and pip rejects files with other digests.
        .args(["--require-hashes", "--only-binary", ":all:", "--target"])
        .arg(to)
        .arg("--requirement")
        .arg(requirements);
    pip.env_remove("PIP_REQUIRE_VIRTUALENV")
        .env_remove("PIP_USER");
    pip
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists that [`install`] reads, with the fewest packages of each.
    const LISTS: [(&str, usize); 7] = [
        (crate::clients::REQUIREMENTS, 21),
        (crate::clients::LM_EVAL_REQUIREMENTS, 21),
        (crate::fleet::REQUIREMENTS, 38),
        (crate::bench::REQUIREMENTS, 21),
        (crate::bench::IK_REQUIREMENTS, 1),
        (crate::bench::OPENVINO_REQUIREMENTS, 5),
        (crate::bench::MISTRALRS_REQUIREMENTS, 1),
    ];

    /// The packages of a list with their numbers of digests; none if a line is neither a package
    /// nor a digest.
    fn packages(list: &str) -> Option<Vec<(&str, usize)>> {
        let mut packages: Vec<(&str, usize)> = Vec::new();
        let lines = list.lines().map(|line| line.trim_end_matches('\\').trim());
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.strip_prefix("--hash=sha256:") {
                Some(digest) => {
                    let is_digest =
                        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
                    packages.last_mut().filter(|_| is_digest)?.1 += 1;
                }
                None => {
                    let (name, version) = line.split_once("==")?;
                    let is_pin = !name.is_empty() && !version.contains(char::is_whitespace);
                    packages.push(is_pin.then_some((name, 0))?);
                }
            }
        }
        Some(packages)
    }

    #[test]
    fn every_package_has_one_version_and_digests() {
        for (list, fewest) in LISTS {
            let text = fs::read_to_string(workspace::root().join(list)).expect(list);
            let packages = packages(&text).expect(list);
            assert!(packages.len() >= fewest, "{list}");
            for (name, digests) in packages {
                assert!(digests > 0, "{list}: {name}");
            }
        }
        assert_eq!(packages("a==1"), Some(vec![("a", 0)]));
        assert_eq!(packages("a>=1"), None);
        assert_eq!(packages("a==1\n--hash=sha256:00"), None);
    }

    #[test]
    fn pip_requires_digests() {
        let pip = pip_install(Path::new("python"), Path::new("list"), Path::new("folder"));
        let words: Vec<_> = pip.get_args().collect();
        for word in ["--require-hashes", "--no-deps", "--only-binary"] {
            assert!(words.contains(&word.as_ref()), "{words:?}");
        }
    }
}
