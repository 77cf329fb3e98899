//! SHA-256 of files and of lists of inputs.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// Reading in pieces of this size keeps memory flat; larger ones were no faster.
const CHUNK_BYTES: usize = 256 * 1024;

/// The file's SHA-256 as lower-case hex.
///
/// # Errors
///
/// When the file cannot be read.
pub fn sha256_of_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = file
            .read(&mut chunk)
            .with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&chunk[..read]);
    }
}

/// The text's SHA-256 as lower-case hex.
pub(crate) fn sha256_of_text(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// Fails unless the file is there and has this SHA-256.
pub(crate) fn check_file(path: &Path, expected: &str) -> Result<()> {
    let found = sha256_of_file(path)?;
    if found != expected {
        bail!(
            "{} is damaged: SHA-256 is {found}, expected {expected}",
            path.display()
        );
    }
    Ok(())
}

/// Digest that names a set of inputs. Everything that a build depends on must be added.
#[derive(Debug, Default)]
pub struct Key(Sha256);

impl Key {
    /// Adds a named input. Lengths are hashed too, so that different lists of inputs differ.
    pub fn add(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        for part in [name.as_bytes(), value.as_ref()] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
        self
    }

    /// Adds every file below `dir` with its relative path, in a fixed order.
    pub(crate) fn add_dir(&mut self, dir: &Path) -> Result<&mut Self> {
        for path in files_below(dir)? {
            let content =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let name = path
                .strip_prefix(dir)
                .unwrap_or(&path)
                .to_string_lossy()
                .into_owned();
            self.add(&name, content);
        }
        Ok(self)
    }

    /// Short enough for a folder's name, long enough to be unique.
    #[must_use]
    pub fn finish(&self) -> String {
        hex(&self.0.clone().finalize())[..12].to_owned()
    }
}

/// All regular files below `dir`, sorted.
pub(crate) fn files_below(dir: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of FIPS 180-2.
    #[test]
    fn known_digests() {
        for (text, digest) in [
            (
                "",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                "abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
        ] {
            assert_eq!(sha256_of_text(text), digest);
        }
    }

    #[test]
    fn key_depends_on_names_values_and_their_boundaries() {
        let key = |pairs: &[(&str, &str)]| {
            let mut key = Key::default();
            for (name, value) in pairs {
                key.add(name, value);
            }
            key.finish()
        };
        let base = key(&[("a", "bc")]);
        assert_eq!(base, key(&[("a", "bc")]));
        for other in [
            &[("ab", "c")][..],
            &[("a", "bd")],
            &[("a", "b"), ("", "c")],
            &[],
        ] {
            assert_ne!(base, key(other), "{other:?}");
        }
    }
}
