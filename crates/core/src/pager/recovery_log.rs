//! The recovery log: the state from which a panicked core is rebuilt.
//!
//! A [`PagerCore`](super::PagerCore) may panic, and is then discarded. The log holds the facts
//! that cannot be computed again: where each copy is, the jobs of the copy workers, and the
//! answers that the cache waits for. The actor that drives the core updates it from the core's
//! messages and effects. Effects lost in a panic have therefore not happened: the message that
//! was being handled is logged without an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::catalog::CopyEntry;
use crate::pager::Label;
use motet_protocol::lease::Lease;
use motet_protocol::pager::{Done, Effect, Job, Message, PagerEvent, Task};
use motet_protocol::{CopyId, SegmentId, SequenceId};

/// Copies, jobs and pending answers, as the copy workers and the cache know them.
#[derive(Debug, Default)]
pub struct RecoveryLog {
    copies: BTreeMap<CopyId, LoggedCopy>,
    /// Lost copies whose files are still to be removed.
    lost: BTreeSet<CopyId>,
    /// Offload candidates without a final answer; the cache bounds their number.
    offloads: Vec<Offloading>,
    /// Sequences that wait for a lookup or load.
    pending_loads: BTreeSet<SequenceId>,
    /// Cancels that are not confirmed, oldest first.
    cancels: Vec<SequenceId>,
    /// Detached states in the transfer queue that the cache does not know of.
    detached_states: Vec<CopyId>,
    /// The copy that is being unpacked.
    unpacking: Option<CopyId>,
    /// The job of the disk's copy worker.
    disk: Option<(CopyId, Task)>,
    /// The job of the remote tier's copy worker.
    remote: Option<(CopyId, Task, Arc<Label>)>,
    /// The cache waits for the confirmation of a reset.
    is_reset_pending: bool,
    /// The cache follows where copies are.
    is_followed: bool,
    /// The largest copy name given so far.
    made: u64,
}

/// A copy, and where it is.
#[derive(Debug)]
struct LoggedCopy {
    label: Arc<Label>,
    retention: u8,
    /// The export has been requested and its pack job has not ended.
    is_exporting: bool,
    in_host: bool,
    on_disk: bool,
    /// The cache has cancelled the export.
    is_export_cancelled: bool,
    /// The cache was cleared or gave the copy up: it is evicted when it is free.
    is_pending_eviction: bool,
}

/// An offload candidate without a final answer.
#[derive(Debug)]
struct Offloading {
    /// A second lease beside the core's own; it outlives the core.
    lease: Lease,
    retention: u8,
    /// The copy that it becomes, if the cache was asked to export it.
    copy: Option<CopyId>,
}

impl Offloading {
    fn segment(&self) -> SegmentId {
        self.lease.segment()
    }
}

impl RecoveryLog {
    /// Creates the log of a pager with these copies on its disk and nothing else.
    #[must_use]
    pub fn new(found: &[(CopyId, Label)]) -> Self {
        let logged_copy = |(name, label): &(CopyId, Label)| {
            let logged_copy = LoggedCopy {
                on_disk: true,
                ..LoggedCopy::new(Arc::new(label.clone()))
            };
            (*name, logged_copy)
        };
        Self {
            copies: found.iter().map(logged_copy).collect(),
            made: found.iter().map(|(name, _)| name.0).max().unwrap_or(0),
            ..Self::default()
        }
    }

