//! Read-only memory-mapped files: the only `unsafe` code of this crate.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::ModelError;

/// A whole file as bytes.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    bytes: Mmap,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    ///
    /// [`ModelError::Missing`] with `expected` in its text, or [`ModelError::Io`].
    pub(super) fn open(path: &Path, expected: &'static str) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ModelError::Missing {
                path: path.to_owned(),
                expected,
            },
            _ => io_error(path, source),
        })?;
        #[expect(unsafe_code, reason = "the crate's one use: a map of a file")]
        // SAFETY: the mapping is read-only, and its bytes are only read as plain `u8`s, for
        // which every bit pattern is valid. The remaining risk is that another process changes
        // or shortens the file meanwhile. No program can exclude that, so `ModelFiles`
        // documents that it must not happen.
        let bytes = unsafe { Mmap::map(&file) }.map_err(|source| io_error(path, source))?;
        Ok(Self {
            path: path.to_owned(),
            bytes,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Asks the system to read these bytes soon. Without that, it reads as little at a time as a map
    /// that is accessed anywhere deserves.
    pub(super) fn read_ahead(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let advice = memmap2::Advice::WillNeed;
            // Advice that is not taken changes nothing.
            self.bytes
                .advise_range(advice, range.start, range.len())
                .ok();
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// The error of a file with invalid contents.
    pub(super) fn damaged(
        &self,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> ModelError {
        ModelError::Damaged {
            path: self.path.clone(),
            what: what.into(),
            expected: expected.into(),
        }
    }
}

fn io_error(path: &Path, source: io::Error) -> ModelError {
    ModelError::Io {
        path: path.to_owned(),
        source,
    }
}
