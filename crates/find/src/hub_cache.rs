//! Hugging Face's cache, in the layout of `huggingface_hub`:
//!
//! ```text
//! models--ORG--NAME/refs/main                     the commit that the branch had
//!                  /snapshots/COMMIT/FILE         a link to the blob
//!                  /blobs/DIGEST                  a file's content
//!                  /blobs/DIGEST.incomplete       the part of it that has arrived
//!                  /.motet/COMMIT.json            the names of all files at that commit
//! .locks/models--ORG--NAME/DIGEST.lock            held while a blob is written
//! ```
//!
//! The names are Motet's own addition. A snapshot holds only files that were downloaded: it
//! does not tell which model a name means, nor which files of the model are missing.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{FindError, listing, select};

pub(crate) const BRANCH: &str = "main";

/// The cache's answer for a name.
#[derive(Debug)]
pub(crate) enum Cached {
    /// The model that the name means, with all of its files.
    Model(PathBuf),
    /// A model that the name may mean. The repository may have another one that comes first, or
    /// more files that are read beside the weights.
    Candidate(Candidate),
    Nothing,
}

/// A model of a snapshot whose repository may have more.
#[derive(Debug)]
#[cfg_attr(not(feature = "hub"), expect(dead_code, reason = "the hub is asked"))]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    pub(crate) commit: String,
}

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

    /// The model in the snapshot of the branch.
    ///
    /// # Errors
    ///
    /// Errors of the file system. A snapshot may lack files, or have another model than the chosen
    /// one: the hub may have it.
    pub(crate) fn find(&self, choice: Option<&str>) -> Result<Cached, FindError> {
        let Some(commit) = self.branch() else {
            return Ok(Cached::Nothing);
        };
        let snapshot = self.folder.join("snapshots").join(&commit);
        let files = listing::files(&snapshot)?;
        let names = self.names(&commit);
        let all = names.as_deref().unwrap_or(&files);
        let path = match select::in_snapshot(&snapshot, &files, all, choice, &self.place) {
            Ok(path) => path,
            Err(error @ FindError::Io { .. }) => return Err(error),
            Err(_) => return Ok(Cached::Nothing),
        };
        // A GGUF file that is named in full is the model, whatever else there is.
        let is_named = choice.is_some_and(|choice| files.iter().any(|file| file == choice));
        Ok(if names.is_some() || is_named {
            Cached::Model(path)
        } else {
            Cached::Candidate(Candidate { path, commit })
        })
    }

    /// The commit that the branch had.
    fn branch(&self) -> Option<String> {
        let commit = fs::read_to_string(self.folder.join("refs").join(BRANCH)).ok()?;
        let commit = commit.trim();
        is_digest(commit).then(|| commit.to_owned())
    }

    /// The names of all files at the commit, if they were kept.
    fn names(&self, commit: &str) -> Option<Vec<String>> {
        let json = fs::read(self.names_path(commit)).ok()?;
        let names: Value = serde_json::from_slice(&json).ok()?;
        let names = names.as_array()?.iter();
        names.map(|name| Some(name.as_str()?.to_owned())).collect()
    }

    fn names_path(&self, commit: &str) -> PathBuf {
        self.folder.join(".motet").join(format!("{commit}.json"))
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

    /// Keeps the names of all files at the commit. Without them the hub is asked again.
    pub(crate) fn keep_names(&self, commit: &str, names: &[String]) -> Result<(), FindError> {
        write_whole(&self.names_path(commit), &Value::from(names).to_string())
    }

    /// Makes this commit the branch's.
    pub(crate) fn set_branch(&self, commit: &str) -> Result<(), FindError> {
        if self.branch().as_deref() == Some(commit) {
            return Ok(()); // the cache may be one that this process only reads
        }
        write_whole(&self.folder.join("refs").join(BRANCH), commit)
    }
}

/// Writes a small file. Other processes see it whole or not at all.
#[cfg(feature = "hub")]
fn write_whole(path: &Path, text: &str) -> Result<(), FindError> {
    create_folder(path.parent().expect("it is in the cache"))?;
    let name = path.file_name().expect("it is a file").to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
    written.map_err(|error| FindError::io("write", path, error))
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
