//! A folder for the disk tier, and the system's cache of its files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;

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

    /// Removes the files from the system's page cache, so that they are read from the disk.
    /// Returns false where that is impossible: it takes GNU's `dd`, which calls
    /// `posix_fadvise`.
    pub(crate) fn forget_cached(&self) -> Result<bool> {
        for file in std::fs::read_dir(&self.0)? {
            let path = file?.path();
            let mut dd = Command::new("dd");
            dd.arg(format!("if={}", path.display()));
            dd.args(["iflag=nocache", "count=0"]);
            let status = dd.stdin(Stdio::null()).stderr(Stdio::null()).status();
            if !status.is_ok_and(|status| status.success()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may be removed already.
        std::fs::remove_dir_all(&self.0).ok();
    }
}
