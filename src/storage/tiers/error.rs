//! What may go wrong in a tier.

use std::io;
use std::path::{Path, PathBuf};

use motet_core::CopyId;

/// Why a tier could not do what it was asked, or did not keep a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// There is no such folder, nor the one that it would be in; or it was there, and is
    /// not any more.
    #[error("{path} does not exist: expected a folder, or a place to make one", path = path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// The path is not that of a folder.
    #[error("{path} is not a folder: expected one that is used for nothing else", path = path.display())]
    NotAFolder {
        /// What is no folder.
        path: PathBuf,
    },
    /// Another process, or another engine of this one, uses the folder.
    #[error("{path} is in use: expected a folder for each engine", path = path.display())]
    Locked {
        /// The folder's lock.
        path: PathBuf,
    },
    /// The system does not let us.
    #[error("{path} may not be written or read: expected a folder of our own", path = path.display())]
    Denied {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk is full, though the tier's budget is not, or a quota is reached.
    #[error("no room on the disk for {path}: expected as much as the budget of the disk tier", path = path.display())]
    DiskFull {
        /// What was to be written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk failed.
    #[error("the disk failed at {path}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is torn, changed, or not where it was written.
    #[error("{path} is damaged: {what}; expected {expected}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
        /// What a whole file has there.
        expected: String,
    },
    /// A file was being written when its process ended.
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
        /// Whose it is.
        found: u64,
        /// Whose it ought to be.
        expected: u64,
    },
    /// A file is in a format that this version does not read.
    #[error("{path} is of format {found}; expected {expected}", path = path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that is read and written.
        expected: u32,
    },
    /// A file is none that this tier wrote.
    #[error("{path} is not of a disk tier: expected a folder that is used for nothing else", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Others than its owner may use a folder in which there is what users have said.
    #[error("{path} is open to others (mode {mode:03o}): expected 700", path = path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// What its owner may do with it, and others.
        mode: u32,
    },
    /// A newer file holds the same.
    #[error("{path} holds what a newer file holds", path = path.display())]
    Twice {
        /// The older file.
        path: PathBuf,
    },
    /// The tier's budget does not allow it.
    #[error("no room for {bytes} bytes in {tier}: {used_bytes} of {bytes_max} are taken")]
    OutOfSpace {
        /// Which tier.
        tier: &'static str,
        /// What was needed.
        bytes: usize,
        /// What is taken.
        used_bytes: usize,
        /// The budget.
        bytes_max: usize,
    },
    /// The system has no memory for it.
    #[error("no memory for a buffer of {bytes} bytes")]
    NoMemory {
        /// What was needed.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The tier does not have that copy, or no longer.
    #[error("{0} is not in this tier")]
    Unknown(CopyId),
}

impl TierError {
    /// Whether a file will never be of use, whatever the disk does.
    pub(super) fn is_of_the_file(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::OtherModel { .. } | Self::OtherFormat { .. }
        )
    }

    /// What the system's error at `path` means.
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
    /// Whether the copy is not there as it was stored, so that trying again is of no use.
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
