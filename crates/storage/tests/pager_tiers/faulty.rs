//! A disk that fails as a test asks.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use motet_storage::tiers::disk::{Files, OpenFile, SystemFiles};

/// How the disk fails at an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies before it.
    DiesBefore,
    /// The process dies in the middle: half of a write is done.
    DiesWithin,
    /// The process dies after it, before it learns the result.
    DiesAfter,
    /// The disk is full from then on; the first write is half done. Files can be removed.
    Fills,
    /// Nothing can be changed from then on.
    ReadOnly,
    /// This one operation fails, and nothing else.
    FailsOnce,
    /// This and all later operations fail, though the process lives.
    FailsForGood,
    /// One bit that is read is wrong.
    ReadsWrong,
}

/// The system's files, with one operation that goes wrong. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct FaultyFiles {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    fault: Option<(usize, Fault)>,
    /// Operations so far.
    operations: usize,
    /// Open handles, as of a process that is just being started.
    locks: Vec<File>,
}

/// Effect of an operation on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Read,
    Write,
    Remove,
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Works,
    Fails(io::ErrorKind),
    Half(io::ErrorKind),
    WorksAndFails,
    Wrong,
}

#[derive(Debug)]
struct FaultyFile {
    file: Box<dyn OpenFile>,
    files: FaultyFiles,
}

impl FaultyFiles {
    /// Files whose operation `at`, counted from 0, goes wrong.
    pub(crate) fn new(fault: Option<(usize, Fault)>) -> Self {
        let state = State {
            fault,
            operations: 0,
            locks: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Operations so far.
    pub(crate) fn operations(&self) -> usize {
        self.state.lock().expect("no panic").operations
    }

    /// Plans a fault of the operation with this number, counted from now.
    pub(crate) fn plan(&self, from_now: usize, fault: Fault) {
        let mut state = self.state.lock().expect("no panic");
        state.fault = Some((state.operations + from_now, fault));
    }

    pub(crate) fn heal(&self) {
        self.state.lock().expect("no panic").fault = None;
    }

    fn verdict(&self, does: Does) -> Verdict {
        let mut state = self.state.lock().expect("no panic");
        let now = state.operations;
        state.operations += 1;
        let Some((at, fault)) = state.fault else {
            return Verdict::Works;
        };
        let broken = io::ErrorKind::Other;
        let full = io::ErrorKind::StorageFull;
        match fault {
            _ if now < at => Verdict::Works,
            Fault::FailsOnce | Fault::ReadsWrong if now > at => Verdict::Works,
            Fault::ReadsWrong => Verdict::Wrong,
            Fault::DiesWithin if now == at => Verdict::Half(broken),
            Fault::DiesAfter if now == at => Verdict::WorksAndFails,
            Fault::Fills if does != Does::Write => Verdict::Works,
            Fault::ReadOnly if does == Does::Read => Verdict::Works,
            Fault::ReadOnly => Verdict::Fails(io::ErrorKind::ReadOnlyFilesystem),
            Fault::Fills if now == at => Verdict::Half(full),
            Fault::Fills => Verdict::Fails(full),
            _ => Verdict::Fails(broken),
        }
    }

    fn run<T>(&self, does: Does, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.verdict(does) {
            Verdict::Works | Verdict::Wrong => operation(),
            Verdict::Fails(kind) | Verdict::Half(kind) => Err(kind.into()),
            Verdict::WorksAndFails => {
                operation()?;
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    fn wrap(&self, file: Box<dyn OpenFile>) -> Box<dyn OpenFile> {
        let files = self.clone();
        Box::new(FaultyFile { file, files })
    }
}

impl OpenFile for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.files.verdict(Does::Write) {
            Verdict::Works | Verdict::Wrong => self.file.append(bytes),
            Verdict::Fails(kind) => Err(kind.into()),
            Verdict::Half(kind) => {
                self.file.append(&bytes[..bytes.len() / 2])?;
                Err(kind.into())
            }
            Verdict::WorksAndFails => {
                self.file.append(bytes)?;
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<()> {
        match self.files.verdict(Does::Read) {
            Verdict::Fails(kind) | Verdict::Half(kind) => Err(kind.into()),
            Verdict::WorksAndFails => Err(io::ErrorKind::Other.into()),
            Verdict::Works => self.file.read(into),
            Verdict::Wrong => {
                self.file.read(into)?;
                let middle = into.len() / 2;
                into[middle] ^= 0x10;
                Ok(())
            }
        }
    }
}

impl Files for FaultyFiles {
    fn create_folder(&mut self, folder: &Path) -> io::Result<()> {
        self.run(Does::Write, || SystemFiles.create_folder(folder))
    }

    fn lock(&mut self, path: &Path) -> Result<File, TryLockError> {
        match self.verdict(Does::Read) {
            Verdict::Works | Verdict::Wrong => {
                let lock = SystemFiles.lock(path)?;
                let same = lock.try_clone().map_err(TryLockError::Error)?;
                self.state.lock().expect("no panic").locks.push(same);
                Ok(lock)
            }
            _ => Err(TryLockError::Error(io::ErrorKind::Other.into())),
        }
    }

    /// Checking the lock does not count as an operation of the disk.
    fn is_locked(&mut self, path: &Path, locked: &File) -> io::Result<bool> {
        SystemFiles.is_locked(path, locked)
    }

    fn list(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.run(Does::Read, || SystemFiles.list(folder))
    }

    /// Neither does this, nor the next: both are called for files that cannot be read.
    fn bytes(&mut self, path: &Path) -> io::Result<u64> {
        SystemFiles.bytes(path)
    }

    fn others_may(&mut self, path: &Path) -> io::Result<u32> {
        SystemFiles.others_may(path)
    }

    fn create(&mut self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let file = self.run(Does::Write, || SystemFiles.create(path))?;
        Ok(self.wrap(file))
    }

    fn open(&mut self, path: &Path) -> io::Result<(Box<dyn OpenFile>, u64)> {
        let (file, bytes) = self.run(Does::Read, || SystemFiles.open(path))?;
        Ok((self.wrap(file), bytes))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.run(Does::Write, || SystemFiles.rename(from, to))
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.run(Does::Remove, || SystemFiles.remove(path))
    }
}