    /// Records a message before the core handles it.
    pub fn on_message(&mut self, message: &Message) {
        match message {
            Message::OffloadCandidate(candidate) => self.offloads.push(Offloading {
                lease: candidate.lease.clone(),
                retention: candidate.retention,
                copy: None,
            }),
            Message::Follow { follows } => self.is_followed = *follows,
            Message::Lookup(lookup) => drop(self.pending_loads.insert(lookup.sequence)),
            Message::Cancel { sequence } => {
                self.pending_loads.remove(sequence);
                self.cancels.push(*sequence);
            }
            Message::Discard { sequence, copies } => {
                self.cancels.push(*sequence);
                // The detached states belong to the pager again.
                self.detached_states.extend(copies);
            }
            Message::CancelExport { copy } => {
                if let Some(logged_copy) = self.copies.get_mut(copy) {
                    logged_copy.is_export_cancelled = logged_copy.is_exporting;
                }
            }
            Message::Clear { salt } => {
                for logged_copy in self.copies.values_mut() {
                    let of_salt = salt.is_none_or(|salt| salt == logged_copy.label.key.salt);
                    logged_copy.is_pending_eviction |= of_salt;
                }
            }
            Message::GiveUp { copies } => {
                for copy in copies {
                    if let Some(logged_copy) = self.copies.get_mut(copy) {
                        logged_copy.is_pending_eviction = true;
                    }
                }
            }
            Message::Reset => self.is_reset_pending = true,
            Message::Done(done) => self.done(done),
            Message::Load { .. }
            | Message::Prefetch { .. }
            | Message::Share { .. }
            | Message::Asked(_)
            | Message::TimePassed => {}
        }
    }

