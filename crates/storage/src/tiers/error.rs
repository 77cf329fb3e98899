//! Errors of tiers.

use std::io;
use std::path::{Path, PathBuf};

use motet_protocol::CopyId;

/// The error of a tier that could not carry out an operation, or did not accept a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// Neither the folder nor its parent exists, or the folder has disappeared.
    #[error("{path} does not exist: expected a folder, or a parent in which to create one", path = path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// The path is not a folder.
    #[error("{path} is not a folder: expected a folder that is used for nothing else", path = path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// Another process, or another engine of this one, uses the folder.
    #[error("{path} is in use: expected a folder for each engine", path = path.display())]
    Locked {
        /// The lock file of the folder.
        path: PathBuf,
    },
    /// The system denies access.
    #[error("no permission to read or write {path}: expected a folder that the engine's user owns", path = path.display())]
    Denied {
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The disk is full or a quota is reached, though the tier's budget is not used up.
    #[error("the disk is full at {path}: expected free space for the budget of the disk tier", path = path.display())]
    DiskFull {
        /// The file that could not be written.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The disk failed.
    #[error("the disk failed at {path}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is incomplete, changed, or not in its place.
    #[error("{path} is damaged: {what}; expected {expected}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The value found.
        what: String,
        /// The value in an undamaged file.
        expected: String,
    },
    /// The process ended while it wrote the file.
    #[error("{path} was never finished", path = path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// A file holds the state of another model, or of other weights.
    #[error("{path} is of model {found:016x}; expected {expected:016x}", path = path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The model's identity in the file.
        found: u64,
        /// The identity of the engine's model.
        expected: u64,
    },
    /// The format of a file is not the one that this version reads.
    #[error("{path} is of format {found}; expected {expected}", path = path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u32,
        /// The format that is read and written.
        expected: u32,
    },
    /// This tier did not write the file.
    #[error("{path} was not written by a disk tier: expected a folder that is used for nothing else", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Other users than the owner may access a folder with prompts and outputs.
    #[error("{path} is accessible to other users (mode {mode:03o}): expected 700", path = path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// Mode bits of the folder.
        mode: u32,
    },
    /// A newer file holds the same state.
    #[error("{path} holds the same state as a newer file", path = path.display())]
    Twice {
        /// The older file.
        path: PathBuf,
    },
    /// The tier's budget does not allow it.
    #[error("no space for {bytes} bytes in {tier}: {used_bytes} of {bytes_max} bytes are in use")]
    OutOfSpace {
        /// Name of the tier.
        tier: &'static str,
        /// Bytes requested.
        bytes: usize,
        /// Bytes in use.
        used_bytes: usize,
        /// Budget in bytes.
        bytes_max: usize,
    },
    /// The system has no memory for a buffer.
    #[error("no memory for a buffer of {bytes} bytes")]
    NoMemory {
        /// Bytes requested.
        bytes: usize,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The tier does not have the copy, or not any more.
    #[error("{0} is not in this tier")]
    Unknown(CopyId),
}

impl TierError {
    /// Whether the file itself is unusable, whatever the disk does.
    pub(super) fn is_of_the_file(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::OtherModel { .. } | Self::OtherFormat { .. }
        )
    }

    /// Returns the error for a system error at `path`.
    pub(super) fn from_io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, source }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Denied { path, source }
            }
            _ => Self::Io { path, source },
        }
    }

    pub(super) fn damaged(
        path: &Path,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            what: what.into(),
            expected: expected.into(),
        }
    }
}

impl TierError {
    /// Whether the stored copy is lost, so that a retry is of no use.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::OtherModel { .. }
                | Self::OtherFormat { .. }
                | Self::Unknown(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_are_distinguished() {
        let check = |kind: io::ErrorKind, expected: fn(&TierError) -> bool| {
            let error = TierError::from_io(Path::new("/tier/f"), kind.into());
            assert!(expected(&error), "{kind}: {error:?}");
            assert!(error.to_string().contains("/tier/f"), "{error}");
        };
        check(io::ErrorKind::StorageFull, |e| {
            matches!(e, TierError::DiskFull { .. })
        });
        check(io::ErrorKind::QuotaExceeded, |e| {
            matches!(e, TierError::DiskFull { .. })
        });
        check(io::ErrorKind::ReadOnlyFilesystem, |e| {
            matches!(e, TierError::Denied { .. })
        });
        check(io::ErrorKind::PermissionDenied, |e| {
            matches!(e, TierError::Denied { .. })
        });
        check(io::ErrorKind::Other, |e| matches!(e, TierError::Io { .. }));
    }
}
