//! What the disk tier asks of the system.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
#[cfg(unix)]
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that one may write on, or read from.
pub trait OpenFile: Debug + Send {
    /// Writes all of `bytes` at the end.
    ///
    /// # Errors
    ///
    /// What the system says. Some of the bytes may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Reads what comes next until `into` is full.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends before, or what the system
    /// says.
    fn read(&mut self, into: &mut [u8]) -> io::Result<()>;
}

/// A file system: [`SystemFiles`], or in tests one that fails when it is told to.
///
/// Each operation's errors are those of the system.
pub trait Files: Debug + Send {
    /// Makes a folder in one that exists, for its owner only where the system knows owners.
    fn create_folder(&mut self, folder: &Path) -> io::Result<()>;

    /// Locks a file, which is made if need be, for its owner only, until the answer is
    /// dropped.
    fn lock(&mut self, path: &Path) -> Result<File, TryLockError>;

    /// Whether this is the file that was locked, and not another of the same name.
    fn is_locked(&mut self, path: &Path, locked: &File) -> io::Result<bool>;

    /// All that is a plain file in a folder, in any order.
    fn list(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>>;

    /// Bytes of a file, which need not be readable.
    fn bytes(&mut self, path: &Path) -> io::Result<u64>;

    /// What others than the owner may do with a file or folder: the bits of its mode, none
    /// where the system has no such bits.
    fn others_may(&mut self, path: &Path) -> io::Result<u32>;

    /// Makes a file, which may not be there, to write on, for its owner only.
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Opens a file to read it; how many bytes it has.
    fn open(&mut self, path: &Path) -> io::Result<(Box<dyn OpenFile>, u64)>;

    /// Gives a file another name in its folder, all at once.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
}

/// The system's own.
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

    /// Other systems do not let a folder go in which a file is open.
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

/// How files of ours are made: nobody but their owner may read what is in them, whatever the
/// process lets others do with its files.
fn private() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has modes"))]
    let mut options = File::options();
    #[cfg(unix)]
    options.mode(0o600);
    options
}
