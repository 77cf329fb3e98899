//! The folder of journals, and what is found in it at a start.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions};
use std::io::{self, Read};
#[cfg(unix)]
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::format::{self, Entry, Frame, Header, MAGIC};
use super::{Budget, JournalFile};
use crate::app::App;
use crate::responses::ids::Ids;
use crate::responses::response::End;

/// The folder inside that of the disk tier.
const FOLDER: &str = "responses";
const EXTENSION: &str = "response";
const LOCK: &str = "lock";
/// Most journals that a start reads.
const JOURNALS_MAX: usize = 4096;
/// Most starts that go on with one answer: an answer that ends the server does not do so for ever.
const STARTS_MAX: usize = 8;
/// Longest time since the last write of an answer that goes on.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The journals of a server.
#[derive(Debug)]
pub(in super::super) struct Journals {
    folder: PathBuf,
    /// The identity of the model.
    pub(in super::super) model: u64,
    budget: Arc<Budget>,
    /// Held while the server runs: two that wrote one file would damage it.
    _lock: File,
}

/// A response whose journal was found.
#[derive(Debug)]
pub(in super::super) struct Saved {
    pub(in super::super) header: Header,
    pub(in super::super) entries: Vec<Entry>,
    pub(in super::super) end: Option<End>,
    pub(in super::super) file: Arc<JournalFile>,
}

/// The content of a file.
#[derive(Debug)]
struct Content {
    header: Header,
    entries: Vec<Entry>,
    end: Option<End>,
    starts: usize,
    /// Bytes up to the last good frame.
    bytes: usize,
}

impl Journals {
    /// Opens the journals beside the disk tier, if there is one. Without them, a warning says why.
    pub(in super::super) fn open(app: &App) -> Option<Arc<Self>> {
        let config = app.engine.config();
        let folder = config.pager.disk.as_ref()?.folder.join(FOLDER);
        let model = app.engine.model_identity()?;
        match lock(&folder) {
            Ok(lock) => Some(Arc::new(Self {
                folder,
                model,
                budget: Arc::new(Budget::new(config.scheduler.admission.results_bytes_max)),
                _lock: lock,
            })),
            Err(error) => {
                let folder = folder.display();
                tracing::warn!("a restart will continue no response: {folder}: {error}");
                None
            }
        }
    }

    /// The file of a new response.
    pub(in super::super) fn file(&self, ids: &Ids, key: Option<Arc<str>>) -> JournalFile {
        let path = self.folder.join(ids.random()).with_extension(EXTENSION);
        JournalFile::new(path, key, Arc::clone(&self.budget))
    }

    /// Reads all journals, the newest first. Those that are of no use are removed, with a warning.
    pub(in super::super) fn read(&self) -> Vec<Saved> {
        let found = match found(&self.folder) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!("cannot read {}: {error}", self.folder.display());
                return Vec::new();
            }
        };
        let mut all = Vec::new();
        for (number, (path, age)) in found.into_iter().enumerate() {
            let read = if number < JOURNALS_MAX {
                self.read_one(&path, age)
            } else {
                Err(invalid(format!("there are more than {JOURNALS_MAX}")))
            };
            match read {
                Ok(saved) => all.push(saved),
                Err(error) => remove(&path, &error),
            }
        }
        all
    }

    fn read_one(&self, path: &Path, age: Duration) -> io::Result<Saved> {
        let mut bytes = Vec::new();
        // No file of this server is longer.
        let bytes_max = self.budget.bytes_max as u64;
        File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
        let content = Content::read(&bytes)?;
        let ids = Ids::of(&content.header.id);
        let key = content.header.key.as_deref().map(Arc::from);
        let file = Arc::new(self.file(&ids, key));
        if path.file_stem() != Some(OsStr::new(ids.random())) {
            return Err(invalid("it was renamed".into()));
        }
        if content.header.model != self.model {
            return Err(invalid("its model was another".into()));
        }
        if content.end.is_none() && age > AGE_MAX {
            return Err(invalid("it is older than a day".into()));
        }
        if content.end.is_none() && content.starts >= STARTS_MAX {
            return Err(invalid(format!("it was continued {STARTS_MAX} times")));
        }
        file.reopen(content.bytes)?;
        if content.end.is_none() {
            let mut resumed = Vec::new();
            format::write(&Frame::Resumed, &mut resumed);
            file.append(&resumed);
        }
        Ok(Saved {
            header: content.header,
            entries: content.entries,
            end: content.end,
            file,
        })
    }
}

