//! The lookups and loads that have not ended: which sequence waits for which copies.
//!
//! A copy is loaded for one sequence at a time. A sequence that needs a copy of another's load
//! joins that load, and looks up again when it ends.

use std::collections::BTreeMap;

use super::catalog::{Catalog, Presence};
use super::copy_queues::MemoryQueue;
use motet_protocol::pager::{CopyRange, Effect, PagerEvent};
use motet_protocol::{CopyId, SequenceId};

/// Pending lookups and loads, and events that wait for the end of an unpack job.
#[derive(Debug, Default)]
pub(super) struct Loads {
    pending: BTreeMap<SequenceId, PendingLoad>,
    /// The copies that are being loaded.
    loading: BTreeMap<CopyId, Loading>,
    /// Events to send when an unpack job without a waiting sequence has ended and its detached
    /// state was discarded.
    deferred: Vec<(CopyId, PagerEvent)>,
}

/// A lookup or load that has not ended.
#[derive(Debug)]
struct PendingLoad {
    copy_ranges: Vec<CopyRange>,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The cache knows the copies and has not asked to load them yet.
    Hit,
    /// The copies are being loaded; `ready` detached states are ready.
    Loading { ready: usize },
    /// Another sequence loads this copy, which this one needs as well.
    Joined(CopyId),
}

/// The load of one copy.
#[derive(Debug)]
struct Loading {
    /// The sequence that it is loaded for.
    sequence: SequenceId,
    /// Other sequences that look up again when the load ends.
    joined: Vec<SequenceId>,
}

/// A detached state that is ready.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// No sequence waits for it any more.
    Unclaimed,
    /// The sequence waits for more of them.
    Partly,
    /// All copies of this sequence are ready.
    Fully(SequenceId, Vec<CopyId>),
}

impl PendingLoad {
    /// Returns the copies that it uses.
    fn copies(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.copy_ranges.iter().map(|copy_range| copy_range.copy)
    }
}

impl Loads {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the sequences with a lookup or load.
    pub(super) fn sequences(&self) -> Vec<SequenceId> {
        self.pending.keys().copied().collect()
    }

    /// Returns the copies that were found for the sequence, or `None` if it has no lookup.
    pub(super) fn copies_of(&self, sequence: SequenceId) -> Option<Vec<CopyId>> {
        let pending_load = self.pending.get(&sequence)?;
        Some(pending_load.copies().collect())
    }

    /// Returns the sequence that the copy is loaded for.
    pub(super) fn waits_for(&self, copy: CopyId) -> Option<SequenceId> {
        self.loading.get(&copy).map(|loading| loading.sequence)
    }

    /// Records the copies that were found for a sequence, and keeps them for it.
    pub(super) fn found(
        &mut self,
        sequence: SequenceId,
        copy_ranges: Vec<CopyRange>,
        catalog: &mut Catalog,
    ) {
        for copy_range in &copy_ranges {
            catalog.acquire(copy_range.copy);
        }
        let stage = Stage::Hit;
        self.pending
            .insert(sequence, PendingLoad { copy_ranges, stage });
    }

    /// Lets a sequence wait for the end of another's load of this copy. Returns false if none
    /// loads it.
    pub(super) fn join(&mut self, sequence: SequenceId, copy: CopyId) -> bool {
        let Some(loading) = self.loading.get_mut(&copy) else {
            return false;
        };
        loading.joined.push(sequence);
        let (copy_ranges, stage) = (Vec::new(), Stage::Joined(copy));
        self.pending
            .insert(sequence, PendingLoad { copy_ranges, stage });
        true
    }

    /// Ends the wait of a sequence that has joined another's load. Returns false if it has not.
    pub(super) fn leave(&mut self, sequence: SequenceId) -> bool {
        let pending_load = self.pending.get(&sequence);
        let Some(Stage::Joined(copy)) = pending_load.map(|pending_load| &pending_load.stage) else {
            return false;
        };
        if let Some(loading) = self.loading.get_mut(copy) {
            loading.joined.retain(|other| *other != sequence);
        }
        self.pending.remove(&sequence);
        true
    }