    /// Records an effect of the core before it is carried out.
    pub fn on_effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Notify(pager_event) => self.pager_event(pager_event),
            Effect::Do(job) => self.job_started(job),
            Effect::Forget(copy) => {
                self.offloads
                    .retain(|offloading| offloading.copy != Some(*copy));
                self.change(*copy, |logged_copy| {
                    logged_copy.is_exporting = false;
                    logged_copy.in_host = false;
                });
            }
            Effect::Discard(copy) => self.forget_detached_state(*copy),
            Effect::DiscardAll => self.detached_states.clear(),
            Effect::Ask(_) => {}
        }
    }

    /// Returns the detached states in the transfer queue that have no owner if the pager is
    /// gone.
    #[must_use]
    pub fn detached_states(&self) -> &[CopyId] {
        &self.detached_states
    }

    /// The largest copy name given so far.
    pub(super) fn last_name(&self) -> u64 {
        self.made
    }

    /// Returns the copies, in their tiers or on their way there.
    pub(super) fn copies(&self) -> impl Iterator<Item = (CopyId, CopyEntry)> + '_ {
        let copies = self.copies.iter();
        copies.map(|(name, logged_copy)| (*name, self.resumed(*name, logged_copy)))
    }

    /// Lost copies whose files are still to be removed.
    pub(super) fn lost(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.lost.iter().copied()
    }

    /// Copies to evict when they are free.
    pub(super) fn pending_evictions(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.named(|logged_copy| logged_copy.is_pending_eviction)
    }

    /// Copies whose export the cache has cancelled.
    pub(super) fn cancelled_exports(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.named(|logged_copy| logged_copy.is_export_cancelled)
    }

    /// The copy that is being unpacked.
    pub(super) fn unpacking(&self) -> Option<CopyId> {
        self.unpacking
    }

    /// The job of the disk's copy worker.
    pub(super) fn disk_job(&self) -> Option<(CopyId, Task)> {
        self.disk
    }

    /// The job of the remote tier's copy worker.
    pub(super) fn remote_job(&self) -> Option<(CopyId, Task, Arc<Label>)> {
        self.remote.clone()
    }

    /// Whether the cache follows where copies are.
    pub(super) fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// Whether the cache waits for the confirmation of a reset.
    pub(super) fn is_reset_pending(&self) -> bool {
        self.is_reset_pending
    }

    /// Returns the answers to the offload candidates whose export has ended, or never began.
    pub(super) fn offload_answers(&self) -> impl Iterator<Item = PagerEvent> + '_ {
        self.offloads.iter().filter_map(|offloading| {
            let segment = offloading.segment();
            let copy = offloading.copy;
            match copy.and_then(|copy| Some((copy, self.copies.get(&copy)?))) {
                Some((_, logged_copy)) if logged_copy.is_exporting => None,
                Some((copy, _)) => Some(PagerEvent::Offloaded { segment, copy }),
                None => Some(PagerEvent::Rejected { segment }),
            }
        })
    }

    /// Returns the answers to all lookups, loads and cancels: sequences that wait compute.
    pub(super) fn load_answers(&self) -> impl Iterator<Item = PagerEvent> + '_ {
        let misses = self.pending_loads.iter().copied().map(PagerEvent::miss);
        let cancels = self.cancels.iter().copied().map(PagerEvent::cancelled);
        misses.chain(cancels)
    }

    fn named(&self, is_meant: fn(&LoggedCopy) -> bool) -> impl Iterator<Item = CopyId> + '_ {
        let copies = self.copies.iter();
        copies.filter_map(move |(name, logged_copy)| is_meant(logged_copy).then_some(*name))
    }

    /// Returns this copy with the jobs that go on.
    fn resumed(&self, name: CopyId, logged_copy: &LoggedCopy) -> CopyEntry {
        let is_at = |task| self.disk == Some((name, task)) || self.is_at_remote(name, task);
        let moves = [
            (logged_copy.is_exporting, Task::Pack),
            (is_at(Task::Read) && !logged_copy.in_host, Task::Read),
            (is_at(Task::Write) && !logged_copy.on_disk, Task::Write),
            (self.unpacking == Some(name), Task::Unpack),
            (is_at(Task::Fetch), Task::Fetch),
            (is_at(Task::Send) && logged_copy.in_host, Task::Send),
        ];
        let moves = moves.into_iter();
        let moves = moves.filter_map(|(moves, task)| moves.then_some(task));
        let mut offloads = self.offloads.iter();
        let lease = logged_copy.is_exporting.then(|| {
            let offloading = offloads.find(|offloading| offloading.copy == Some(name));
            let offloading = offloading.expect("an exporting copy has a pending offload");
            offloading.lease.clone()
        });
        CopyEntry::resumed(
            Arc::clone(&logged_copy.label),
            logged_copy.retention,
            logged_copy.in_host,
            logged_copy.on_disk,
            moves.collect(),
            lease,
        )
    }

    fn pager_event(&mut self, pager_event: &PagerEvent) {
        match pager_event {
            PagerEvent::Export { segment, copy } => {
                let new = |one: &&mut Offloading| one.segment() == *segment && one.copy.is_none();
                let offloading = self.offloads.iter_mut().find(new);
                let offloading = offloading.expect("an exported segment has a pending offload");
                offloading.copy = Some(*copy);
                let retention = offloading.retention;
                self.change(*copy, |logged_copy| logged_copy.retention = retention);
            }
            PagerEvent::Offloaded { segment, .. } | PagerEvent::Rejected { segment } => {
                self.answered(*segment)
            }
            PagerEvent::Miss { sequence, .. } | PagerEvent::Retry { sequence } => {
                self.pending_loads.remove(sequence);
            }
            PagerEvent::Loaded { sequence, copies } => {
                self.pending_loads.remove(sequence);
                // They belong to the cache from now on, which imports or discards them.
                for copy in copies {
                    self.forget_detached_state(*copy);
                }
            }
            PagerEvent::Cancelled { sequence } => {
                if let Some(at) = self.cancels.iter().position(|one| one == sequence) {
                    self.cancels.remove(at);
                }
            }
            PagerEvent::Reset => {
                self.offloads.clear();
                self.pending_loads.clear();
                self.cancels.clear();
                self.is_reset_pending = false;
            }
            PagerEvent::Lost { copy } => {
                // The label is dropped at once, however long the file stays.
                let lost = self.copies.remove(copy);
                let has_file = lost.is_some_and(|logged_copy| logged_copy.on_disk);
                self.lost.extend(has_file.then_some(*copy));
            }
            PagerEvent::Hit { .. } | PagerEvent::Placed { .. } | PagerEvent::Gone => {}
        }
    }

    /// Removes the candidate that is answered: the most recent one of this segment that is not
    /// being exported.
    fn answered(&mut self, segment: SegmentId) {
        let is_finished = |one: &Offloading| {
            let copy = one.copy.and_then(|copy| self.copies.get(&copy));
            one.segment() == segment && !copy.is_some_and(|copy| copy.is_exporting)
        };
        if let Some(at) = self.offloads.iter().rposition(is_finished) {
            self.offloads.remove(at);
        }
    }

    /// Removes one detached state of this copy: it is discarded, or belongs to the cache.
    fn forget_detached_state(&mut self, copy: CopyId) {
        let mut states = self.detached_states.iter();
        if let Some(at) = states.position(|detached_state| *detached_state == copy) {
            self.detached_states.swap_remove(at);
        }
    }

    fn job_started(&mut self, job: &Job) {
        let copy = job.copy;
        match job.task {
            Task::Pack => {
                self.made = self.made.max(copy.0);
                let logged_copy = LoggedCopy {
                    is_exporting: true,
                    ..LoggedCopy::new(Arc::clone(&job.label))
                };
                self.copies.insert(copy, logged_copy);
            }
            Task::Unpack => self.unpacking = Some(copy),
            Task::Read | Task::Write | Task::Remove => self.disk = Some((copy, job.task)),
            Task::Fetch | Task::Send => {
                if job.task == Task::Fetch {
                    self.made = self.made.max(copy.0);
                    let logged_copy = LoggedCopy::new(Arc::clone(&job.label));
                    self.copies.insert(copy, logged_copy);
                }
                self.remote = Some((copy, job.task, Arc::clone(&job.label)));
            }
        }
        if job.task == Task::Remove {
            self.lost.remove(&copy);
            self.change(copy, |logged_copy| logged_copy.on_disk = false);
        }
    }

    /// Records the end of a job.
    fn done(&mut self, done: &Done) {
        let (copy, succeeded) = (done.copy, done.result.is_ok());
        match done.task {
            Task::Unpack => {
                self.unpacking = None;
                self.detached_states.extend(succeeded.then_some(copy));
            }
            Task::Pack => {}
            Task::Read | Task::Write | Task::Remove => self.disk = None,
            Task::Fetch | Task::Send => self.remote = None,
        }
        self.change(copy, |logged_copy| match done.task {
            // A cancelled export is not stored.
            Task::Pack if logged_copy.is_exporting => {
                logged_copy.is_exporting = false;
                logged_copy.in_host = succeeded;
            }
            Task::Read | Task::Fetch => logged_copy.in_host = succeeded,
            Task::Write => logged_copy.on_disk = succeeded,
            Task::Pack | Task::Unpack | Task::Remove | Task::Send => {}
        });
    }

    /// Whether the remote tier's copy worker does this.
    fn is_at_remote(&self, copy: CopyId, task: Task) -> bool {
        let job = self.remote.as_ref();
        job.is_some_and(|(other, doing, _)| (*other, *doing) == (copy, task))
    }

    /// Changes a copy, if it exists, and removes it if it is in no tier any more.
    fn change(&mut self, copy: CopyId, change: impl FnOnce(&mut LoggedCopy)) {
        let Some(logged_copy) = self.copies.get_mut(&copy) else {
            return;
        };
        change(logged_copy);
        let is_present = logged_copy.is_exporting || logged_copy.in_host || logged_copy.on_disk;
        let is_written = self.disk == Some((copy, Task::Write));
        let comes = is_written || self.is_at_remote(copy, Task::Fetch);
        if !is_present && !comes {
            self.copies.remove(&copy);
        }
    }
}

impl LoggedCopy {
    fn new(label: Arc<Label>) -> Self {
        Self {
            label,
            retention: 0,
            is_exporting: false,
            in_host: false,
            on_disk: false,
            is_export_cancelled: false,
            is_pending_eviction: false,
        }
    }
}
