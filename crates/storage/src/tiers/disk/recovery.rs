//! Recovery of the copies in a folder when it is opened.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::header::MAGIC;
use super::{DiskTier, Files, Label, PART, Recovered, SEGMENT, StaleFile, StoredFile, TierError};
use motet_core::pager::footprint;
use motet_protocol::CopyId;

/// Name of the lock file of a folder.
const LOCK: &str = "lock";

/// The lock of a folder, held until this is dropped.
#[derive(Debug)]
pub(super) struct FolderLock(File);

/// The kind of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// A complete file with this number.
    Segment(u64),
    /// An unfinished file with this number.
    Part(u64),
    /// A file with the tier's extension and no number.
    Misnamed,
    /// Any other file.
    Other,
}

impl FolderLock {
    /// Whether the folder at this path is the one that was locked. A folder that was removed
    /// and created again is not.
    pub(super) fn holds(&self, files: &mut dyn Files, folder: &Path) -> io::Result<bool> {
        files.is_locked(&folder.join(LOCK), &self.0)
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough while another thread is starting a process: until that
        // runs its own program, it has the file open too.
        self.0.unlock().ok();
    }
}

/// Creates the folder if needed, and locks it.
pub(super) fn lock(files: &mut dyn Files, folder: &Path) -> Result<FolderLock, TierError> {
    let path = folder.to_owned();
    match files.create_folder(folder) {
        Ok(()) => {}
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => return Err(TierError::Missing { path }),
            io::ErrorKind::NotADirectory => return Err(TierError::NotAFolder { path }),
            // If nothing can be created, the folder may exist all the same; locking it will
            // tell.
            io::ErrorKind::AlreadyExists | io::ErrorKind::ReadOnlyFilesystem => {}
            _ => return Err(TierError::from_io(folder, error)),
        },
    }
    let lock = folder.join(LOCK);
    let locked = files.lock(&lock).map(FolderLock);
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => TierError::Locked { path: lock },
        TryLockError::Error(source) => match source.kind() {
            io::ErrorKind::NotFound => TierError::Missing { path },
            io::ErrorKind::NotADirectory => TierError::NotAFolder { path },
            _ => TierError::from_io(&lock, source),
        },
    })
}

/// Locks a folder if it exists and is empty.
pub(super) fn lock_empty(files: &mut dyn Files, folder: &Path) -> Option<FolderLock> {
    let lock = folder.join(LOCK);
    let mut there = files.list(folder).ok()?.into_iter();
    let is_empty = there.all(|path| path == lock);
    is_empty.then(|| files.lock(&lock).ok().map(FolderLock))?
}

/// The disposition of a file that is no copy.
#[derive(Debug)]
enum Disposition {
    /// The tier wrote it, and it is of no use.
    Remove(TierError),
    /// Another program wrote it, or its origin is unknown.
    Leave(TierError),
    /// It no longer exists.
    Gone,
}

impl DiskTier {
    /// Checks every file in the folder.
    pub(super) fn recover(&mut self, first: CopyId) -> Result<Recovered, TierError> {
        let listed = self.files.list(&self.folder);
        let paths = listed.map_err(|source| TierError::from_io(&self.folder, source))?;
        let mut recovered = Recovered {
            exposed: self.exposed(),
            ..Recovered::default()
        };
        let mut numbered = Vec::new();
        for path in paths {
            let disposition = match named(&path) {
                Named::Segment(number) => {
                    numbered.push((number, path));
                    continue;
                }
                Named::Part(number) => {
                    self.numbers_taken.insert(number);
                    let why = TierError::Unfinished { path: path.clone() };
                    self.disposition(&path, why, 0)
                }
                Named::Misnamed => {
                    let why =
                        TierError::damaged(&path, "the file was renamed", "a number as its name");
                    // The name does not prove that a tier wrote it, so all of the magic is
                    // required.
                    self.disposition(&path, why, MAGIC.len())
                }
                Named::Other => continue,
            };
            self.dispose(path, disposition, &mut recovered);
        }
        numbered.sort_unstable();
        let found = self.read(numbered, &mut recovered);
        self.keep_within_budget(found, first, &mut recovered);
        Ok(recovered)
    }

