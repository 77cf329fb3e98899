//! One file of a repository: downloaded under a lock, continued where an earlier download ended,
//! checked, and put into place.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::address::encoded;
use super::client::{Answer, Client, Failure};
use super::digest;
use super::repository::Listed;
use crate::hub_cache::{Repository, create_folder, remove};
use crate::{FindError, Progress};

const CHUNK_BYTES: usize = 64 * 1024;
/// Time between two looks at a lock of another process.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// Downloads of one commit.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client<'a>,
    pub(super) cache: &'a Repository,
    pub(super) commit: &'a str,
}

/// A file whose digest and size are known.
struct Known<'a> {
    name: &'a str,
    path: String,
    digest: String,
    size: u64,
}

impl Download<'_> {
    /// Downloads the file into the snapshot, unless it is there.
    pub(super) fn file(
        &self,
        listed: &Listed,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), FindError> {
        if self.cache.snapshot(self.commit).join(&listed.name).exists() {
            return Ok(());
        }
        let known = self.known(listed, progress)?;
        let blob = self.cache.blob(&known.digest);
        let _lock = self.locked(&known, &partial(&blob), progress)?;
        let is_whole = |path: &Path| fs::metadata(path).is_ok_and(|file| file.len() == known.size);
        if !is_whole(&blob) {
            self.blob(&known, &blob, progress)?;
        }
        self.cache.link(self.commit, known.name, &known.digest)
    }

    /// Asks for the digest and the size of a file, where the listing lacks one of them.
    fn known<'a>(
        &self,
        listed: &'a Listed,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Known<'a>, FindError> {
        let name = listed.name.as_str();
        let path = format!(
            "/{}/resolve/{}/{}",
            self.client.repository(),
            self.commit,
            encoded(name)
        );
        let (digest, size) = match (&listed.digest, listed.size) {
            (Some(digest), Some(size)) => (Some(digest.clone()), Some(size)),
            (digest, size) => {
                let first = Some("bytes=0-0");
                let answer = self
                    .client
                    .attempts(name, progress, |_| self.client.get(&path, name, first))?;
                (
                    digest.clone().or(answer.digest),
                    size.or(answer.size).or(answer.whole),
                )
            }
        };
        let wrong = |what, expected| self.client.wrong(name, what, expected);
        let digest = digest.filter(|digest| digest::is_known(digest));
        Ok(Known {
            name,
            path,
            digest: digest.ok_or_else(|| wrong("no digest", "a SHA-256 in `x-linked-etag`"))?,
            size: size.ok_or_else(|| wrong("no size", "`x-linked-size`"))?,
        })
    }

    /// Waits for the lock, as long as the partial file grows. The system gives the lock up when its
    /// process ends.
    fn locked(
        &self,
        known: &Known<'_>,
        partial: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<File, FindError> {
        let path = self.cache.lock(&known.digest);
        create_folder(path.parent().expect("it is in the cache"))?;
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(|error| FindError::io("write", &path, error))?;
        let file = known.name;
        let wait = self.client.settings().lock_wait;
        let length = || fs::metadata(partial).map_or(0, |partial| partial.len());
        let (mut last, mut since) = (None, Instant::now());
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => {
                    return Err(FindError::Io {
                        action: "lock",
                        path,
                        source,
                        hint: ". HF_HUB_CACHE may name a folder whose file system has locks".into(),
                    });
                }
            }
            if last.is_none() {
                progress(Progress::Waiting { file });
            }
            let now = length();
            if last.replace(now) != Some(now) {
                since = Instant::now();
            } else if since.elapsed() >= wait {
                return Err(FindError::Locked {
                    lock: path,
                    file: file.to_owned(),
                    seconds: wait.as_secs(),
                });
            }
            std::thread::sleep(LOCK_INTERVAL.min(wait));
        }
    }

    /// Downloads the content, checks it and gives it its name.
    fn blob(
        &self,
        known: &Known<'_>,
        blob: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), FindError> {
        create_folder(blob.parent().expect("it is in the cache"))?;
        let partial = partial(blob);
        let mut longest = 0;
        self.client.attempts(known.name, progress, |progress| {
            self.attempt(known, &partial, &mut longest, progress)
        })?;
        let file = known.name;
        progress(Progress::Checking { file });
        let found = digest::of_file(&partial, &known.digest);
        let found = found.map_err(|error| FindError::io("read", &partial, error))?;
        if found != known.digest {
            remove(&partial)?;
            return Err(FindError::Digest {
                endpoint: self.client.endpoint().to_owned(),
                file: file.to_owned(),
                found,
                expected: known.digest.clone(),
            });
        }
        // The content is on the disk before the name: a crash leaves no empty model.
        let flushed = File::open(&partial).and_then(|file| file.sync_all());
        let placed = flushed.and_then(|()| fs::rename(&partial, blob));
        placed.map_err(|error| FindError::io("write", blob, error))
    }

    /// The error for an answer with success that is not of the file: a proxy's page, or another
    /// length.
    fn other_content(&self, known: &Known<'_>, answer: &Answer) -> FindError {
        let kind = if answer.is_html {
            "a page of HTML"
        } else {
            "a file"
        };
        let bytes = answer.whole.unwrap_or(0);
        let range = if answer.start.is_none() {
            ", an unreadable range"
        } else {
            ""
        };
        let what = format!("status {}, {kind}{range}, {bytes} bytes", answer.status);
        let expected = "the file, as long as it is listed";
        self.client.wrong(known.name, &what, expected)
    }

    /// Appends what the partial file lacks. `longest` is the longest that it has been.
    fn attempt(
        &self,
        known: &Known<'_>,
        partial: &Path,
        longest: &mut u64,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), Failure> {
        let cannot_write = |error| FindError::io("write", partial, error);
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(partial)
            .map_err(cannot_write)?;
        let mut start = file.metadata().map_err(cannot_write)?.len();
        if start > known.size {
            file.set_len(0).map_err(cannot_write)?;
            start = 0;
        }
        let gained_before = (*longest).max(start);
        let mut report = |bytes| {
            *longest = (*longest).max(bytes);
            progress(Progress::Downloading {
                file: known.name,
                bytes,
                bytes_all: known.size,
            });
        };
        report(start);
        if start == known.size {
            return Ok(());
        }
        let range = (start > 0).then(|| format!("bytes={start}-"));
        let answer = self.client.get(&known.path, known.name, range.as_deref())?;
        let is_other = answer.start.is_none_or(|first| first > start)
            || answer.whole.is_some_and(|size| size != known.size);
        if is_other || answer.is_html {
            return Err(self.other_content(known, &answer).into());
        }
        // A server without ranges sends the whole: the part that is there is read again, and kept.
        let first = answer.start.unwrap_or(0);
        let mut body = answer.into_reader();
        let copied = skip(&mut body, first..start, &mut report)
            .and_then(|()| append(&mut body, &mut file, start..known.size, &mut report));
        copied.map_err(|error| match error {
            Copy::Read { what, at } => Failure::Passing {
                what,
                wait: None,
                gained: at.saturating_sub(gained_before),
            },
            Copy::Write { source, missing } => Failure::Final(FindError::Io {
                action: "write",
                path: partial.to_owned(),
                source,
                hint: format!("; {missing} more bytes are needed there"),
            }),
        })
    }
}

