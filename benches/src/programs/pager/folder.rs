//! A folder for the disk tier, and the system's cache of its files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::programs::Result;
use crate::system::forget_cached;

/// A folder that is removed with its content.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates an empty one, beside the program: `/tmp` may be memory.
    pub(crate) fn new() -> Result<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let program = std::env::current_exe()?;
        let beside = program.parent().ok_or("a program without a folder")?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = beside.join(format!("pager-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the files from the system's cache. Returns false where that is impossible.
    pub(crate) fn forget_cached(&self) -> Result<bool> {
        let mut files = std::fs::read_dir(&self.0)?;
        files.try_fold(true, |all, file| Ok(forget_cached(&file?.path()) && all))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may be removed already.
        std::fs::remove_dir_all(&self.0).ok();
    }
}
