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
        let changed = OnceLock::new();
        Self(Arc::new(Watched { files, changed }))
    }

    /// Looks at all files. A file that has changed once is not trusted again.
    ///
    /// # Errors
    ///
    /// [`ModelError::FileChanged`] naming a mapped file whose bytes are not those that were opened.
    pub fn check(&self) -> Result<(), ModelError> {
        let overwritten = |file: &&Arc<OpenedFile>| file.change() == Some(FileChange::Overwritten);
        if self.0.changed.get().is_none()
            && let Some(file) = self.0.files.iter().find(overwritten)
        {
            self.0.changed.get_or_init(|| file.path().to_owned());
        }
        self.check_known()
    }

    /// The first file that a [check](Self::check) has found to have changed, or that was shortened
    /// where a step needed it. Makes no system call.
    #[must_use]
    pub fn changed(&self) -> Option<&Path> {
        if self.0.changed.get().is_none()
            && let Some(file) = self.0.files.iter().find(|file| file.is_torn())
        {
            self.0.changed.get_or_init(|| file.path().to_owned());
        }
        self.0.changed.get().map(PathBuf::as_path)
    }

    /// Fails if [`changed`](Self::changed) names a file.
    ///
    /// # Errors
    ///
    /// [`ModelError::FileChanged`].
    pub fn check_known(&self) -> Result<(), ModelError> {
        match self.changed() {
            None => Ok(()),
            Some(path) => Err(ModelError::FileChanged {
                path: path.to_owned(),
            }),
        }
    }

    /// A file whose path leads to another one now, or to none. The model goes on with the one that
    /// was opened.
    #[must_use]
    pub fn replaced(&self) -> Option<&Path> {
        let replaced = |file: &&Arc<OpenedFile>| file.change() == Some(FileChange::Replaced);
        self.0.files.iter().find(replaced).map(|file| file.path())
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWatch")
            .field("files", &self.0.files.len())
            .field("changed", &self.0.changed)
            .finish()
    }
}
