//! The disk tier: copies in a folder, found again after a restart.
//!
//! **Files.** Each copy is a file, `<number>.segment`, of a header and the payload. The
//! header has all that its [`Label`] has, the model's identity, the number of its name,
//! and checksums of both parts. Numbers go up, so they tell old from new. A file is
//! written as `<number>.part` and renamed when it is whole; it is never written again.
//!
//! **What is believed.** A file is believed only if all of it is as it was written: the
//! header when the folder is opened and again when the copy is loaded, the payload
//! whenever it is loaded. Of the salt the file has a [digest](motet_core::cache::SaltDigest) only.
//!
//! **No `fsync`.** Files are not flushed to the disk before they are renamed. A process
//! that is killed loses nothing by that, for the system has the bytes. When the power
//! fails, files may come back empty, short, or with blocks of zeros; then the length or
//! a checksum is wrong, and what is lost is a copy that can be computed again. Flushing
//! file and folder made a store two to four times as long (`tests/pager_tiers/timings.rs`:
//! 1.2 and 3.2 ms for 4 MiB on a virtual disk), for a promise that nobody needs.
//!
//! **Budget.** A file counts as the blocks that it takes, header and all, before it is
//! begun. A file that cannot be removed goes on counting, and is tried again; so does one
//! that is not there because the folder is not. What the system keeps for the folder itself
//! and the lock is not counted. What is known of the copies that are found takes host memory:
//! there are no more of them than that has room for.
//!
//! **What is removed.** Only files that a disk tier wrote. They have a numbered name, and
//! begin with its magic as far as they go: a file that was just begun may be empty. A file
//! that ends like ours and has no number is ours only if all of the magic is there. At the
//! start those are removed that are damaged, never finished, of another model or format, or
//! more than the budgets allow. The newest are kept first. A file without room is removed, and
//! older ones that fit are kept. One
//! that could not be read, for whatever reason, may be read another time: it is left where
//! it is, counts, and is looked at again at the next start. A number that any file has is
//! never given to another.
//!
//! **Who may read.** The folder and its files hold what users have said, and are made for
//! their owner only (0700 and 0600 on Unix). A folder that was there and that others may use
//! is reported and left as it is: it may be so for a reason. A folder that takes the place of
//! ours is looked at like one that was there at the start.
//!
//! **A folder that is lost** is no damage to what is in it: it may come back, as when a
//! disk that other machines serve does. Until then nothing is read or written. One that was
//! removed and made again is another, and its lock is not ours: it is lost as well, unless it
//! is empty and can be locked. Then the tier begins anew in it.
//!
//! **One engine a folder.** The folder is locked (advisory, `flock` on Unix) for as long
//! as the tier lives. The files of another model or format are removed: give each model a
//! folder.

mod files;
mod header;
mod recovery;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checksum::Checksum;
use super::{Buffer, BufferPool, Tier, TierError};
use header::{FIXED_BYTES, Fixed, Header};
use motet_core::CopyId;
use motet_core::pager::{Label, footprint};

pub use files::{Files, OpenFile, SystemFiles};

/// What a whole file's name ends with, after a dot.
const SEGMENT: &str = "segment";
/// What a file's name ends with while it is written.
const PART: &str = "part";
/// What file systems give a file room by, mostly.
/// How much is read, and then summed while the cache still has it.
const PIECE_BYTES: usize = 256 << 10;

/// A folder that keeps copies. See the module's documentation.
#[derive(Debug)]
pub struct DiskTier {
    files: Box<dyn Files>,
    folder: PathBuf,
    identity: u64,
    pool: BufferPool,
    copies: BTreeMap<CopyId, StoredFile>,
    /// Files that ought not to be there, and could not be removed.
    stale_files: Vec<StaleFile>,
    /// Numbers of files that were there before, and of which there is no copy.
    numbers_taken: BTreeSet<u64>,
    used_bytes: usize,
    limits: DiskLimits,
    /// The number of the next file.
    next: u64,
    /// Held as long as the folder is ours.
    lock: recovery::FolderLock,
}

/// What a tier may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLimits {
    /// Bytes of its files.
    pub bytes_max: usize,
    /// Bytes of host memory for what is known of the copies that are found at the start: see
    /// [`Label::host_bytes`].
    pub label_bytes_max: usize,
}

/// What was in a folder.
#[derive(Debug, Default)]
pub struct Recovered {
    /// What the tier has, the oldest first.
    pub copies: Vec<(CopyId, Label)>,
    /// Files that were removed, and why.
    pub removed: Vec<(PathBuf, TierError)>,
    /// Files that were left where they are, and why: they are somebody else's, could not be
    /// read, or could not be removed.
    pub left: Vec<(PathBuf, TierError)>,
    /// Bytes of the tier's budget that are taken by what was left.
    pub left_bytes: usize,
    /// That others may use the folder, if they may.
    pub exposed: Option<TierError>,
}

