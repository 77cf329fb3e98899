//! What happened, in order: a digest of all of it, the lines themselves if somebody wants
//! to read them, and counts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

/// Of those who talk in circles so much is written down.
const LINES_AT_ONCE_MAX: u64 = 1_000;
/// Messages may be long.
const LINE_CHARS_MAX: usize = 400;

/// Counts by name.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// A history under way. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Record(Arc<Mutex<Inner>>);

struct Inner {
    started_at: Instant,
    digest: u64,
    lines: Option<Vec<String>>,
    counts: Counts,
    /// Messages since the clock stood elsewhere, and where it stands.
    at_once: (u64, Instant),
}

/// A history that has ended.
#[derive(Debug)]
pub(crate) struct History {
    /// FNV-1a of all lines.
    pub(crate) digest: u64,
    pub(crate) lines: Vec<String>,
    pub(crate) counts: Counts,
}

impl Record {
    /// Begins now. Lines are kept only if they are wanted.
    pub(crate) fn new(keeps_lines: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            started_at: Instant::now(),
            digest: 0xcbf2_9ce4_8422_2325,
            lines: keeps_lines.then(Vec::new),
            counts: Counts::new(),
            at_once: (0, Instant::now()),
        })))
    }

    /// Something has happened.
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

    /// A core takes in a message: the how manieth while the clock stands still. What it
    /// says is for those who read, and not part of the digest.
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

    /// Something of this kind has happened, so many times.
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

    /// A panic elsewhere leaves a record that is whole.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
