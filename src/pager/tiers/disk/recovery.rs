//! What is found in a folder when it is opened.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use super::header::{FIXED_BYTES, is_ours};
use super::{DiskTier, Files, Kept, Label, PART, Recovered, SEGMENT, TierError, read_failed};
use crate::CopyId;

/// The file whose lock is the folder's.
const LOCK: &str = "lock";

/// The lock of a folder, which is ours until this is dropped.
#[derive(Debug)]
pub(super) struct FolderLock(File);

/// What a file is by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// The file of this number.
    Segment(u64),
    /// One that was being written.
    Part,
    /// One that ends like ours and is not numbered.
    Misnamed,
    /// Something else.
    Other,
}

impl FolderLock {
    /// Whether the folder at this path is the one that was locked. One that was removed and
    /// made again is anybody's.
    pub(super) fn holds(&self, files: &mut dyn Files, folder: &Path) -> io::Result<bool> {
        files.is_locked(&folder.join(LOCK), &self.0)
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // To close the file is not enough where another thread is just starting a
        // process: until that runs a program of its own, it has the file open too.
        self.0.unlock().ok();
    }
}

/// Makes the folder if need be, and locks it.
pub(super) fn lock(files: &mut dyn Files, folder: &Path) -> Result<FolderLock, TierError> {
    let path = folder.to_owned();
    match files.create_folder(folder) {
        Ok(()) => {}
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => return Err(TierError::Missing { path }),
            io::ErrorKind::NotADirectory => return Err(TierError::NotAFolder { path }),
            // Where nothing can be made, the folder may be there all the same: the lock
            // will tell.
            io::ErrorKind::AlreadyExists | io::ErrorKind::ReadOnlyFilesystem => {}
            _ => return Err(TierError::of_system(folder, error)),
        },
    }
    let lock = folder.join(LOCK);
    let locked = files.lock(&lock).map(FolderLock);
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => TierError::Locked { path: lock },
        TryLockError::Error(source) => match source.kind() {
            io::ErrorKind::NotFound => TierError::Missing { path },
            io::ErrorKind::NotADirectory => TierError::NotAFolder { path },
            _ => TierError::of_system(&lock, source),
        },
    })
}

/// Locks a folder in which there is nothing, if there is one.
pub(super) fn lock_empty(files: &mut dyn Files, folder: &Path) -> Option<FolderLock> {
    let lock = folder.join(LOCK);
    let mut there = files.list(folder).ok()?.into_iter();
    let is_empty = there.all(|path| path == lock);
    is_empty.then(|| files.lock(&lock).ok().map(FolderLock))?
}

impl DiskTier {
    /// Looks at every file in the folder.
    pub(super) fn recover(&mut self, first: CopyId) -> Result<Recovered, TierError> {
        let listed = self.files.list(&self.folder);
        let mut paths = listed.map_err(|source| TierError::of_system(&self.folder, source))?;
        paths.sort_unstable();
        let mut recovered = Recovered::default();
        let mut believed = Vec::new();
        for path in paths {
            let unfit = match named(&path) {
                Named::Segment(number) => match self.open_file(&path, number) {
                    Ok((header, _)) => {
                        believed.push((number, header.label));
                        continue;
                    }
                    Err(error) => error,
                },
                Named::Part => TierError::Unfinished { path: path.clone() },
                Named::Misnamed if self.is_ours(&path) => {
                    TierError::damaged(&path, "it was renamed", "a number for a name")
                }
                Named::Misnamed => {
                    let error = TierError::Foreign { path: path.clone() };
                    recovered.left.push((path, error));
                    continue;
                }
                Named::Other => continue,
            };
            self.put_away(path, unfit, &mut recovered)?;
        }
        let last = believed.last().map(|(number, _)| *number);
        self.next = last.map_or(0, |last| last.saturating_add(1));
        self.keep(believed, first, &mut recovered)?;
        Ok(recovered)
    }

    /// Keeps what the budget allows, each state once. Files come oldest first.
    fn keep(
        &mut self,
        files: Vec<(u64, Label)>,
        first: CopyId,
        recovered: &mut Recovered,
    ) -> Result<(), TierError> {
        let state = |label: &Label| {
            let tokens = label.tokens.clone();
            (label.salt, tokens, label.start, label.beyond)
        };
        let newest: FxHashMap<_, u64> = files
            .iter()
            .map(|(number, label)| (state(label), *number))
            .collect();
        let mut kept = Vec::new();
        let mut is_full = false;
        for (number, label) in files.into_iter().rev() {
            let path = self.path(number);
            let bytes = Self::bytes_taken(label.tokens.len(), label.bytes);
            if newest[&state(&label)] != number {
                self.put_away(path.clone(), TierError::Twice { path }, recovered)?;
                continue;
            }
            // What is kept is always the newest: nothing older than what had no room.
            is_full |= bytes > self.bytes_max - self.used_bytes;
            if is_full {
                let error = self.no_room(bytes);
                self.put_away(path, error, recovered)?;
                continue;
            }
            self.used_bytes += bytes;
            kept.push((Kept { number, bytes }, label));
        }
        for (id, (kept, label)) in (first.0..).zip(kept.into_iter().rev()) {
            self.copies.insert(CopyId(id), kept);
            recovered.copies.push((CopyId(id), label));
        }
        Ok(())
    }

    /// Removes a file that is of no use, and notes why.
    fn put_away(
        &mut self,
        path: PathBuf,
        why: TierError,
        recovered: &mut Recovered,
    ) -> Result<(), TierError> {
        let removed = self.files.remove(&path);
        removed.map_err(|source| TierError::of_system(&path, source))?;
        recovered.removed.push((path, why));
        Ok(())
    }

    /// Whether a file begins like ours.
    fn is_ours(&mut self, path: &Path) -> bool {
        let mut begin = [0; FIXED_BYTES];
        let opened = self.files.open(path);
        let read = opened.and_then(|(mut file, _)| file.read(&mut begin));
        read.map_err(|source| read_failed(path, source)).is_ok() && is_ours(&begin)
    }
}

fn named(path: &Path) -> Named {
    let part = |of: Option<&std::ffi::OsStr>| of.and_then(|of| of.to_str()).map(str::to_owned);
    let (stem, extension) = (part(path.file_stem()), part(path.extension()));
    let number = stem.as_deref().and_then(number);
    match (extension.as_deref(), number) {
        (Some(SEGMENT), Some(number)) => Named::Segment(number),
        (Some(PART), Some(_)) => Named::Part,
        (Some(SEGMENT | PART), None) => Named::Misnamed,
        _ => Named::Other,
    }
}

/// The number that 16 lower-case hexadecimal digits are.
fn number(stem: &str) -> Option<u64> {
    let number = u64::from_str_radix(stem, 16).ok()?;
    (format!("{number:016x}") == stem).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_files_are_taken_for_ours() {
        let check = |name: &str, expected: Named| {
            assert_eq!(named(&Path::new("/tier").join(name)), expected, "{name}");
        };
        check("000000000000001f.segment", Named::Segment(31));
        check("000000000000001f.part", Named::Part);
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