impl Content {
    fn read(bytes: &[u8]) -> io::Result<Self> {
        let rest = bytes.strip_prefix(&MAGIC);
        let mut rest = rest.ok_or_else(|| invalid("it is no journal of this version".into()))?;
        let header = format::read(&mut rest).ok_or_else(|| invalid("it is damaged".into()))?;
        let mut content = Self {
            header,
            entries: Vec::new(),
            end: None,
            starts: 0,
            bytes: bytes.len() - rest.len(),
        };
        while let Some(frame) = format::read(&mut rest) {
            match frame {
                Frame::Entries(first, entries) => {
                    let first = usize::try_from(first).unwrap_or(usize::MAX);
                    if first > content.entries.len() {
                        break;
                    }
                    content.entries.truncate(first);
                    content.entries.extend(entries);
                }
                Frame::Resumed => content.starts += 1,
                Frame::Ended(end) => content.end = Some(end),
            }
            content.bytes = bytes.len() - rest.len();
        }
        if content.end.is_none() {
            content.entries.truncate(resumable(&content.entries));
        }
        Ok(content)
    }
}

/// Removes a journal that is of no use. A file of another program stays.
fn remove(path: &Path, why: &io::Error) {
    let mut magic = Vec::new();
    let read = File::open(path).and_then(|file| file.take(8).read_to_end(&mut magic));
    let is_ours = read.is_ok() && (magic.is_empty() || magic.starts_with(&MAGIC[..7]));
    let done = if is_ours && fs::remove_file(path).is_ok() {
        "removed"
    } else {
        "left"
    };
    tracing::warn!(
        "a response is not continued: {} is {done}: {why}",
        path.display()
    );
}

/// The entries before the last token. That one may have ended its output: it is computed again, and the
/// end with it.
fn resumable(entries: &[Entry]) -> usize {
    let last = entries.iter().rposition(|entry| !entry.tokens.is_empty());
    last.unwrap_or(0)
}

/// The journals in a folder with the time since their last write, the newest first.
fn found(folder: &Path) -> io::Result<Vec<(PathBuf, Duration)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        found.extend(entry.and_then(|entry| journal(&entry)).transpose());
    }
    let mut found = found.into_iter().collect::<io::Result<Vec<_>>>()?;
    found.sort_by_key(|(_, age)| *age);
    Ok(found)
}

/// A plain file that is named like a journal.
fn journal(entry: &DirEntry) -> io::Result<Option<(PathBuf, Duration)>> {
    let path = entry.path();
    let is_named = path.extension().is_some_and(|found| found == EXTENSION);
    // The type is the entry's own: links are not followed.
    if !is_named || !entry.file_type()?.is_file() {
        return Ok(None);
    }
    let written_at = entry.metadata()?.modified()?;
    let age = SystemTime::now().duration_since(written_at);
    Ok(Some((path, age.unwrap_or_default())))
}

