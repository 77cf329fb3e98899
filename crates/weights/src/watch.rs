//! Whether a model's files are as they were when they were opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::ModelError;
use super::locate::Tensors;
use super::opened::{FileChange, OpenedFile};

/// Watches the files of one opened model. Clones share what was found. It keeps the files open, and
/// mapped if they are.
///
/// A change is found by a file's length and the time of its last change. That costs two system
/// calls for each file, which may wait where a file system does.
#[derive(Clone)]
pub struct FileWatch(Arc<Watched>);

struct Watched {
    files: Vec<Arc<OpenedFile>>,
    /// The first file that was found to have changed.
    changed: OnceLock<PathBuf>,
    /// The first file whose bytes were found to be others than those that were opened.
    overwritten: OnceLock<PathBuf>,
    /// The first file whose path was found to lead elsewhere.
    replaced: OnceLock<PathBuf>,
}

impl FileWatch {
    /// The files that have these tensors.
    pub(super) fn new(tensors: &Tensors) -> Self {
        let mut files: Vec<Arc<OpenedFile>> = Vec::new();
        for stored in tensors.values().flat_map(|located| located.all_stored()) {
            if !files.iter().any(|file| Arc::ptr_eq(file, &stored.file)) {
                files.push(Arc::clone(&stored.file));
            }
        }
        Self(Arc::new(Watched {
            files,
            changed: OnceLock::new(),
            overwritten: OnceLock::new(),
            replaced: OnceLock::new(),
        }))
    }

    /// Looks at all files. A file that has changed once is not trusted again. A file that is only
    /// replaced has not changed, and [`replaced`](Self::replaced) names it.
    ///
    /// # Errors
    ///
    /// [`ModelError::FileChanged`] naming a mapped file that was written to since it was opened,
    /// even if its bytes are the same.
    pub fn check(&self) -> Result<(), ModelError> {
        for file in &self.0.files {
            let known = match file.change() {
                None => continue,
                Some(FileChange::Replaced) => &self.0.replaced,
                Some(FileChange::Written) => &self.0.changed,
                Some(FileChange::Overwritten) => {
                    self.0.overwritten.get_or_init(|| file.path().to_owned());
                    &self.0.changed
                }
            };
            known.get_or_init(|| file.path().to_owned());
        }
        self.check_known()
    }

    /// The first file that a [check](Self::check) has found to have changed, or that was shortened
    /// where a step needed it. Makes no system call.
    #[must_use]
    pub fn changed(&self) -> Option<&Path> {
        let changed = self.0.changed.get().map(PathBuf::as_path);
        changed.or_else(|| self.overwritten())
    }

    /// As [`changed`](Self::changed), but only a file whose bytes are known to be others than those
    /// that were opened: it has another length, or a read found bytes gone.
    #[must_use]
    pub fn overwritten(&self) -> Option<&Path> {
        if self.0.overwritten.get().is_none()
            && let Some(file) = self.0.files.iter().find(|file| file.is_torn())
        {
            self.0.overwritten.get_or_init(|| file.path().to_owned());
        }
        self.0.overwritten.get().map(PathBuf::as_path)
    }

    /// Fails if [`changed`](Self::changed) names a file.
    ///
    /// # Errors
    ///
    /// [`ModelError::FileChanged`].
    pub fn check_known(&self) -> Result<(), ModelError> {
        fail_for(self.changed())
    }

    /// Fails if [`overwritten`](Self::overwritten) names a file.
    ///
    /// # Errors
    ///
    /// [`ModelError::FileChanged`].
    pub fn check_not_overwritten(&self) -> Result<(), ModelError> {
        fail_for(self.overwritten())
    }

    /// The first file whose path a [check](Self::check) has found to lead to another one, or to
    /// none. The model goes on with the one that was opened. Makes no system call.
    #[must_use]
    pub fn replaced(&self) -> Option<&Path> {
        self.0.replaced.get().map(PathBuf::as_path)
    }
}

fn fail_for(file: Option<&Path>) -> Result<(), ModelError> {
    file.map_or(Ok(()), |path| {
        Err(ModelError::FileChanged {
            path: path.to_owned(),
        })
    })
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWatch")
            .field("files", &self.0.files.len())
            .field("changed", &self.0.changed)
            .finish_non_exhaustive()
    }
}