/// Why a body did not become a file.
enum Copy {
    /// After `at` bytes of the file.
    Read {
        what: String,
        at: u64,
    },
    Write {
        source: io::Error,
        missing: u64,
    },
}

/// Reads the bytes of that range, which the file has.
fn skip(
    body: &mut dyn Read,
    range: std::ops::Range<u64>,
    report: &mut dyn FnMut(u64),
) -> Result<(), Copy> {
    copy(body, range, report, &mut |_| Ok(()))
}

/// Appends the bytes of that range to the file, and no more.
fn append(
    body: &mut dyn Read,
    file: &mut File,
    range: std::ops::Range<u64>,
    report: &mut dyn FnMut(u64),
) -> Result<(), Copy> {
    copy(body, range, report, &mut |bytes| file.write_all(bytes))
}

fn copy(
    body: &mut dyn Read,
    range: std::ops::Range<u64>,
    report: &mut dyn FnMut(u64),
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), Copy> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = range.start;
    while at < range.end {
        let most =
            usize::try_from(range.end - at).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        let bytes = match body.read(&mut chunk[..most]) {
            Ok(0) => {
                let what = format!("the answer ends after {at} bytes");
                return Err(Copy::Read { what, at });
            }
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let what = error.to_string();
                return Err(Copy::Read { what, at });
            }
        };
        let missing = range.end - at;
        write(&chunk[..bytes]).map_err(|source| Copy::Write { source, missing })?;
        at += bytes as u64;
        report(at);
    }
    Ok(())
}

fn partial(blob: &Path) -> PathBuf {
    blob.with_added_extension("incomplete")
}
