//! Hugging Face's cache, in the layout of `huggingface_hub`:
//!
//! ```text
//! models--ORG--NAME/refs/main                     the commit that the branch had
//!                  /snapshots/COMMIT/FILE         a link to the blob
//!                  /blobs/DIGEST                  a file's content
//!                  /blobs/DIGEST.incomplete       the part of it that has arrived
//! .locks/models--ORG--NAME/DIGEST.lock            held while a blob is written
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use crate::{FindError, listing, select};

const BRANCH: &str = "main";

/// A repository's place in the cache, which may not exist.
#[derive(Debug)]
pub(crate) struct Repository {
    /// As callers write it: `hf:ORG/NAME`.
    place: String,
    folder: PathBuf,
    #[cfg_attr(not(feature = "hub"), expect(dead_code, reason = "for downloads"))]
    locks: PathBuf,
}

impl Repository {
    pub(crate) fn new(cache: &Path, repository: &str) -> Self {
        let name = format!("models--{}", repository.replace('/', "--"));
        Self {
            place: format!("hf:{repository}"),
            folder: cache.join(&name),
            locks: cache.join(".locks").join(name),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The model in the snapshot of the branch, if all of it is there.
    ///
    /// # Errors
    ///
    /// Errors of the file system. A snapshot may lack files, or have another model than the chosen
    /// one: the hub may have it.
    pub(crate) fn find(&self, choice: Option<&str>) -> Result<Option<PathBuf>, FindError> {
        let Ok(commit) = fs::read_to_string(self.folder.join("refs").join(BRANCH)) else {
            return Ok(None);
        };
        let commit = commit.trim();
        if !is_digest(commit) {
            return Ok(None);
        }
        let snapshot = self.folder.join("snapshots").join(commit);
        let files = listing::files(&snapshot)?;
        match select::in_folder(&snapshot, &files, choice, &self.place) {
            Ok(path) => Ok(Some(path)),
            Err(error @ FindError::Io { .. }) => Err(error),
            Err(_) => Ok(None),
        }
    }
}

/// Whether it is a number in hexadecimal digits, as commits and digests are. It becomes the name
/// of a file.
pub(crate) fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (40..=64).contains(&text.len()) && text.bytes().all(is_hex)
}

#[cfg(feature = "hub")]
impl Repository {
    /// As callers write it.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        self.folder.join("blobs").join(digest)
    }

    pub(crate) fn lock(&self, digest: &str) -> PathBuf {
        self.locks.join(format!("{digest}.lock"))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Puts a blob under its name into the snapshot.
    pub(crate) fn link(&self, commit: &str, file: &str, digest: &str) -> Result<(), FindError> {
        let path = self.snapshot(commit).join(file);
        if path.exists() {
            return Ok(());
        }
        let folder = path.parent().expect("it is in the snapshot");
        create_folder(folder)?;
        remove(&path)?; // a link to nothing
        let result = link_to_blob(&self.blob(digest), digest, file, &path);
        match result {
            // Another process was as fast.
            Err(_) if path.exists() => Ok(()),
            result => result.map_err(|error| FindError::io("write", &path, error)),
        }
    }

    /// Makes this commit the branch's.
    pub(crate) fn set_branch(&self, commit: &str) -> Result<(), FindError> {
        let refs = self.folder.join("refs");
        create_folder(&refs)?;
        let partial = refs.join(format!(".{BRANCH}.{}", std::process::id()));
        let path = refs.join(BRANCH);
        let written = fs::write(&partial, commit).and_then(|()| fs::rename(&partial, &path));
        written.map_err(|error| FindError::io("write", &path, error))
    }
}

#[cfg(all(feature = "hub", unix))]
fn link_to_blob(_: &Path, digest: &str, file: &str, path: &Path) -> std::io::Result<()> {
    // Relative, so that the cache can be moved.
    let up = "../".repeat(file.split('/').count() + 1);
    std::os::unix::fs::symlink(format!("{up}blobs/{digest}"), path)
}

/// Links need a privilege elsewhere: the blob itself takes the place, as in `huggingface_hub`.
#[cfg(all(feature = "hub", not(unix)))]
fn link_to_blob(blob: &Path, _: &str, _: &str, path: &Path) -> std::io::Result<()> {
    fs::rename(blob, path)
}

#[cfg(feature = "hub")]
pub(crate) fn create_folder(path: &Path) -> Result<(), FindError> {
    fs::create_dir_all(path).map_err(|error| FindError::io("create", path, error))
}

/// Removes a file, if it is there.
#[cfg(feature = "hub")]
pub(crate) fn remove(path: &Path) -> Result<(), FindError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FindError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}
