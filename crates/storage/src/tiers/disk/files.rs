//! The file system operations of the disk tier.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
#[cfg(unix)]
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An open file, for writing or for reading.
pub trait OpenFile: Debug + Send {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    ///
    /// Any error of the system. Some of the bytes may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Reads the next bytes until `into` is full.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before, or any error of the system.
    fn read(&mut self, into: &mut [u8]) -> io::Result<()>;
}

/// A file system: [`SystemFiles`], or in tests one with injected failures.
///
/// Each operation's errors are those of the system.
pub trait Files: Debug + Send {
    /// Creates a folder in an existing parent, accessible to its owner only where the system
    /// has owners.
    fn create_folder(&mut self, folder: &Path) -> io::Result<()>;

    /// Locks a file until the returned handle is dropped. Creates the file if needed,
    /// accessible to its owner only.
    fn lock(&mut self, path: &Path) -> Result<File, TryLockError>;

    /// Whether the file at this path is the locked one, and not another with the same name.
    fn is_locked(&mut self, path: &Path, locked: &File) -> io::Result<bool>;

    /// Returns all plain files in a folder, in any order.
    fn list(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>>;

    /// Returns the bytes of a file, which need not be readable.
    fn bytes(&mut self, path: &Path) -> io::Result<u64>;

    /// Returns the mode bits of a file or folder that apply to others than its owner; 0 where
    /// the system has no such bits.
    fn others_may(&mut self, path: &Path) -> io::Result<u32>;

    /// Creates a new file for writing, accessible to its owner only.
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Opens a file for reading and returns its bytes too.
    fn open(&mut self, path: &Path) -> io::Result<(Box<dyn OpenFile>, u64)>;

    /// Renames a file within its folder, atomically.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
}

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

impl OpenFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.read_exact(into)
    }
}

impl Files for SystemFiles {
    fn create_folder(&mut self, folder: &Path) -> io::Result<()> {
        #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has modes"))]
        let mut folders = DirBuilder::new();
        #[cfg(unix)]
        folders.mode(0o700);
        folders.create(folder)
    }

    fn lock(&mut self, path: &Path) -> Result<File, TryLockError> {
        let mut options = private();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.map_err(TryLockError::Error)?;
        file.try_lock()?;
        Ok(file)
    }

    #[cfg(unix)]
    fn is_locked(&mut self, path: &Path, locked: &File) -> io::Result<bool> {
        let (there, ours) = (fs::metadata(path)?, locked.metadata()?);
        Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
    }

    /// Other systems do not remove a folder in which a file is open.
    #[cfg(not(unix))]
    fn is_locked(&mut self, path: &Path, _locked: &File) -> io::Result<bool> {
        fs::metadata(path).map(|_| true)
    }

    fn list(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    fn bytes(&mut self, path: &Path) -> io::Result<u64> {
        Ok(fs::symlink_metadata(path)?.len())
    }

    #[cfg(unix)]
    fn others_may(&mut self, path: &Path) -> io::Result<u32> {
        Ok(fs::metadata(path)?.mode() & 0o077)
    }

    #[cfg(not(unix))]
    fn others_may(&mut self, path: &Path) -> io::Result<u32> {
        fs::metadata(path).map(|_| 0)
    }

    fn create(&mut self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let file = private().write(true).create_new(true).open(path)?;
        Ok(Box::new(file))
    }

    fn open(&mut self, path: &Path) -> io::Result<(Box<dyn OpenFile>, u64)> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok((Box::new(file), bytes))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// Returns the options for new files: only their owner may read them, whatever the process's
/// umask.
fn private() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has modes"))]
    let mut options = File::options();
    #[cfg(unix)]
    options.mode(0o600);
    options
}