/// A file of ours.
#[derive(Clone, Copy, Debug)]
struct StoredFile {
    number: u64,
    /// What it takes of the budget.
    bytes: usize,
}

/// Files that ought not to be there.
#[derive(Debug)]
struct StaleFile {
    /// The names that it may have.
    paths: Vec<PathBuf>,
    /// What it takes of the budget.
    bytes: usize,
}

impl DiskTier {
    /// The tier in `folder`, which is made if only its last part is missing. `identity`
    /// is that of the model; the copies that are there get ids from `first` on. Copies
    /// are kept from the newest on; one that `limits` have no room for then is removed.
    ///
    /// # Errors
    ///
    /// [`TierError::Missing`], [`TierError::NotAFolder`], [`TierError::Locked`], or what
    /// the disk says of the folder. What it says of a file is in [`Recovered::left`].
    pub fn open(
        folder: &Path,
        limits: DiskLimits,
        identity: u64,
        pool: BufferPool,
        first: CopyId,
    ) -> Result<(Self, Recovered), TierError> {
        let files = Box::new(SystemFiles);
        Self::open_with(files, folder, limits, identity, pool, first)
    }

    /// The same on other files, which tests can make fail.
    ///
    /// # Errors
    ///
    /// See [`open`](Self::open).
    pub fn open_with(
        mut files: Box<dyn Files>,
        folder: &Path,
        limits: DiskLimits,
        identity: u64,
        pool: BufferPool,
        first: CopyId,
    ) -> Result<(Self, Recovered), TierError> {
        let lock = recovery::lock(&mut *files, folder)?;
        let mut tier = Self {
            files,
            folder: folder.to_owned(),
            identity,
            pool,
            copies: BTreeMap::new(),
            stale_files: Vec::new(),
            numbers_taken: BTreeSet::new(),
            used_bytes: 0,
            limits,
            next: 0,
            lock,
        };
        let recovered = tier.recover(first)?;
        Ok((tier, recovered))
    }