    /// Returns the labels of the files that fit the budget, newest first. A file that does not
    /// fit is skipped, and older ones that fit are kept. Files come oldest first.
    fn read(&mut self, files: Vec<(u64, PathBuf)>, recovered: &mut Recovered) -> Vec<(u64, Label)> {
        let label_bytes_max = self.limits.label_bytes_max;
        let mut found: Vec<(u64, Label)> = Vec::new();
        let mut states = FxHashSet::default();
        let mut label_bytes = 0;
        for (number, path) in files.into_iter().rev() {
            let out_of_space = |bytes| label_budget_exceeded(bytes, label_bytes, label_bytes_max);
            let admit = |tokens| {
                let bytes = Label::host_bytes(tokens);
                if bytes > label_bytes_max {
                    return Err(out_of_space(bytes));
                }
                Ok(())
            };
            let why = match self.open_file(&path, number, admit) {
                Ok((header, _)) => {
                    let label = header.label;
                    let bytes = Label::host_bytes(label.tokens.len());
                    let state = (label.key.salt, label.before, label.start, label.state_lag);
                    if !states.insert((state, Arc::clone(&label.tokens))) {
                        TierError::Twice { path: path.clone() }
                    } else if bytes > label_bytes_max - label_bytes {
                        out_of_space(bytes)
                    } else {
                        label_bytes += bytes;
                        found.push((number, label));
                        continue;
                    }
                }
                Err(error) => error,
            };
            self.numbers_taken.insert(number);
            let disposition = match why {
                TierError::Twice { .. } | TierError::OutOfSpace { .. } => Disposition::Remove(why),
                why => self.disposition(&path, why, 0),
            };
            self.dispose(path, disposition, recovered);
        }
        found
    }

    /// Keeps the files that fit the budget, the newest first: a file that does not fit is
    /// skipped, and older ones that fit are kept. Files come newest first.
    fn keep_within_budget(
        &mut self,
        files: Vec<(u64, Label)>,
        first: CopyId,
        recovered: &mut Recovered,
    ) {
        self.next = files.first().map_or(0, |(last, _)| last.wrapping_add(1));
        if self.next == 0 {
            // If numbers ever start again, those of existing files are skipped.
            self.numbers_taken
                .extend(files.iter().map(|(number, _)| *number));
        }
        let mut intact = Vec::new();
        for (number, label) in files {
            let bytes = Self::bytes_taken(label.tokens.len(), label.bytes);
            if bytes > self.limits.bytes_max.saturating_sub(self.used_bytes) {
                let (path, error) = (self.path(number), self.out_of_space(bytes));
                self.numbers_taken.insert(number);
                self.dispose(path, Disposition::Remove(error), recovered);
                continue;
            }
            self.used_bytes += bytes;
            intact.push((StoredFile { number, bytes }, label));
        }
        for (id, (intact, label)) in (first.0..).zip(intact.into_iter().rev()) {
            self.copies.insert(CopyId(id), intact);
            recovered.copies.push((CopyId(id), label));
        }
    }

    /// Removes a file or leaves it in place, and records why. A file that stays counts if the
    /// tier may have written it.
    fn dispose(&mut self, path: PathBuf, disposition: Disposition, recovered: &mut Recovered) {
        let error = match disposition {
            Disposition::Gone => return,
            Disposition::Remove(why) => match self.files.remove(&path) {
                Ok(()) => return recovered.removed.push((path, why)),
                Err(source) if source.kind() == io::ErrorKind::NotFound => return,
                Err(source) => {
                    let bytes = self.count_left(&path, recovered);
                    let paths = vec![path.clone()];
                    self.stale_files.push(StaleFile { paths, bytes });
                    TierError::from_io(&path, source)
                }
            },
            Disposition::Leave(why) => {
                if !matches!(why, TierError::Foreign { .. }) {
                    self.count_left(&path, recovered);
                }
                why
            }
        };
        recovered.left.push((path, error));
    }