/// Makes the folder if needed, and locks it.
fn lock(folder: &Path) -> io::Result<File> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has modes"))]
    let mut folders = DirBuilder::new();
    #[cfg(unix)]
    folders.mode(0o700);
    match folders.create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    if !fs::symlink_metadata(folder)?.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory));
    }
    let path = folder.join(LOCK);
    if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
        return Err(invalid("its lock is no plain file".into()));
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    options.mode(0o600);
    let lock = options.open(path)?;
    lock.try_lock()?;
    Ok(lock)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responses::journal::Event;
    use motet::chat::Delta;

    const MODEL: u64 = 7;

    /// A folder that is removed with this, and its journals.
    struct Opened(Journals);

    impl Opened {
        fn new(name: &str, bytes_max: usize) -> Self {
            let folder = format!("motet-journals-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            fs::remove_dir_all(&folder).ok();
            let lock = lock(&folder).expect("a folder");
            Self(Journals {
                folder,
                model: MODEL,
                budget: Arc::new(Budget::new(bytes_max)),
                _lock: lock,
            })
        }

        /// Writes a journal with these frames.
        fn write(&self, id: &str, model: u64, frames: &[Frame]) -> PathBuf {
            let header = Header {
                model,
                key: None,
                id: id.to_owned(),
                created_at: 1,
                seed: 2,
                fields: "{}".into(),
                input: "{}".into(),
                history: None,
            };
            let mut bytes = MAGIC.to_vec();
            format::write(&header, &mut bytes);
            frames
                .iter()
                .for_each(|frame| format::write(frame, &mut bytes));
            let path = self.0.folder.join(id).with_extension(EXTENSION);
            fs::write(&path, bytes).expect("a file");
            path
        }
    }

    impl Drop for Opened {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0.folder).ok();
        }
    }

    fn entries(first: u64, tokens: &[u32]) -> Frame {
        let entry = |token: &u32| Entry {
            tokens: vec![*token],
            events: vec![Event::new(&Delta::Text(token.to_string()), &[])],
        };
        Frame::Entries(first, tokens.iter().map(entry).collect())
    }

    #[test]
    fn journals_of_no_use_are_removed() {
        let opened = Opened::new("useless", 1 << 20);
        let good = opened.write("a", MODEL, &[entries(0, &[1, 2])]);
        let foreign = opened.write("b", MODEL + 1, &[entries(0, &[1, 2])]);
        let starts: Vec<Frame> = (0..STARTS_MAX).map(|_| Frame::Resumed).collect();
        let restless = opened.write("c", MODEL, &starts);
        let old = opened.write("d", MODEL, &[]);
        let file = OpenOptions::new().write(true).open(&old).expect("a file");
        let written_at = SystemTime::now() - AGE_MAX - Duration::from_secs(9);
        file.set_modified(written_at).expect("a time");
        let read = opened.0.read();
        let ids: Vec<&str> = read.iter().map(|saved| &*saved.header.id).collect();
        assert_eq!(ids, ["a"]);
        assert!(good.exists());
        for path in [foreign, restless, old] {
            assert!(!path.exists(), "{}", path.display());
        }
    }

    #[test]
    fn entries_replace_those_of_their_numbers_and_the_last_token_is_computed_again() {
        let opened = Opened::new("entries", 1 << 20);
        let frames = [
            entries(0, &[1, 2, 3]),
            entries(2, &[4]),
            entries(3, &[5, 6]),
        ];
        opened.write("a", MODEL, &frames);
        let tokens = || -> Vec<u32> {
            let read = opened.0.read();
            let [saved] = &read[..] else {
                panic!("{read:?}")
            };
            let tokens = saved.entries.iter().flat_map(|entry| &entry.tokens);
            tokens.copied().collect()
        };
        assert_eq!(tokens(), [1, 2, 4, 5]);
        // Each start writes that it has been.
        for _ in 2..STARTS_MAX {
            assert_eq!(tokens(), [1, 2, 4, 5]);
        }
        let path = opened.write("a", MODEL, &[entries(0, &[1]), entries(5, &[9, 9])]);
        let bytes = fs::metadata(&path).expect("a file").len();
        assert!(tokens().is_empty());
        let after = fs::metadata(&path).expect("a file").len();
        assert!(after < bytes, "what follows a gap is dropped");
    }

    #[test]
    fn a_start_reads_no_more_bytes_than_a_key_may_have() {
        let opened = Opened::new("bytes", 4_000);
        let long: Vec<u32> = (0..60).collect();
        for id in ["a", "b", "c", "d"] {
            opened.write(id, MODEL, &[entries(0, &long)]);
        }
        let read = opened.0.read();
        let files = fs::read_dir(&opened.0.folder).expect("a folder").count();
        // The lock is there, too.
        assert_eq!(files, read.len() + 1);
        assert!((1..4).contains(&read.len()), "{}", read.len());
    }
}
