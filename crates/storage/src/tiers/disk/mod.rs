//! The disk tier: copies in a folder, found again after a restart.
//!
//! **Files.** Each copy is a file, `<number>.segment`, with a header and the payload. The
//! header holds all fields of the [`Label`], the model's identity, the number in its name, and
//! checksums of both parts. Numbers increase, so they order files by age. A file is written as
//! `<number>.part` and renamed when it is complete; it is never written again.
//!
//! **Checks.** A file is used only if all of it is as it was written. The header is checked
//! when the folder is opened and again when the copy is loaded; the payload is checked at each
//! load. For the salt, the file holds only a [digest](motet_core::cache::SaltDigest).
//!
//! **No `fsync`.** Files are not flushed to the disk before they are renamed. A killed process
//! loses nothing by that, since the system has the bytes. After a power failure, files may be
//! empty, short, or have blocks of zeros. Then the length or a checksum is wrong, and a copy is
//! lost that can be computed again. Flushing file and folder made a store two to four times as
//! long (`crates/storage/tests/pager_tiers/timings.rs`: 1.2 and 3.2 ms for 4 MiB on a virtual disk), for a
//! guarantee that the cache does not need.
//!
//! **Budget.** A file counts with the blocks that it takes, header included, before it is
//! written. A file that cannot be removed still counts, and its removal is retried; so does a
//! file that is missing because its folder is. The system's own bytes for the folder and the
//! lock are not counted. The labels of recovered copies take host memory; their number is
//! limited by that budget.
//!
//! **Removal.** Only files written by a disk tier are removed. They have a numbered name and
//! begin with its magic as far as they go: a file that was just created may be empty. A file
//! with the tier's extension and no number belongs to the tier only if all of the magic is
//! there. At the start, files are removed that are damaged, unfinished, of another model or
//! format, or beyond the budgets. The newest files have precedence: a file that does not fit is
//! removed, and older ones that fit are kept. A file that could not be read may be readable
//! later: it stays, counts, and is checked again at the next start. The number of an existing
//! file is never given to another.
//!
//! **Access.** The folder and its files hold prompts and outputs of users, and are created for
//! their owner only (0700 and 0600 on Unix). An existing folder that others may access is
//! reported and left unchanged, since that may be intended. A folder that replaces the tier's
//! own is treated like one that existed at the start.
//!
//! **Lost folder.** A folder that disappears does not damage its files: it may come back, for
//! example when a network disk does. Until then nothing is read or written. A folder that was
//! removed and created again is a different one, without the tier's lock: it counts as lost as
//! well, unless it is empty and can be locked. Then the tier starts empty in it.
//!
//! **One engine for each folder.** The folder is locked (advisory, `flock` on Unix) while the
//! tier lives. Files of another model or format are removed: give each model its own folder.

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
use motet_core::pager::{Label, footprint};
use motet_protocol::CopyId;

pub use files::{Files, OpenFile, SystemFiles};

/// Extension of a complete file.
const SEGMENT: &str = "segment";
/// Extension of a file while it is written.
const PART: &str = "part";
/// Bytes read at a time, and summed while they are in the processor's cache.
const PIECE_BYTES: usize = 256 << 10;

/// A tier that stores copies in a folder. See the module's documentation.
#[derive(Debug)]
pub struct DiskTier {
    files: Box<dyn Files>,
    folder: PathBuf,
    identity: u64,
    pool: BufferPool,
    copies: BTreeMap<CopyId, StoredFile>,
    /// Files that must be removed and could not be.
    stale_files: Vec<StaleFile>,
    /// Numbers of existing files that are no copies.
    numbers_taken: BTreeSet<u64>,
    used_bytes: usize,
    limits: DiskLimits,
    /// The number of the next file.
    next: u64,
    /// Held while the tier lives.
    lock: recovery::FolderLock,
}

/// Budgets of a disk tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLimits {
    /// Bytes of its files.
    pub bytes_max: usize,
    /// Bytes of host memory for the labels of copies recovered at the start: see
    /// [`Label::host_bytes`].
    pub label_bytes_max: usize,
}

/// The content of a folder when it was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The recovered copies, the oldest first.
    pub copies: Vec<(CopyId, Label)>,
    /// Files that were removed, with the reasons.
    pub removed: Vec<(PathBuf, TierError)>,
    /// Files that were left in place, with the reasons: they belong to others, could not be
    /// read, or could not be removed.
    pub left: Vec<(PathBuf, TierError)>,
    /// Bytes of the tier's budget that the files left in place take.
    pub left_bytes: usize,
    /// Set if others may access the folder.
    pub exposed: Option<TierError>,
}

/// A file of the tier.
#[derive(Clone, Copy, Debug)]
struct StoredFile {
    number: u64,
    /// Bytes of the budget that it takes.
    bytes: usize,
}