    /// Counts a file that stays, with the size that the system reports.
    fn count_left(&mut self, path: &Path, recovered: &mut Recovered) -> usize {
        let bytes = self.files.bytes(path).unwrap_or(0);
        let bytes = footprint::file_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        self.used_bytes = self.used_bytes.saturating_add(bytes);
        recovered.left_bytes = recovered.left_bytes.saturating_add(bytes);
        bytes
    }

    /// Returns what to do with an unusable file, and why. The tier wrote it only if at least
    /// `magic_bytes_min` bytes of the magic are there.
    fn disposition(&mut self, path: &Path, why: TierError, magic_bytes_min: usize) -> Disposition {
        if !why.is_of_the_file() && !matches!(why, TierError::Unfinished { .. }) {
            return Disposition::Leave(why);
        }
        match self.is_ours(path, magic_bytes_min) {
            Ok(true) => Disposition::Remove(why),
            Ok(false) => Disposition::Leave(TierError::Foreign {
                path: path.to_owned(),
            }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Disposition::Gone,
            Err(source) => Disposition::Leave(TierError::from_io(path, source)),
        }
    }

    /// Whether a file begins with the magic as far as it goes, and has at least
    /// `magic_bytes_min` bytes of it. A file that was being written when the power failed may
    /// be empty.
    fn is_ours(&mut self, path: &Path, magic_bytes_min: usize) -> io::Result<bool> {
        let (mut file, bytes) = self.files.open(path)?;
        let mut begin = [0; MAGIC.len()];
        let length = begin
            .len()
            .min(usize::try_from(bytes).unwrap_or(usize::MAX));
        file.read(&mut begin[..length])?;
        Ok(length >= magic_bytes_min && begin[..length] == MAGIC[..length])
    }

    /// Returns an error if others may access the folder.
    pub(super) fn exposed(&mut self) -> Option<TierError> {
        let others = self.files.others_may(&self.folder).ok()?;
        (others != 0).then(|| TierError::Exposed {
            path: self.folder.clone(),
            mode: 0o700 | others,
        })
    }
}

fn label_budget_exceeded(bytes: usize, used_bytes: usize, bytes_max: usize) -> TierError {
    TierError::OutOfSpace {
        tier: "host memory for labels of copies",
        bytes,
        used_bytes,
        bytes_max,
    }
}

fn named(path: &Path) -> Named {
    let part = |of: Option<&std::ffi::OsStr>| of.and_then(|of| of.to_str()).map(str::to_owned);
    let (stem, extension) = (part(path.file_stem()), part(path.extension()));
    let number = stem.as_deref().and_then(number);
    match (extension.as_deref(), number) {
        (Some(SEGMENT), Some(number)) => Named::Segment(number),
        (Some(PART), Some(number)) => Named::Part(number),
        (Some(SEGMENT | PART), None) => Named::Misnamed,
        _ => Named::Other,
    }
}

/// Returns the number that 16 lower-case hexadecimal digits encode.
fn number(stem: &str) -> Option<u64> {
    let number = u64::from_str_radix(stem, 16).ok()?;
    (format!("{number:016x}") == stem).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_files_belong_to_the_tier() {
        let check = |name: &str, expected: Named| {
            assert_eq!(named(&Path::new("/tier").join(name)), expected, "{name}");
        };
        check("000000000000001f.segment", Named::Segment(31));
        check("000000000000001f.part", Named::Part(31));
        check("000000000000001F.segment", Named::Misnamed);
        check("1f.segment", Named::Misnamed);
        check("+00000000000001f.segment", Named::Misnamed);
        check("notes.part", Named::Misnamed);
        check("notes.segment.txt", Named::Other);
        check("segment", Named::Other);
        check(".segment", Named::Other);
        check(LOCK, Named::Other);
    }
}
