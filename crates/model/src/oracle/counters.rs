//! Counters of the oracle: work done, and state that is still alive.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use motet_protocol::DeviceMemory;

/// A handle to the counters of one oracle, or of several in a row: put the same handle into the
/// next one's configuration. Cheap to clone; any thread may read.
#[derive(Clone, Debug, Default)]
pub struct OracleCounters(Arc<Counts>);

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OracleCounts {
    /// Steps started, including those that failed.
    pub steps: u64,
    /// Spans of the steps that succeeded.
    pub spans: u64,
    /// Tokens evaluated by the steps that succeeded.
    pub tokens_evaluated: u64,
    /// Calls of [`Model::trim`](crate::Model::trim).
    pub trims: u64,
    /// Segments not dropped yet.
    pub segments_alive: usize,
    /// Tails not dropped yet.
    pub tails_alive: usize,
    /// Bytes that those segments and tails report.
    pub bytes_alive: usize,
    /// Peak of `bytes_alive`.
    pub bytes_peak: usize,
}

#[derive(Debug, Default)]
struct Counts {
    steps: AtomicU64,
    spans: AtomicU64,
    tokens_evaluated: AtomicU64,
    trims: AtomicU64,
    segments_alive: AtomicUsize,
    tails_alive: AtomicUsize,
    bytes_alive: AtomicUsize,
    bytes_peak: AtomicUsize,
}

/// The kind of state that a charge counts as.
#[derive(Clone, Copy, Debug)]
pub(super) enum StateKind {
    Segment,
    Tail,
}

/// One segment's or tail's share of the counts; dropping it subtracts the share.
#[derive(Debug)]
pub(super) struct Charge {
    counters: Mutex<OracleCounters>,
    state_kind: StateKind,
    bytes: usize,
}

impl OracleCounters {
    /// The counts now.
    #[must_use]
    pub fn now(&self) -> OracleCounts {
        let counts = &self.0;
        OracleCounts {
            steps: counts.steps.load(Relaxed),
            spans: counts.spans.load(Relaxed),
            tokens_evaluated: counts.tokens_evaluated.load(Relaxed),
            trims: counts.trims.load(Relaxed),
            segments_alive: counts.segments_alive.load(Relaxed),
            tails_alive: counts.tails_alive.load(Relaxed),
            bytes_alive: counts.bytes_alive.load(Relaxed),
            bytes_peak: counts.bytes_peak.load(Relaxed),
        }
    }

    /// Counts a step and returns its number, from 0.
    pub(super) fn begin_step(&self) -> u64 {
        self.0.steps.fetch_add(1, Relaxed)
    }

    pub(super) fn count_trim(&self) {
        self.0.trims.fetch_add(1, Relaxed);
    }

    pub(super) fn end_step(&self, spans: usize, tokens: usize) {
        self.0.spans.fetch_add(spans as u64, Relaxed);
        self.0.tokens_evaluated.fetch_add(tokens as u64, Relaxed);
    }

    pub(super) fn charge(&self, state_kind: StateKind, bytes: usize) -> Charge {
        self.add(state_kind, bytes);
        Charge {
            counters: Mutex::new(self.clone()),
            state_kind,
            bytes,
        }
    }

    fn add(&self, state_kind: StateKind, bytes: usize) {
        self.0.alive(state_kind).fetch_add(1, Relaxed);
        self.0.grow(bytes);
    }

    fn remove(&self, state_kind: StateKind, bytes: usize) {
        self.0.bytes_alive.fetch_sub(bytes, Relaxed);
        self.0.alive(state_kind).fetch_sub(1, Relaxed);
    }

    pub(super) fn memory(&self) -> DeviceMemory {
        let counts = self.now();
        DeviceMemory {
            active_bytes: counts.bytes_alive,
            peak_bytes: counts.bytes_peak,
        }
    }
}

impl Counts {
    fn alive(&self, state_kind: StateKind) -> &AtomicUsize {
        match state_kind {
            StateKind::Segment => &self.segments_alive,
            StateKind::Tail => &self.tails_alive,
        }
    }

    fn grow(&self, bytes: usize) {
        let alive = self.bytes_alive.fetch_add(bytes, Relaxed) + bytes;
        self.bytes_peak.fetch_max(alive, Relaxed);
    }
}

impl Charge {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn resize(&mut self, bytes: usize) {
        let counters = self.counters();
        if bytes > self.bytes {
            counters.0.grow(bytes - self.bytes);
        } else {
            counters
                .0
                .bytes_alive
                .fetch_sub(self.bytes - bytes, Relaxed);
        }
        drop(counters);
        self.bytes = bytes;
    }

    /// Moves the charge to other counters.
    pub(super) fn move_to(&self, counters: &OracleCounters) {
        let mut counted = self.counters();
        if !Arc::ptr_eq(&counted.0, &counters.0) {
            counted.remove(self.state_kind, self.bytes);
            counters.add(self.state_kind, self.bytes);
            *counted = counters.clone();
        }
    }

    /// No code panics under this lock, since it only moves numbers.
    fn counters(&self) -> MutexGuard<'_, OracleCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.counters().remove(self.state_kind, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_state_is_counted_on_its_new_device_only() {
        let (one, other) = (OracleCounters::default(), OracleCounters::default());
        let counts = |counters: &OracleCounters| {
            let now = counters.now();
            (now.segments_alive, now.bytes_alive, now.bytes_peak)
        };
        let mut charge = one.charge(StateKind::Segment, 5);
        charge.resize(8);
        charge.resize(7);
        assert_eq!(counts(&one), (1, 7, 8));
        charge.move_to(&other);
        charge.move_to(&other);
        assert_eq!((counts(&one), counts(&other)), ((0, 0, 8), (1, 7, 7)));
        drop(charge);
        assert_eq!((counts(&one), counts(&other)), ((0, 0, 8), (0, 0, 7)));
    }
}