/// A file that must be removed.
#[derive(Debug)]
struct StaleFile {
    /// Names that it may have.
    paths: Vec<PathBuf>,
    /// Bytes of the budget that it takes.
    bytes: usize,
}

impl DiskTier {
    /// Opens the tier in `folder`, which is created if only its last part is missing.
    /// `identity` is the model's; recovered copies get ids from `first` on. The newest copies
    /// have precedence; copies that exceed `limits` are removed.
    ///
    /// # Errors
    ///
    /// [`TierError::Missing`], [`TierError::NotAFolder`], [`TierError::Locked`], or an error of
    /// the disk at the folder. Errors at single files are in [`Recovered::left`].
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

    /// Opens the tier on another file system, in which tests can inject failures.
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

    /// Returns the bytes of the budget that a copy with so many own tokens and payload bytes
    /// takes.
    #[must_use]
    pub fn bytes_taken(tokens: usize, bytes: usize) -> usize {
        footprint::disk_bytes(tokens, bytes)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}.{SEGMENT}"))
    }

    /// Writes a file under a temporary name, then renames it.
    fn write(&mut self, path: &Path, header: &[u8], payload: &[u8]) -> io::Result<()> {
        let part = path.with_extension(PART);
        let mut file = self.files.create(&part)?;
        file.append(header)?;
        file.append(payload)?;
        drop(file);
        self.files.rename(&part, path)
    }

    /// Returns a file's header, and the file positioned at the payload. `admit` is called with
    /// the number of tokens in the header before memory is allocated for them; its error is
    /// returned.
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

    /// Returns the payload of a file, if all of the file is as it was written.
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
            let what = "it holds the copy of another label";
            return Err(TierError::damaged(
                &path,
                what,
                "the copy of the requested label",
            ));
        }
        let mut buffer = self.pool.take(label.bytes)?;
        let mut sum = Checksum::new();
        for piece in buffer.chunks_mut(PIECE_BYTES) {
            file.read(piece)
                .map_err(|source| read_failed(&path, source))?;
            sum.update(piece);
        }
        if sum.finish() != header.payload_checksum {
            let what = "the payload's checksum does not match";
            return Err(TierError::damaged(
                &path,
                what,
                "the checksum in the header",
            ));
        }
        Ok(Arc::new(buffer))
    }

    /// Removes a file of the tier under either of its names: a failed rename may have been
    /// carried out. If the removal fails, the file still counts.
    fn discard(&mut self, file: StoredFile) -> Result<(), TierError> {
        let path = self.path(file.number);
        let paths = vec![path.with_extension(PART), path];
        let bytes = file.bytes;
        self.discard_stale(StaleFile { paths, bytes })
    }

    fn discard_stale(&mut self, stale_file: StaleFile) -> Result<(), TierError> {
        if let Err(lost) = self.find_folder() {
            // A file with this name in another folder is not the tier's.
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

    /// Returns a number that no file has.
    fn next_number(&mut self) -> u64 {
        while self.numbers_taken.contains(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    /// Returns an error if the folder is missing, or is not the one that was locked.
    fn find_folder(&mut self) -> Result<(), TierError> {
        let path = self.folder.clone();
        match self.lock.holds(&mut *self.files, &path) {
            Ok(false) => Err(TierError::Missing { path }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(TierError::Missing { path })
            }
            // The next operation reports other errors.
            _ => Ok(()),
        }
    }

    /// Starts empty in a folder that has replaced the tier's own, if it is empty and can be
    /// locked.
    fn start_empty(&mut self) -> Option<()> {
        let lock = recovery::lock_empty(&mut *self.files, &self.folder)?;
        self.lock = lock;
        self.copies.clear();
        self.stale_files.clear();
        self.numbers_taken.clear();
        self.used_bytes = 0;
        if let Some(exposed) = self.exposed() {
            tracing::warn!("prompts and outputs of users may be accessible to others: {exposed}");
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

    /// Retries failed removals.
    fn retry_removals(&mut self) {
        for stale_file in std::mem::take(&mut self.stale_files) {
            // The result is recorded in `stale_files` and `used_bytes`.
            self.discard_stale(stale_file).ok();
        }
    }
}

impl Tier for DiskTier {
    fn store(&mut self, copy: CopyId, label: &Label, bytes: &Arc<Buffer>) -> Result<(), TierError> {
        assert_eq!(
            bytes.len(),
            label.bytes,
            "the label names another number of bytes"
        );
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
            // A file that cannot be removed is recorded in `stale_files`.
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
            // The result is recorded in `stale_files`; the damage is the error to report.
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

/// A file that is missing or ends early is damaged; other errors are the disk's.
fn read_failed(path: &Path, source: io::Error) -> TierError {
    match source.kind() {
        io::ErrorKind::NotFound => TierError::damaged(path, "the file is missing", "a file"),
        io::ErrorKind::UnexpectedEof => {
            TierError::damaged(path, "the file ends early", "all of its bytes")
        }
        _ => TierError::from_io(path, source),
    }
}
