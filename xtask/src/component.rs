//! A folder that is complete and undamaged, or is built again.
//!
//! Each folder has a manifest with the SHA-256 of every file in it. It is built under another
//! name, and renamed into place once its manifest is written. An interrupted build leaves nothing
//! that looks finished.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cache::{partial, remove};
use crate::{checksum, ui};

const MANIFEST: &str = "MANIFEST.sha256";

/// Builds `dir` with `build` unless it is there and undamaged.
///
/// `build` gets an empty folder to fill; it must not write that folder's path into the files. The
/// caller holds the cache's lock.
///
/// # Errors
///
/// When `build` fails, or the folder cannot be written.
pub fn ensure(dir: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if dir.exists() {
        match verify(dir) {
            Ok(()) => return Ok(()),
            Err(damage) => ui::note(&format!("{damage:#}; building it again")),
        }
    }
    let fresh = partial(dir);
    remove(&fresh)?;
    fs::create_dir_all(&fresh).with_context(|| format!("cannot create {}", fresh.display()))?;
    build(&fresh)?;
    fs::write(fresh.join(MANIFEST), manifest_of(&fresh)?)
        .with_context(|| format!("cannot write the manifest of {}", dir.display()))?;
    remove(dir)?;
    fs::rename(&fresh, dir).with_context(|| format!("cannot put {} into place", dir.display()))
}

/// Fails unless every file in the manifest is there with its digest.
fn verify(dir: &Path) -> Result<()> {
    let manifest = fs::read_to_string(dir.join(MANIFEST))
        .with_context(|| format!("{} has no readable manifest", dir.display()))?;
    let Some(files) = parse(&manifest) else {
        bail!("the manifest of {} is damaged", dir.display());
    };
    for (digest, name) in files {
        checksum::check_file(&dir.join(name), digest)?;
    }
    Ok(())
}

/// One line for each file, then one with the digest of those lines.
fn manifest_of(dir: &Path) -> Result<String> {
    let mut lines = String::new();
    for path in checksum::files_below(dir)? {
        let name = path.strip_prefix(dir).unwrap_or(&path);
        let name = name
            .to_str()
            .with_context(|| format!("{} is not UTF-8", path.display()))?;
        writeln!(lines, "{}  {name}", checksum::sha256_of_file(&path)?)?;
    }
    let end = checksum::sha256_of_text(&lines);
    writeln!(lines, "{end}  -")?;
    Ok(lines)
}

/// The files and their digests, or `None` when the manifest itself is damaged.
fn parse(manifest: &str) -> Option<Vec<(&str, &str)>> {
    let (lines, end) = manifest.strip_suffix("  -\n")?.rsplit_once('\n')?;
    if checksum::sha256_of_text(&format!("{lines}\n")) != end {
        return None;
    }
    lines.lines().map(|line| line.split_once("  ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::path::PathBuf;

    /// A folder of its own for each test, in cargo's temporary folder or the system's.
    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        remove(&dir).unwrap();
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn build_counting(dir: &Path, builds: &Cell<u32>) -> Result<()> {
        ensure(dir, |fresh| {
            builds.set(builds.get() + 1);
            fs::create_dir(fresh.join("sub"))?;
            fs::write(fresh.join("a"), "alpha")?;
            fs::write(fresh.join("sub/b"), "beta")?;
            Ok(())
        })
    }

    #[test]
    fn only_what_is_missing_or_damaged_is_built() {
        let root = scratch("component");
        let dir = root.join("thing");
        let builds = Cell::new(0);
        build_counting(&dir, &builds).unwrap();
        build_counting(&dir, &builds).unwrap();
        assert_eq!(builds.get(), 1, "an undamaged folder is kept");

        type Harm = fn(&Path);
        let harms: [(&str, Harm); 5] = [
            ("a flipped byte", |dir| {
                fs::write(dir.join("a"), "alphb").unwrap()
            }),
            ("a truncated file", |dir| {
                fs::write(dir.join("sub/b"), "").unwrap()
            }),
            ("a missing file", |dir| {
                fs::remove_file(dir.join("sub/b")).unwrap()
            }),
            ("a missing manifest", |dir| {
                fs::remove_file(dir.join(MANIFEST)).unwrap()
            }),
            ("a shortened manifest", |dir| {
                let text = fs::read_to_string(dir.join(MANIFEST)).unwrap();
                let rest = text.split_once('\n').unwrap().1;
                fs::write(dir.join(MANIFEST), rest).unwrap();
            }),
        ];
        for (name, harm) in harms {
            let before = builds.get();
            harm(&dir);
            build_counting(&dir, &builds).unwrap();
            assert_eq!(builds.get(), before + 1, "{name}");
            verify(&dir).unwrap();
        }
        remove(&root).unwrap();
    }

    #[test]
    fn a_build_that_fails_or_was_cut_short_leaves_nothing_in_place() {
        let root = scratch("failing");
        let dir = root.join("thing");
        let failed = ensure(&dir, |fresh| {
            fs::write(fresh.join("half"), "written")?;
            bail!("the disk caught fire")
        });
        assert!(failed.is_err());
        assert!(!dir.exists());
        build_counting(&dir, &Cell::new(0)).unwrap();
        assert!(!dir.join("half").exists(), "leftovers are removed");
        remove(&root).unwrap();
    }
}
