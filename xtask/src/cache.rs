//! The per-user folder of everything that set-up prepares, and its lock.
//!
//! ```text
//! <cache>/lock                              held by the set-up that is writing
//!        /downloads/NAME-VERSION.whl        as fetched; kept, so that repairs need no network
//!        /wheels/NAME-VERSION-KEY/          unpacked
//!        /build/mlx-c-VERSION-KEY/          mlx-c's objects and bindings.rs
//!        /build/mlxc-KEY/                   libmlxc.so, libmotet_blas.so
//!        /models/NAME.gguf
//!        /models/NAME.license.html         where a model's terms are no common license
//!        /tools/python/                     a pip of our own, where the system has none
//! ```
//! A KEY is a digest of the inputs of the folder's content. Checkouts of different ages share the
//! folders with equal inputs and leave the others alone.

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::ui;

/// Suffix of the names of unfinished files and folders.
const PARTIAL: &str = ".partial";

/// Path of the cache.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// The right to write into the cache; given up when dropped, or when the process ends.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held for its drop")] File);

impl Cache {
    /// Finds the folder and creates it.
    ///
    /// # Errors
    ///
    /// When no place for it is known, it cannot be created, or its path holds a
    /// character that the dynamic loader or the linker would take for a separator.
    pub fn open() -> Result<Self> {
        let root = locate(
            |name| env::var_os(name).map(PathBuf::from),
            cfg!(target_os = "macos"),
        )
        .context("no place for the cache: set MOTET_CACHE or HOME")?;
        let root = std::path::absolute(&root)
            .with_context(|| format!("{} is not a usable path", root.display()))?;
        check_path(&root)?;
        fs::create_dir_all(&root)
            .with_context(|| format!("cannot create the cache folder {}", root.display()))?;
        Ok(Self { root })
    }

    /// A cache in that folder, which exists.
    #[cfg(test)]
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn downloads(&self) -> PathBuf {
        self.root.join("downloads")
    }

    pub(crate) fn wheels(&self) -> PathBuf {
        self.root.join("wheels")
    }

    pub(crate) fn build(&self) -> PathBuf {
        self.root.join("build")
    }

    /// The folder of models.
    #[must_use]
    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join("tools")
    }

    /// Waits until no other set-up writes into the cache.
    ///
    /// # Errors
    ///
    /// When the cache cannot be written.
    pub fn lock(&self) -> Result<Lock> {
        let path = self.root.join("lock");
        let file = File::create(&path)
            .with_context(|| format!("cannot write to the cache folder {}", self.root.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                ui::note("another `cargo xtask` is setting up; waiting for it");
                file.lock()
                    .with_context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        self.sweep();
        Ok(Lock(file))
    }

    /// Removes the leftovers of interrupted set-ups. The caller holds the lock, so no other
    /// set-up runs.
    fn sweep(&self) {
        for folder in [self.downloads(), self.wheels(), self.build(), self.models()] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().ends_with(PARTIAL) {
                    let _ = remove(&entry.path()); // it disturbs nothing; the next set-up tries again
                }
            }
        }
    }
}

/// Writes a file so that readers see the old content or the new, never a part.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write_atomically(path: &Path, content: &str) -> Result<()> {
    let partial = partial(path);
    fs::write(&partial, content)
        .and_then(|()| fs::rename(&partial, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The name under which `path` is written before it is renamed into place.
///
/// The name is unique to this process. A compiler that outlives a killed set-up must not write
/// into the next set-up's folder.
pub(crate) fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}{PARTIAL}", std::process::id()));
    path.with_file_name(name)
}

/// Removes a file or a folder, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    result.with_context(|| format!("cannot remove {}", path.display()))
}

fn locate(variable: impl Fn(&str) -> Option<PathBuf>, macos: bool) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(cache) = set("MOTET_CACHE") {
        return Some(cache);
    }
    if macos {
        return set("HOME").map(|home| home.join("Library/Caches/motet"));
    }
    set("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute()) // as the XDG specification asks
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .map(|caches| caches.join("motet"))
}

fn check_path(root: &Path) -> Result<()> {
    let Some(text) = root.to_str() else {
        bail!(
            "the cache folder {} is not UTF-8: set MOTET_CACHE to another",
            root.display()
        );
    };
    if let Some(bad) = text
        .chars()
        .find(|c| matches!(c, ':' | '$' | '"' | '\\' | '\n'))
    {
        bail!("the cache folder {text} holds {bad:?}: set MOTET_CACHE to another");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_the_system_keeps_caches() {
        let check = |macos: bool, variables: &[(&str, &str)], expected: Option<&str>| {
            let lookup = |name: &str| {
                variables
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| value.into())
            };
            assert_eq!(
                locate(lookup, macos),
                expected.map(PathBuf::from),
                "{variables:?}"
            );
        };
        let home = ("HOME", "/h");
        check(false, &[home], Some("/h/.cache/motet"));
        check(true, &[home], Some("/h/Library/Caches/motet"));
        check(false, &[home, ("XDG_CACHE_HOME", "/x")], Some("/x/motet"));
        check(
            false,
            &[home, ("XDG_CACHE_HOME", "not/absolute")],
            Some("/h/.cache/motet"),
        );
        check(
            false,
            &[home, ("XDG_CACHE_HOME", "/x"), ("MOTET_CACHE", "/m")],
            Some("/m"),
        );
        check(false, &[home, ("MOTET_CACHE", "")], Some("/h/.cache/motet"));
        check(false, &[], None);
    }

    #[test]
    fn paths_with_loader_separators_are_rejected() {
        for (path, fine) in [
            ("/a b/c", true),
            ("/a:b", false),
            ("/a$b", false),
            ("/a\"b", false),
        ] {
            assert_eq!(check_path(Path::new(path)).is_ok(), fine, "{path}");
        }
    }
}
