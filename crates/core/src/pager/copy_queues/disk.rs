//! The queue of the disk's worker.
//!
//! Copies that a sequence waits for are read first. Files are removed before others are
//! written. Prefetches come before writes, which are made before host memory runs short.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::rate::Rate;
use super::tier_state::TierState;
use crate::config::PagerConfig;
use crate::pager::catalog::{Catalog, CopyEntry};
use motet_protocol::CopyId;
use motet_protocol::pager::{Effect, Job, Task};
use motet_protocol::{KeyDigest, Label, Precision, SaltDigest};

/// Upper bound on the copies that wait to be prefetched.
const PREFETCHES_MAX: usize = 64;

/// The jobs that wait for the disk, the one in progress, and whether the disk works.
#[derive(Debug)]
pub(in crate::pager) struct DiskQueue {
    /// Copies to read because a sequence waits for them.
    to_read: VecDeque<CopyId>,
    /// Copies to read when there is no more urgent job.
    prefetches: VecDeque<CopyId>,
    /// The copy whose write waits for the removal of other files.
    space_freed_for: Option<CopyId>,
    /// The job in progress, and its start time.
    busy: Option<(CopyId, Task, Duration)>,
    state: TierState,
    /// Time after which a job in progress means that the disk does not respond.
    timeout: Duration,
    rate: Rate,
    /// Label of removal jobs: the label of an evicted copy no longer exists.
    no_label: Arc<Label>,
}

/// A step towards the next job of the disk.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::pager) enum Started {
    Job,
    /// A job that reads ahead.
    Prefetch,
    /// No job: files are to be removed before this queue's next write.
    SpaceFreed,
    /// No job: host memory is short for this copy, which a sequence waits for.
    OutOfMemory(CopyId),
}

impl DiskQueue {
    pub(in crate::pager) fn new(config: &PagerConfig) -> Self {
        let no_key = KeyDigest::of(SaltDigest([0; 32]));
        let no_label = Label::new(no_key, &[], 0, 0, Precision::Full, 0);
        Self {
            to_read: VecDeque::new(),
            prefetches: VecDeque::new(),
            space_freed_for: None,
            busy: None,
            state: TierState::new(config.disk.is_some()),
            timeout: config.disk_timeout,
            rate: Rate::guess(5e8),
            no_label: Arc::new(no_label),
        }
    }

    /// Takes over the job that a pager before this one has started.
    pub(in crate::pager) fn resume(&mut self, job: Option<(CopyId, Task)>, now: Duration) {
        self.busy = job.map(|(copy, task)| (copy, task, now));
    }

    /// Queues a copy that a sequence waits for.
    pub(in crate::pager) fn push(&mut self, name: CopyId) {
        self.to_read.push_back(name);
    }

    /// Queues a copy that a sequence will wait for. Returns false if it is queued already, or
    /// too many are.
    pub(in crate::pager) fn prefetch(&mut self, name: CopyId) -> bool {
        let is_new = self.prefetches.len() < PREFETCHES_MAX && !self.prefetches.contains(&name);
        if is_new {
            self.prefetches.push_back(name);
        }
        is_new
    }

    /// Removes a copy that no sequence waits for any more. A job in progress continues.
    pub(in crate::pager) fn remove(&mut self, name: CopyId) {
        self.to_read.retain(|other| *other != name);
    }

    /// Returns the copies that sequences wait for.
    pub(in crate::pager) fn waiting(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.to_read.iter().copied()
    }

    pub(in crate::pager) fn works(&self) -> bool {
        self.state.works()
    }

    /// Whether the disk does not respond, or has failed and not succeeded since.
    pub(in crate::pager) fn is_degraded(&self) -> bool {
        self.state.is_degraded()
    }

    /// Whether a job is in progress on a disk that works.
    pub(in crate::pager) fn is_working(&self) -> bool {
        self.works() && self.busy.is_some()
    }

    /// Expected time to read a copy.
    pub(in crate::pager) fn read_time(&self, copy: &CopyEntry) -> Duration {
        self.rate.time(copy.disk_bytes())
    }

    /// Returns when [`check`](Self::check) finds something new.
    pub(in crate::pager) fn wakes_at(&self) -> Option<Duration> {
        self.state.wakes_at(self.stalls_at())
    }

    /// Ends the rests that are due, and returns true if the disk has just been found not to
    /// respond.
    pub(in crate::pager) fn check(&mut self, now: Duration) -> bool {
        self.state.check(self.stalls_at(), now)
    }

