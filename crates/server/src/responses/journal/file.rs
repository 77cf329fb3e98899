//! The file of one response.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use super::Budget;

/// The file of a response. It stays when this is dropped.
#[derive(Debug)]
pub(in super::super) struct JournalFile {
    path: PathBuf,
    key: Option<Arc<str>>,
    budget: Arc<Budget>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: OpenFile,
    /// Bytes in the file, which the budget counts.
    bytes: usize,
}

#[derive(Debug)]
enum OpenFile {
    /// It is created when it gets its first bytes.
    New,
    Open(File),
    Removed,
}

impl JournalFile {
    pub(super) fn new(path: PathBuf, key: Option<Arc<str>>, budget: Arc<Budget>) -> Self {
        Self {
            path,
            key,
            budget,
            state: Mutex::new(State {
                file: OpenFile::New,
                bytes: 0,
            }),
        }
    }

    /// Goes on with a file after its first bytes, which are good. The others are dropped.
    ///
    /// # Errors
    ///
    /// Any error of the system, and a full budget.
    pub(super) fn reopen(&self, bytes: usize) -> io::Result<()> {
        let mut state = self.locked();
        let file = OpenOptions::new().append(true).open(&self.path)?;
        file.set_len(bytes as u64)?;
        self.reserve(bytes)?;
        state.bytes = bytes;
        state.file = OpenFile::Open(file);
        Ok(())
    }

    /// Appends bytes. A file that cannot have them is given up, with a warning. Blocks.
    pub(super) fn append(&self, bytes: &[u8]) {
        let mut state = self.locked();
        if let Err(error) = self.try_append(&mut state, bytes) {
            tracing::warn!("a restart will not continue a response: its journal: {error}");
            self.remove_file(&mut state);
        }
    }

    fn try_append(&self, state: &mut State, bytes: &[u8]) -> io::Result<()> {
        if let OpenFile::New = state.file {
            state.file = OpenFile::Open(create(&self.path)?);
        }
        if let OpenFile::Open(file) = &mut state.file {
            self.reserve(bytes.len())?;
            state.bytes += bytes.len();
            file.write_all(bytes)?;
        }
        Ok(())
    }

    fn reserve(&self, bytes: usize) -> io::Result<()> {
        if self.budget.reserve(&self.key, bytes) {
            return Ok(());
        }
        let full =
            "the journals of its key, or of all, take the bytes that they may (--results-mib)";
        Err(io::Error::new(io::ErrorKind::StorageFull, full))
    }

    /// Whether the file is there, or will be.
    pub(super) fn is_kept(&self) -> bool {
        !matches!(self.locked().file, OpenFile::Removed)
    }

    /// Removes the file, on another thread while the runtime runs.
    pub(in super::super) fn remove_later(self: &Arc<Self>) {
        let file = Arc::clone(self);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || file.remove())),
            Err(_) => file.remove(),
        }
    }

    /// Removes the file. Blocks.
    pub(super) fn remove(&self) {
        self.remove_file(&mut self.locked());
    }

    fn remove_file(&self, state: &mut State) {
        let was_there = matches!(state.file, OpenFile::Open(_));
        state.file = OpenFile::Removed;
        self.budget
            .free(&self.key, std::mem::take(&mut state.bytes));
        if was_there && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a file that only its owner may read: prompts are in it.
fn create(path: &PathBuf) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create_new(true);
    #[cfg(unix)]
    options.mode(0o600);
    options.open(path)
}
