//! A history in order: a digest of all of it, optionally its lines, and counts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

/// Lines that are kept while no time passes; an endless loop would write more.
const LINES_AT_ONCE_MAX: u64 = 1_000;
/// Messages may be long.
const LINE_CHARS_MAX: usize = 400;

/// Counts by name.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// A history in progress. Clones share it.
#[derive(Clone)]
pub(crate) struct Record(Arc<Mutex<Inner>>);

struct Inner {
    started_at: Instant,
    digest: u64,
    lines: Option<Vec<String>>,
    counts: Counts,
    /// Messages since the clock last moved, and its time.
    at_once: (u64, Instant),
}

/// A finished history.
#[derive(Debug)]
pub(crate) struct History {
    /// FNV-1a of all lines.
    pub(crate) digest: u64,
    pub(crate) lines: Vec<String>,
    pub(crate) counts: Counts,
}

impl Record {
    /// Starts a record. Lines are kept only on request.
    pub(crate) fn new(keeps_lines: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            started_at: Instant::now(),
            digest: 0xcbf2_9ce4_8422_2325,
            lines: keeps_lines.then(Vec::new),
            counts: Counts::new(),
            at_once: (0, Instant::now()),
        })))
    }

    /// Records a line.
    pub(crate) fn log(&self, what: fmt::Arguments<'_>) {
        let mut inner = self.inner();
        let line = format!("{:>12.6} {what}", inner.started_at.elapsed().as_secs_f64());
        for byte in line.bytes() {
            inner.digest = (inner.digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if let Some(lines) = &mut inner.lines {
            lines.push(line);
        }
    }

    /// Records that a core handles a message, and returns the number of messages since the
    /// clock last moved. The message's text is for readers, and not part of the digest.
    pub(crate) fn message(&self, core: &str, message: &dyn fmt::Debug) -> u64 {
        self.count("messages", 1);
        let mut inner = self.inner();
        let now = Instant::now();
        if inner.at_once.1 != now {
            inner.at_once = (0, now);
        }
        inner.at_once.0 += 1;
        let at_once = inner.at_once.0;
        let started_at = inner.started_at;
        if let Some(lines) = &mut inner.lines
            && at_once < LINES_AT_ONCE_MAX
        {
            let since = (now - started_at).as_secs_f64();
            let mut line = format!("{since:>12.6}   to the {core}: {message:?}");
            if let Some((end, _)) = line.char_indices().nth(LINE_CHARS_MAX) {
                line.truncate(end);
                line.push('…');
            }
            lines.push(line);
        }
        at_once
    }

    /// Counts so many occurrences of this kind.
    pub(crate) fn count(&self, what: &'static str, times: u64) {
        *self.inner().counts.entry(what).or_default() += times;
    }

    /// The history so far.
    pub(crate) fn history(&self) -> History {
        let mut inner = self.inner();
        History {
            digest: inner.digest,
            lines: inner.lines.take().unwrap_or_default(),
            counts: std::mem::take(&mut inner.counts),
        }
    }

    /// Locks the state. A panic elsewhere leaves the record consistent, so poison is ignored.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