    /// What a copy takes of the budget, of so many tokens of its own and so many bytes.
    #[must_use]
    pub fn bytes_taken(tokens: usize, bytes: usize) -> usize {
        footprint::disk_bytes(tokens, bytes)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}.{SEGMENT}"))
    }

    /// Writes a file under another name, then gives it its own.
    fn write(&mut self, path: &Path, header: &[u8], payload: &[u8]) -> io::Result<()> {
        let part = path.with_extension(PART);
        let mut file = self.files.create(&part)?;
        file.append(header)?;
        file.append(payload)?;
        drop(file);
        self.files.rename(&part, path)
    }

    /// A file's header, and the file, to read on from there. `admit` is asked before memory
    /// is taken for so many tokens as the header has, and its error is the answer.
    fn open_file(
        &mut self,
        path: &Path,
        number: u64,
        admit: impl FnOnce(usize) -> Result<(), TierError>,
    ) -> Result<(Header, Box<dyn OpenFile>), TierError> {
        let failed = |source| read_failed(path, source);
        let (mut file, file_bytes) = self.files.open(path).map_err(failed)?;
        let mut begin = [0; FIXED_BYTES];
        file.read(&mut begin).map_err(failed)?;
        let fixed = Fixed::new(path, begin, file_bytes)?;
        admit(fixed.tokens())?;
        let mut tokens = vec![0; fixed.tokens_bytes()];
        file.read(&mut tokens).map_err(failed)?;
        let header = fixed.with(path, &tokens, self.identity, number)?;
        Ok((header, file))
    }

    /// The payload of a file, if all of the file is as it was written.
    fn read_payload(&mut self, number: u64, label: &Label) -> Result<Arc<Buffer>, TierError> {
        let path = self.path(number);
        let tokens_max = label.tokens.len();
        let admit = |tokens| {
            if tokens > tokens_max {
                let what = format!("a header of {tokens} tokens");
                let expected = format!("at most {tokens_max}");
                return Err(TierError::damaged(&path, what, expected));
            }
            Ok(())
        };
        let (header, mut file) = self.open_file(&path, number, admit)?;
        if header.label != *label {
            let what = "it is a copy of something else";
            return Err(TierError::damaged(&path, what, "that of its label"));
        }
        let mut buffer = self.pool.take(label.bytes)?;
        let mut sum = Checksum::new();
        for piece in buffer.chunks_mut(PIECE_BYTES) {
            file.read(piece)
                .map_err(|source| read_failed(&path, source))?;
            sum.update(piece);
        }
        if sum.finish() != header.payload_checksum {
            let what = "its payload's checksum is another";
            return Err(TierError::damaged(&path, what, "that of the header"));
        }
        Ok(Arc::new(buffer))
    }

    /// Removes a file of ours under either of its names: a rename may have failed after it
    /// was done. If that fails, the file goes on counting.
    fn discard(&mut self, file: StoredFile) -> Result<(), TierError> {
        let path = self.path(file.number);
        let paths = vec![path.with_extension(PART), path];
        let bytes = file.bytes;
        self.discard_stale(StaleFile { paths, bytes })
    }

    fn discard_stale(&mut self, stale_file: StaleFile) -> Result<(), TierError> {
        if let Err(lost) = self.find_folder() {
            // What has this name there now is another's.
            self.stale_files.push(stale_file);
            return Err(lost);
        }
        for path in &stale_file.paths {
            match self.files.remove(path) {
                Ok(()) => {}
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    let error = TierError::from_io(path, source);
                    self.stale_files.push(stale_file);
                    return Err(error);
                }
            }
        }
        self.used_bytes -= stale_file.bytes;
        Ok(())
    }

    /// A number that no file has.
    fn next_number(&mut self) -> u64 {
        while self.numbers_taken.contains(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    /// An error where the folder itself is not there any more, or is not the one that was
    /// locked.
    fn find_folder(&mut self) -> Result<(), TierError> {
        let path = self.folder.clone();
        match self.lock.holds(&mut *self.files, &path) {
            Ok(false) => Err(TierError::Missing { path }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(TierError::Missing { path })
            }
            // What else there may be is the matter of whatever is tried next.
            _ => Ok(()),
        }
    }

    /// Begins anew in a folder that has taken the place of ours, if that is empty and nobody
    /// else's.
    fn start_empty(&mut self) -> Option<()> {
        let lock = recovery::lock_empty(&mut *self.files, &self.folder)?;
        self.lock = lock;
        self.copies.clear();
        self.stale_files.clear();
        self.numbers_taken.clear();
        self.used_bytes = 0;
        if let Some(exposed) = self.exposed() {
            tracing::warn!("what users have said may be read by others: {exposed}");
        }
        Some(())
    }

    fn out_of_space(&self, bytes: usize) -> TierError {
        TierError::OutOfSpace {
            tier: "the disk tier",
            bytes,
            used_bytes: self.used_bytes,
            bytes_max: self.limits.bytes_max,
        }
    }

    /// Tries again to remove what could not be removed.
    fn retry_removals(&mut self) {
        for stale_file in std::mem::take(&mut self.stale_files) {
            // Whether it went is in `stale_files` and `used_bytes`.
            self.discard_stale(stale_file).ok();
        }
    }
}

impl Tier for DiskTier {
    fn store(&mut self, copy: CopyId, label: &Label, bytes: &Arc<Buffer>) -> Result<(), TierError> {
        assert_eq!(bytes.len(), label.bytes, "a label is that of its bytes");
        if self.copies.contains_key(&copy) {
            return Ok(());
        }
        if let Err(lost) = self.find_folder() {
            self.start_empty().ok_or(lost)?;
        }
        self.retry_removals();
        let needed = Self::bytes_taken(label.tokens.len(), label.bytes);
        if needed > self.limits.bytes_max.saturating_sub(self.used_bytes) {
            return Err(self.out_of_space(needed));
        }
        let number = self.next_number();
        let header = Header {
            identity: self.identity,
            number,
            label: label.clone(),
            payload_checksum: Checksum::of(bytes),
        };
        let stored_file = StoredFile {
            number,
            bytes: needed,
        };
        let path = self.path(number);
        self.used_bytes += needed;
        if let Err(source) = self.write(&path, &header.encode(), bytes) {
            // What cannot be removed either is in `stale_files`.
            self.discard(stored_file).ok();
            self.find_folder()?;
            return Err(TierError::from_io(&path, source));
        }
        self.copies.insert(copy, stored_file);
        Ok(())
    }

    fn load(&mut self, copy: CopyId, label: &Label) -> Result<Arc<Buffer>, TierError> {
        let stored_file = self.copies.get(&copy).copied();
        let stored_file = stored_file.ok_or(TierError::Unknown(copy))?;
        let loaded = self.read_payload(stored_file.number, label);
        if let Err(error) = &loaded
            && error.is_of_the_file()
        {
            self.find_folder()?;
            // What came of it is in `stale_files`; the damage is what there is to say.
            self.remove(copy).ok();
        }
        loaded
    }

    fn remove(&mut self, copy: CopyId) -> Result<(), TierError> {
        match self.copies.remove(&copy) {
            Some(stored_file) => self.discard(stored_file),
            None => Ok(()),
        }
    }

    fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}

/// A file that is gone, or ends early, is damaged; for all else the disk is to blame.
fn read_failed(path: &Path, source: io::Error) -> TierError {
    match source.kind() {
        io::ErrorKind::NotFound => TierError::damaged(path, "it is gone", "a file"),
        io::ErrorKind::UnexpectedEof => TierError::damaged(path, "it ends early", "all of it"),
        _ => TierError::from_io(path, source),
    }
}
