//! The lookups that wait for the remote tier: for its answer, or for copies that it sends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use motet_protocol::pager::{Ask, Lookup};
use motet_protocol::{CopyId, SequenceId};

/// Upper bound on the questions without an answer. A lookup that finds so many does not ask.
const ASKS_MAX: usize = 32;

/// Lookups that wait for the remote tier.
#[derive(Debug, Default)]
pub(super) struct Asks {
    waiting: BTreeMap<SequenceId, WaitingLookup>,
    /// Questions without an answer; those of sequences that no longer wait, too.
    unanswered: usize,
}

#[derive(Debug)]
struct WaitingLookup {
    lookup: Lookup,
    stage: Stage,
    /// When the sequence stops waiting.
    until: Duration,
}

#[derive(Debug)]
enum Stage {
    Asked,
    /// These copies are being fetched.
    Fetching(BTreeSet<CopyId>),
}

impl Asks {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether one more question may be asked.
    pub(super) fn can_add(&self) -> bool {
        self.unanswered < ASKS_MAX
    }

    /// The sequences that wait.
    pub(super) fn sequences(&self) -> Vec<SequenceId> {
        self.waiting.keys().copied().collect()
    }

    /// Lets a lookup wait for an answer.
    pub(super) fn add(&mut self, lookup: Lookup, until: Duration) {
        let waiting = WaitingLookup {
            stage: Stage::Asked,
            lookup,
            until,
        };
        self.unanswered += 1;
        self.waiting.insert(waiting.lookup.sequence, waiting);
    }

    /// Counts the answer to this question, and ends the wait for it. `None` if nothing waits for it
    /// any more.
    pub(super) fn answered(&mut self, ask: &Ask) -> Option<Lookup> {
        // A core before this one may have asked.
        self.unanswered = self.unanswered.saturating_sub(1);
        let waiting = self.waiting.get(&ask.sequence)?;
        // A later lookup of the sequence has tokens of its own.
        let is_same = Arc::ptr_eq(&waiting.lookup.tokens, &ask.tokens)
            && matches!(waiting.stage, Stage::Asked);
        is_same.then(|| self.take(ask.sequence)).flatten()
    }

    /// Lets a lookup wait for copies.
    pub(super) fn add_fetching(
        &mut self,
        lookup: Lookup,
        copies: BTreeSet<CopyId>,
        until: Duration,
    ) {
        let waiting = WaitingLookup {
            stage: Stage::Fetching(copies),
            lookup,
            until,
        };
        self.waiting.insert(waiting.lookup.sequence, waiting);
    }

    /// Whether a lookup waits for this copy.
    pub(super) fn waits_for(&self, copy: CopyId) -> bool {
        self.waiting.values().any(|one| one.waits_for(copy))
    }

    /// Records that a copy has come, and returns the lookups that wait for no other.
    pub(super) fn fetched(&mut self, copy: CopyId) -> Vec<Lookup> {
        for waiting in self.waiting.values_mut() {
            if let Stage::Fetching(copies) = &mut waiting.stage {
                copies.remove(&copy);
            }
        }
        self.take_where(|one| matches!(&one.stage, Stage::Fetching(copies) if copies.is_empty()))
    }

    /// Returns the lookups that wait for this copy, which will not come.
    pub(super) fn not_fetched(&mut self, copy: CopyId) -> Vec<Lookup> {
        self.take_where(|one| one.waits_for(copy))
    }

    /// Returns the lookups that have waited long enough, and whether one has waited for an answer.
    pub(super) fn expired(&mut self, now: Duration) -> (Vec<Lookup>, bool) {
        let mut waiting = self.waiting.values();
        let was_asked = waiting.any(|one| one.until <= now && matches!(one.stage, Stage::Asked));
        (self.take_where(|one| one.until <= now), was_asked)
    }

    /// Returns all lookups that wait.
    pub(super) fn take_all(&mut self) -> Vec<Lookup> {
        self.take_where(|_| true)
    }

    /// When [`expired`](Self::expired) finds a lookup.
    pub(super) fn wakes_at(&self) -> Option<Duration> {
        self.waiting.values().map(|one| one.until).min()
    }

    /// Ends the wait of a sequence.
    pub(super) fn take(&mut self, sequence: SequenceId) -> Option<Lookup> {
        self.waiting.remove(&sequence).map(|one| one.lookup)
    }

    fn take_where(&mut self, is_meant: impl Fn(&WaitingLookup) -> bool) -> Vec<Lookup> {
        let meant = self.waiting.iter().filter(|(_, one)| is_meant(one));
        let meant: Vec<SequenceId> = meant.map(|(sequence, _)| *sequence).collect();
        let lookups = meant.into_iter().filter_map(|sequence| self.take(sequence));
        lookups.collect()
    }
}

impl WaitingLookup {
    fn waits_for(&self, copy: CopyId) -> bool {
        matches!(&self.stage, Stage::Fetching(copies) if copies.contains(&copy))
    }
}
