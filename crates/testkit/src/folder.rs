//! A folder for files that is removed with the test.

use std::path::PathBuf;

/// An unused path; the files created there are removed on drop.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// `name` may be in use once at a time among all tests.
    #[must_use]
    pub fn new(name: &str) -> Self {
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