    /// Empties the queue of a disk that does not work. Returns the copies that sequences wait
    /// for in vain, the one that is being read last.
    pub(in crate::pager) fn abandon_reads(&mut self) -> Vec<CopyId> {
        if self.works() {
            return Vec::new();
        }
        self.prefetches.clear();
        let read = self.busy.filter(|(_, task, _)| *task == Task::Read);
        let read = read.map(|(name, ..)| name);
        self.to_read.drain(..).chain(read).collect()
    }

    /// Starts the next job of an idle disk that works, or takes a step towards it. Returns
    /// `None` if there is nothing to do.
    pub(in crate::pager) fn start_next(
        &mut self,
        now: Duration,
        catalog: &mut Catalog,
        effects: &mut Vec<Effect>,
    ) -> Option<Started> {
        if self.busy.is_some() || !self.works() {
            return None;
        }
        if let Some(name) = self.to_read.pop_front() {
            let started = self.start_read(name, now, catalog, effects);
            return Some(if started {
                Started::Job
            } else {
                Started::OutOfMemory(name)
            });
        }
        if let Some(copy) = catalog.next_removed_file() {
            let label = Arc::clone(&self.no_label);
            let task = Task::Remove;
            let path = Vec::new();
            let job = Job {
                copy,
                label,
                task,
                path,
            };
            self.start(job, now, effects);
            return Some(Started::Job);
        }
        while let Some(name) = self.prefetches.pop_front() {
            if self.start_read(name, now, catalog, effects) {
                return Some(Started::Prefetch);
            }
        }
        if self.state.rests_from_writes() {
            return None;
        }
        if let Some(name) = self.space_freed_for.take()
            && catalog.is_unwritten(name)
        {
            return self.start_write(name, now, catalog, effects);
        }
        let mut unwritten = catalog.to_be_written();
        unwritten.find_map(|name| self.start_write(name, now, catalog, effects))
    }

    /// Handles the end of a job.
    pub(in crate::pager) fn job_ended(&mut self) {
        self.busy = None;
        self.state.responded();
    }

    /// Records a file that has been read.
    pub(in crate::pager) fn has_read(&mut self, bytes: usize, took: Duration, now: Duration) {
        self.rate.observe(bytes, took);
        self.state.has_read(true, now);
    }

    /// Records that a file could not be read.
    pub(in crate::pager) fn read_failed(&mut self, now: Duration) {
        self.state.has_read(false, now);
    }

    /// Records whether a file could be written.
    pub(in crate::pager) fn has_written(&mut self, succeeded: bool, now: Duration) {
        self.state.has_written(succeeded, now);
    }

    /// Records that a file could not be removed. It still takes its bytes, though they are
    /// counted as free.
    pub(in crate::pager) fn remove_failed(&mut self, now: Duration) {
        self.state.has_written(false, now);
    }

    /// Checks that the job in progress moves the copies that the disk moves.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub(in crate::pager) fn check_integrity(&self, catalog: &Catalog) {
        let moving = catalog.iter().filter(|(_, copy)| copy.uses_disk());
        let busy = self.busy.filter(|(_, task, _)| *task != Task::Remove);
        assert!(
            moving.map(|(name, _)| name).eq(busy.map(|(name, ..)| name)),
            "the disk's job differs from the copies that it moves"
        );
    }

    fn stalls_at(&self) -> Option<Duration> {
        let (.., since) = self.busy?;
        since.checked_add(self.timeout)
    }

    fn start_read(
        &mut self,
        name: CopyId,
        now: Duration,
        catalog: &mut Catalog,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let fits = catalog.free_for_read(name, effects);
        if fits {
            self.start(catalog.begin(name, Task::Read), now, effects);
        }
        fits
    }

    /// Returns `None` if all files that may be removed for this one are not enough.
    fn start_write(
        &mut self,
        name: CopyId,
        now: Duration,
        catalog: &mut Catalog,
        effects: &mut Vec<Effect>,
    ) -> Option<Started> {
        if !catalog.free_for_write(name, effects) {
            return None;
        }
        if catalog.has_removed_files() {
            // The removed files may be colder than all unwritten copies, so the space is
            // reserved for this copy.
            self.space_freed_for = Some(name);
            return Some(Started::SpaceFreed);
        }
        self.start(catalog.begin(name, Task::Write), now, effects);
        Some(Started::Job)
    }

    fn start(&mut self, job: Job, now: Duration, effects: &mut Vec<Effect>) {
        self.busy = Some((job.copy, job.task, now));
        effects.push(Effect::Do(job));
    }
}
