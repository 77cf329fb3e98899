//! A place for files that is gone when the test is.

use std::path::PathBuf;

/// A path where nothing is; what comes to be there is removed in the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// `name` is used once at a time in all tests.
    pub(crate) fn new(name: &str) -> Self {
        let folder = format!("motet-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::remove_dir_all(&folder).ok();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
        std::fs::remove_file(&self.0).ok();
    }
}