    /// Starts to load the copies found for the sequence; none is being loaded.
    pub(super) fn begin(&mut self, sequence: SequenceId) {
        let pending_load = self.pending.get_mut(&sequence);
        let pending_load = pending_load.expect("a load that begins is pending");
        pending_load.stage = Stage::Loading { ready: 0 };
        for copy in pending_load.copies() {
            let joined = Vec::new();
            self.loading.insert(copy, Loading { sequence, joined });
        }
    }

    /// Counts a detached state that is ready.
    pub(super) fn unpacked(&mut self, copy: CopyId) -> Ready {
        let Some(sequence) = self.waits_for(copy) else {
            return Ready::Unclaimed;
        };
        let pending_load = self.pending.get_mut(&sequence);
        let pending_load = pending_load.expect("a waiting sequence has a pending load");
        let Stage::Loading { ready } = &mut pending_load.stage else {
            unreachable!("only a loading sequence waits for a detached state")
        };
        *ready += 1;
        if *ready < pending_load.copy_ranges.len() {
            return Ready::Partly;
        }
        Ready::Fully(sequence, pending_load.copies().collect())
    }

    /// Discards the detached states that are ready for the sequence. One that is still being
    /// unpacked is not.
    pub(super) fn discard_ready(
        &self,
        sequence: SequenceId,
        catalog: &Catalog,
        memory: &MemoryQueue,
        effects: &mut Vec<Effect>,
    ) {
        let pending_load = &self.pending[&sequence];
        if !matches!(pending_load.stage, Stage::Loading { .. }) {
            return;
        }
        let is_ready = |name: &CopyId| {
            let copy = catalog.get(*name);
            let is_unpacked =
                copy.is_some_and(|copy| copy.host() == Presence::Present && !copy.is_unpacking());
            is_unpacked && !memory.is_waiting(*name)
        };
        effects.extend(pending_load.copies().filter(is_ready).map(Effect::Discard));
    }

    /// Returns the copy that is being unpacked for this sequence.
    pub(super) fn unpacking_for(
        &self,
        sequence: SequenceId,
        memory: &MemoryQueue,
    ) -> Option<CopyId> {
        let mut copies = self.pending[&sequence].copies();
        copies.find(|copy| self.waits_for(*copy) == Some(sequence) && memory.is_unpacking(*copy))
    }

    /// Releases the copies of a sequence; sequences that joined its load look up again. Returns
    /// the copies that no sequence waits for any more.
    pub(super) fn end(
        &mut self,
        sequence: SequenceId,
        catalog: &mut Catalog,
        effects: &mut Vec<Effect>,
    ) -> Vec<CopyId> {
        let pending_load = self.pending.remove(&sequence);
        let pending_load = pending_load.expect("a load that ends is pending");
        for copy in pending_load.copies() {
            catalog.release(copy);
            if self.waits_for(copy) == Some(sequence)
                && let Some(ended) = self.loading.remove(&copy)
            {
                for other in ended.joined {
                    self.pending.remove(&other);
                    effects.push(Effect::Notify(PagerEvent::Retry { sequence: other }));
                }
            }
        }
        let copies = pending_load.copies();
        copies
            .filter(|copy| !self.loading.contains_key(copy))
            .collect()
    }

    /// Confirms a cancel of a sequence without a lookup. Its answer has been sent already and
    /// crossed with the cancel, or waits for an unpack job whose detached state may be this
    /// sequence's.
    pub(super) fn confirm_cancel(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let miss = PagerEvent::miss(sequence);
        let mut deferred = self.deferred.iter();
        let answer = deferred.find(|(_, pager_event)| *pager_event == miss);
        let unpacking = answer.map(|(copy, _)| *copy);
        self.notify_after(unpacking, PagerEvent::Cancelled { sequence }, effects);
    }

    /// Sends the event, after the end of this copy's unpack job if there is one.
    pub(super) fn notify_after(
        &mut self,
        unpacking: Option<CopyId>,
        pager_event: PagerEvent,
        effects: &mut Vec<Effect>,
    ) {
        match unpacking {
            Some(copy) => self.deferred.push((copy, pager_event)),
            None => effects.push(Effect::Notify(pager_event)),
        }
    }

