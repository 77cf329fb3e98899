//! Journals of responses in the background: a server that starts again goes on with their answers.
//!
//! | what is written | when |
//! |---|---|
//! | the request, with the conversation before it and the seed | before the client gets the id |
//! | tokens and their events | at most four times a second, and all of them when the server ends |
//! | the end | at the end; the file is removed with the recording |
//!
//! A crash loses the tokens of the last quarter of a second. They are computed again, to the same events:
//! tokens, pieces and ids follow from the request, the seed and the output so far. A journal that cannot
//! be written is given up, and its response goes on without it.

mod file;
mod folder;
mod format;

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use motet::TokenId;
use motet::chat::ChatEvent;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use super::response::End;

pub(super) use file::JournalFile;
pub(super) use folder::{Journals, Saved};
pub(super) use format::{Entry, Header};
use format::{Event, Frame, MAGIC};

/// Time between two writes of a journal, if less than [`WRITE_BYTES`] wait.
const WRITE_INTERVAL: Duration = Duration::from_millis(250);
const WRITE_BYTES: usize = 64 << 10;
/// Bytes that may wait while the disk writes. More end the journal: the disk is too slow.
const PENDING_BYTES_MAX: usize = 4 << 20;
/// Longest time that a client waits for the first write.
const FIRST_WRITE_MAX: Duration = Duration::from_secs(2);

/// Writes the journal of one response.
#[derive(Debug)]
pub(super) struct Journal {
    file: Arc<JournalFile>,
    /// Events whose tokens have not been [taken](crate::conversation::Answers::take_tokens).
    events: Vec<Event>,
    /// Entries that are not written.
    pending: Vec<Entry>,
    pending_bytes: usize,
    /// The number of the first of them.
    first: u64,
    written_at: Instant,
    writing: Option<JoinHandle<()>>,
    /// Whether the response is being answered. Else the file is removed with this: its client has gone
    /// without the id.
    is_answered: bool,
    /// The disk was too slow: nothing more is written.
    is_given_up: bool,
}

/// The bytes of all journals, by key.
#[derive(Debug)]
struct Budget {
    bytes_max: usize,
    used: Mutex<HashMap<Option<Arc<str>>, usize>>,
}

impl Journal {
    /// Begins the journal of a response, and writes its request.
    pub(super) fn begin(
        file: JournalFile,
        header: impl FnOnce() -> Header + Send + 'static,
    ) -> Self {
        let mut journal = Self::resumed(Arc::new(file), 0);
        journal.is_answered = false;
        journal.write(move || {
            let mut bytes = MAGIC.to_vec();
            format::write(&header(), &mut bytes);
            bytes
        });
        journal
    }

    /// Goes on with the journal of a response, which has so many entries.
    pub(super) fn resumed(file: Arc<JournalFile>, entries: usize) -> Self {
        Self {
            file,
            events: Vec::new(),
            pending: Vec::new(),
            pending_bytes: 0,
            first: entries as u64,
            written_at: Instant::now(),
            writing: None,
            is_answered: true,
            is_given_up: false,
        }
    }

    /// Returns when the request is written, or when a disk does not answer in time.
    pub(super) async fn begun(&mut self) {
        timeout(FIRST_WRITE_MAX, self.written()).await.ok();
    }

    /// Notes that the response is being answered.
    pub(super) fn answered(&mut self) {
        self.is_answered = true;
    }

    /// Its file.
    pub(super) fn file(&self) -> Arc<JournalFile> {
        Arc::clone(&self.file)
    }

    /// Whether a restart will go on with the answer.
    pub(super) fn is_kept(&self) -> bool {
        !self.is_given_up && self.file.is_kept()
    }

    /// Adds an event of the answer.
    pub(super) fn push(&mut self, event: &ChatEvent) {
        if self.is_given_up {
            return;
        }
        if let ChatEvent::Delta { delta, logprobs } = event {
            let event = Event::new(delta, logprobs);
            self.pending_bytes += event.bytes();
            self.events.push(event);
        }
    }

