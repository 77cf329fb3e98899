//! Opened files of a model, mapped into memory or read.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::Mmap;

use super::ModelError;
#[cfg(unix)]
use super::bus_error::Protected;

/// How the bytes of a model's files get into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FileAccess {
    /// They are mapped: read when they are needed, and shared with other processes. The files must
    /// not change while they are in use.
    #[default]
    Map,
    /// They are read when the files are opened, which takes as much memory as the files have
    /// bytes. The files may change afterwards.
    Read,
}

/// A whole file as bytes.
#[derive(Debug)]
pub(super) struct OpenedFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Map),
    Read(Vec<u8>),
}

#[derive(Debug)]
struct Map {
    /// Dropped before the mapping.
    #[cfg(unix)]
    protected: Option<Protected>,
    bytes: Mmap,
}

/// Properties of a file that differ once it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Device and number of the file, where the system has such.
    place: Option<(u64, u64)>,
}

/// A change of a file since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileChange {
    /// It has another length, or zeros were read in the place of bytes that are gone: what is mapped
    /// is not what was checked.
    Overwritten,
    /// The time of its last change is another one. Its bytes may be the same.
    Written,
    /// Its path leads to another file or to none. The opened file is as it was.
    Replaced,
}

impl OpenedFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    ///
    /// [`ModelError::Missing`] with `expected` in its text, [`ModelError::Io`], or
    /// [`ModelError::Damaged`] when it changes while it is being read.
    pub(super) fn open(
        path: &Path,
        expected: &'static str,
        access: FileAccess,
    ) -> Result<Self, ModelError> {
        let mut file = File::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ModelError::Missing {
                path: path.to_owned(),
                expected,
            },
            _ => io_error(path, source),
        })?;
        let metadata = file.metadata().map_err(|source| io_error(path, source))?;
        let bytes = match access {
            FileAccess::Map => Map::new(&file).map(Bytes::Mapped),
            FileAccess::Read => read(&mut file, &metadata).map(Bytes::Read),
        };
        let opened = Self {
            path: path.to_owned(),
            file,
            stamp: Stamp::of(&metadata),
            bytes: bytes.map_err(|source| io_error(path, source))?,
        };
        let metadata = opened.file.metadata();
        let metadata = metadata.map_err(|source| io_error(path, source))?;
        if opened.is_torn() || Stamp::of(&metadata) != opened.stamp {
            return Err(opened.damaged("it changed while it was read", "a file at rest"));
        }
        Ok(opened)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => &map.bytes,
            Bytes::Read(bytes) => bytes,
        }
    }

    /// Whether the bytes are the file's own.
    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped(_))
    }

    /// The known change of the file since it was opened, at the cost of two system calls. A file
    /// that was read may change. A file system that does not answer says nothing of the file.
    pub(super) fn change(&self) -> Option<FileChange> {
        if !self.is_mapped() {
            return None;
        }
        if self.is_torn() {
            return Some(FileChange::Overwritten);
        }
        let now = self.file.metadata().map(|metadata| Stamp::of(&metadata));
        change_between(&self.stamp, now).or_else(|| {
            let at_path = fs::metadata(&self.path).map(|metadata| Stamp::of(&metadata).place);
            let is_other = match at_path {
                Ok(place) => place != self.stamp.place,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            is_other.then_some(FileChange::Replaced)
        })
    }

    /// Whether zeros were read in the place of bytes that are gone. Costs no system call.
    pub(super) fn is_torn(&self) -> bool {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.bytes {
            return map.protected.as_ref().is_some_and(Protected::is_torn);
        }
        false
    }

    /// Asks the system to read these bytes soon. Without that, it reads as little at a time as a map
    /// that is accessed anywhere deserves.
    pub(super) fn read_ahead(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.bytes {
            let advice = memmap2::Advice::WillNeed;
            // Advice that is not taken changes nothing.
            map.bytes
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

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let place = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let place = None;
        Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            place,
        }
    }
}

/// The change of an opened file, from its stamp at the opening and the one now.
fn change_between(opened: &Stamp, now: io::Result<Stamp>) -> Option<FileChange> {
    match now {
        Ok(now) if now.bytes != opened.bytes => Some(FileChange::Overwritten),
        Ok(now) if now != *opened => Some(FileChange::Written),
        Ok(_) | Err(_) => None,
    }
}

impl Map {
    fn new(file: &File) -> io::Result<Self> {
        #[expect(unsafe_code, reason = "a map of a file has no safe interface")]
        // SAFETY: the mapping is read-only, and its bytes are only read as plain `u8`s, for
        // which every bit pattern is valid. The remaining risk is that another process changes
        // or shortens the file meanwhile. No program can exclude that, so `ModelFiles`
        // documents that it must not happen.
        let bytes = unsafe { Mmap::map(file) }?;
        Ok(Self {
            #[cfg(unix)]
            protected: Protected::new(&bytes),
            bytes,
        })
    }
}

fn read(file: &mut File, metadata: &Metadata) -> io::Result<Vec<u8>> {
    // Reserved at once: a vector that grows takes up to twice the memory.
    let length = usize::try_from(metadata.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(io::Error::other)?;
    file.take(metadata.len()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn io_error(path: &Path, source: io::Error) -> ModelError {
    ModelError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn length_and_time_show_changes() {
        let opened = Stamp {
            bytes: 100,
            modified: Some(UNIX_EPOCH),
            place: Some((1, 2)),
        };
        let later = Some(UNIX_EPOCH + Duration::from_secs(1));
        let now = |bytes, modified| {
            Ok(Stamp {
                bytes,
                modified,
                ..opened
            })
        };
        let check = |now, expected| assert_eq!(change_between(&opened, now), expected);
        check(now(100, opened.modified), None);
        check(now(100, later), Some(FileChange::Written));
        check(now(99, opened.modified), Some(FileChange::Overwritten));
        check(now(101, later), Some(FileChange::Overwritten));
        // A network file system may fail for a while.
        check(Err(io::ErrorKind::StaleNetworkFileHandle.into()), None);
    }
}