    /// Sends the events that waited for the unpack job of this copy.
    pub(super) fn notify_deferred(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let ended = self.deferred.extract_if(.., |(copy, _)| *copy == name);
        effects.extend(ended.map(|(_, pager_event)| Effect::Notify(pager_event)));
    }

    /// Drops the events that wait, after the device has lost all state.
    pub(super) fn drop_deferred(&mut self) {
        self.deferred.clear();
    }

    /// Checks that copies and sequences agree on what waits for what.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub(super) fn check_integrity(&self, catalog: &Catalog) {
        let mut users: BTreeMap<CopyId, usize> = BTreeMap::new();
        for copy in self.pending.values().flat_map(PendingLoad::copies) {
            *users.entry(copy).or_default() += 1;
        }
        for (name, copy) in catalog.iter() {
            let users_known = users.remove(&name).unwrap_or(0);
            assert_eq!(
                copy.users(),
                users_known,
                "{name:?}: users differ from pending loads"
            );
        }
        for (copy, loading) in &self.loading {
            assert!(catalog.get(*copy).is_some(), "a lost copy is being loaded");
            let stage = |sequence| self.pending.get(sequence).map(|pending| &pending.stage);
            assert!(
                matches!(stage(&loading.sequence), Some(Stage::Loading { .. })),
                "waiting sequence has no pending load"
            );
            let mut joined = loading.joined.iter();
            assert!(
                joined.all(|sequence| stage(sequence) == Some(&Stage::Joined(*copy))),
                "joined sequence has no pending lookup"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PagerConfig;
    use crate::pager::catalog::Budgets;
    use motet_protocol::SegmentSize;

    /// A copy that no catalog holds: these tests are about sequences.
    const COPY: CopyId = CopyId(1);

    fn loading() -> (Loads, Catalog) {
        let mut catalog = Catalog::new(Budgets::of(&PagerConfig::default()), 0);
        let mut loads = Loads::default();
        let copy_ranges = vec![CopyRange {
            copy: COPY,
            start: 0,
            segment_size: SegmentSize::whole(1),
            end: 1,
        }];
        assert!(!loads.join(SequenceId(2), COPY));
        loads.found(SequenceId(1), copy_ranges, &mut catalog);
        loads.begin(SequenceId(1));
        (loads, catalog)
    }

    #[test]
    fn joined_sequences_look_up_again_in_their_order() {
        let (mut loads, mut catalog) = loading();
        for joined in [4, 2, 3] {
            assert!(loads.join(SequenceId(joined), COPY));
        }
        assert!(loads.leave(SequenceId(2)));
        assert!(!loads.leave(SequenceId(1)));
        let mut effects = Vec::new();
        let idle = loads.end(SequenceId(1), &mut catalog, &mut effects);
        assert_eq!(idle, [COPY]);
        let [
            Effect::Notify(PagerEvent::Retry {
                sequence: SequenceId(4),
            }),
            Effect::Notify(PagerEvent::Retry {
                sequence: SequenceId(3),
            }),
        ] = effects[..]
        else {
            panic!("{effects:?}");
        };
        assert!(loads.is_empty());
        assert_eq!(loads.unpacked(COPY), Ready::Unclaimed);
    }

    /// Otherwise the cache would use the memory that the detached state still takes.
    #[test]
    fn cancel_is_confirmed_after_an_answer_that_waits() {
        let (mut loads, mut effects) = (Loads::default(), Vec::new());
        let miss = PagerEvent::miss(SequenceId(1));
        loads.notify_after(Some(COPY), miss, &mut effects);
        loads.confirm_cancel(SequenceId(1), &mut effects);
        assert!(effects.is_empty(), "{effects:?}");
        loads.confirm_cancel(SequenceId(2), &mut effects);
        assert_eq!(effects.len(), 1);
        loads.notify_deferred(COPY, &mut effects);
        let [
            _,
            Effect::Notify(PagerEvent::Miss { .. }),
            Effect::Notify(PagerEvent::Cancelled { .. }),
        ] = effects[..]
        else {
            panic!("{effects:?}");
        };
    }
}