    /// Adds the tokens of the events so far, and writes if it is time.
    pub(super) fn push_tokens(&mut self, tokens: Vec<TokenId>) {
        if self.is_given_up {
            return;
        }
        self.pending_bytes += size_of::<Entry>() + tokens.len() * size_of::<TokenId>();
        let events = mem::take(&mut self.events);
        self.pending.push(Entry { tokens, events });
        let is_due =
            self.pending_bytes >= WRITE_BYTES || self.written_at.elapsed() >= WRITE_INTERVAL;
        if self.writing.as_ref().is_some_and(|it| !it.is_finished()) {
            if self.pending_bytes > PENDING_BYTES_MAX {
                tracing::warn!("a restart will not continue a response: the disk is too slow");
                // Entries after these would leave a gap until the file is removed.
                self.is_given_up = true;
                self.file.remove_later();
                self.pending = Vec::new();
                self.pending_bytes = 0;
            }
        } else if is_due {
            self.write_pending(None);
        }
    }

    /// Writes all entries. Events after the last of them are left out: they are computed again.
    pub(super) async fn flush(&mut self) {
        self.written().await;
        self.write_pending(None);
        self.written().await;
    }

    /// Writes the rest and the end.
    pub(super) async fn end(&mut self, end: End) {
        if !self.events.is_empty() {
            // The last pieces have no tokens, and their events are part of the answer.
            self.push_tokens(Vec::new());
        }
        self.written().await;
        self.write_pending(Some(end));
        self.written().await;
    }

    async fn written(&mut self) {
        if let Some(writing) = &mut self.writing {
            writing.await.ok();
            self.writing = None;
        }
    }

    fn write_pending(&mut self, end: Option<End>) {
        if self.is_given_up {
            return;
        }
        let entries = mem::take(&mut self.pending);
        let (first, count) = (self.first, entries.len());
        self.first += count as u64;
        self.pending_bytes = 0;
        if count == 0 && end.is_none() {
            return;
        }
        self.write(move || {
            let mut bytes = Vec::new();
            format::write(&Frame::Entries(first, entries), &mut bytes);
            if let Some(end) = end {
                format::write(&Frame::Ended(end), &mut bytes);
            }
            bytes
        });
    }

    fn write(&mut self, bytes: impl FnOnce() -> Vec<u8> + Send + 'static) {
        self.written_at = Instant::now();
        let file = Arc::clone(&self.file);
        self.writing = Some(spawn_blocking(move || {
            if file.is_kept() {
                file.append(&bytes());
            }
        }));
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if !self.is_answered {
            self.file.remove_later();
        }
    }
}

impl Budget {
    /// All journals take at most so many bytes, and those of a key half of them.
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            used: Mutex::default(),
        }
    }

    /// Counts more bytes of a key, if they fit.
    fn reserve(&self, key: &Option<Arc<str>>, bytes: usize) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = used.values().sum();
        let of_key = used.get(key).copied().unwrap_or_default();
        let fits =
            all.saturating_add(bytes) <= self.bytes_max && of_key + bytes <= self.bytes_max / 2;
        if fits {
            used.insert(key.clone(), of_key + bytes);
        }
        fits
    }

    fn free(&self, key: &Option<Arc<str>>, bytes: usize) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_key) = used.get_mut(key) {
            *of_key -= bytes;
            if *of_key == 0 {
                used.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_half_of_the_bytes() {
        let budget = Budget::new(100);
        let [ann, bob, open] = [Some("ann".into()), Some("bob".into()), None];
        assert!(budget.reserve(&ann, 50));
        assert!(!budget.reserve(&ann, 1), "more than half");
        assert!(budget.reserve(&bob, 30) && budget.reserve(&open, 20));
        assert!(!budget.reserve(&bob, 1), "more than all");
        budget.free(&ann, 50);
        assert!(budget.reserve(&bob, 20) && !budget.reserve(&bob, 1));
        budget.free(&open, 20);
        assert_eq!(budget.used.into_inner().expect("no panic").len(), 1);
    }
}
