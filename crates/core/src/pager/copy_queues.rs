//! Chooses the next job of each copy worker. Loads that a sequence waits for go first.
//!
//! A worker gets one job at a time, so that the most urgent job is chosen when the worker
//! becomes free. Copies that a sequence waits for go first; then prefetches; then writes to the
//! disk, before host memory runs short. Packing is not queued here: the device exports segments
//! when it can, and only those that were asked for.
//!
//! A disk that fails is not used for a while, and neither is one that does not respond;
//! sequences that wait for it compute instead. Reads and writes rest separately, so that a
//! folder that has become read-only is still read.

use std::sync::Arc;
use std::time::Duration;

use super::PagerCore;
use super::catalog::Presence;
use crate::CopyId;
use crate::protocol::pager::{CopyQueue, Done, Effect, Job, PagerEvent, Task};

/// Time for which a disk is not used after a failure.
const DISK_REST: Duration = Duration::from_secs(10);

/// State of one copy worker.
#[derive(Debug, Default)]
pub(super) struct CopyQueueState {
    /// The job in progress, and its start time.
    busy: Option<(CopyId, Task, Duration)>,
    /// The result of that job is of no use: the device has lost all state since it started.
    is_void: bool,
}

/// Whether the disk can be used.
#[derive(Debug)]
pub(super) struct DiskState {
    is_there: bool,
    /// A job has taken longer than the timeout.
    is_stalled: bool,
    /// While this rests, the disk is not used.
    reads: Ability,
    /// While this rests, nothing is written.
    writes: Ability,
}

/// Whether the disk can read (or write), by the result of the last attempt.
#[derive(Debug, Default)]
struct Ability {
    failed: bool,
    /// No attempt is made before this time.
    rests_until: Option<Duration>,
}

/// Measured speeds of the copy workers.
#[derive(Debug)]
pub(super) struct Rates {
    pub(super) memory: Rate,
    pub(super) disk: Rate,
}

/// Estimated seconds for each byte.
#[derive(Debug)]
pub(super) struct Rate {
    seconds_per_byte: f64,
    is_measured: bool,
}

impl CopyQueueState {
    pub(super) fn is_busy(&self) -> bool {
        self.busy.is_some()
    }
}

impl DiskState {
    pub(super) fn new(is_there: bool) -> Self {
        Self {
            is_there,
            is_stalled: false,
            reads: Ability::default(),
            writes: Ability::default(),
        }
    }

    pub(super) fn works(&self) -> bool {
        self.is_there && !self.is_stalled && !self.reads.is_resting()
    }

    /// Whether the disk is stalled, or has failed and not succeeded since.
    pub(super) fn is_degraded(&self) -> bool {
        self.is_there && (self.is_stalled || self.reads.failed || self.writes.failed)
    }

    fn expire_rests(&mut self, now: Duration) {
        for ability in [&mut self.reads, &mut self.writes] {
            ability.rests_until = ability.rests_until.filter(|at| *at > now);
        }
    }
}

impl Ability {
    fn is_resting(&self) -> bool {
        self.rests_until.is_some()
    }

    fn succeeded(&mut self) {
        *self = Self::default();
    }

    fn failed(&mut self, now: Duration) {
        self.failed = true;
        self.rests_until = Some(now.saturating_add(DISK_REST));
    }
}

impl Default for Rates {
    /// Guesses, used until something has been measured.
    fn default() -> Self {
        Self {
            memory: Rate::guess(4e9),
            disk: Rate::guess(5e8),
        }
    }
}

impl Rate {
    fn guess(bytes_per_second: f64) -> Self {
        Self {
            seconds_per_byte: 1.0 / bytes_per_second,
            is_measured: false,
        }
    }

    /// Updates the estimate with a job of `bytes` bytes: an exponential mean over about eight
    /// jobs.
    pub(super) fn observe(&mut self, bytes: usize, took: Duration) {
        let seconds_per_byte = took.as_secs_f64() / bytes.max(1) as f64;
        let weight = if self.is_measured { 0.125 } else { 1.0 };
        self.seconds_per_byte += weight * (seconds_per_byte - self.seconds_per_byte);
        self.is_measured = true;
    }

    pub(super) fn time(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(self.seconds_per_byte * bytes as f64)
    }
}

impl PagerCore {
    /// Handles the end of a job.
    pub(super) fn done(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let mut is_void = false;
        match done.task {
            Task::Pack => return self.packed(done, effects),
            Task::Unpack => {
                self.memory.busy = None;
                is_void = std::mem::take(&mut self.memory.is_void);
            }
            Task::Read | Task::Write | Task::Remove => {
                self.disk.busy = None;
                self.disk_state.is_stalled = false;
            }
        }
        if done.result.is_err() {
            self.stats.failed += 1;
            if done.task == Task::Remove {
                // The file still takes its bytes, though they are counted as free.
                self.disk_state.writes.failed(self.now);
            }
        }
        if self.copies.get(done.copy).is_none() {
            return;
        }
        match done.task {
            Task::Unpack if is_void && done.result.is_ok() => {
                self.repeat_unpack(done.copy, effects)
            }
            Task::Unpack => self.unpack_ended(done, effects),
            Task::Read => self.read_ended(done, effects),
            Task::Write => self.write_ended(done, effects),
            Task::Pack | Task::Remove => {}
        }
        if done.task == Task::Unpack {
            self.send_cancelled(done.copy, effects);
        }
    }

    /// Sends the events that waited for the unpack job of this copy.
    fn send_cancelled(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let ended = self.cancelled.extract_if(.., |(copy, _)| *copy == name);
        effects.extend(ended.map(|(_, pager_event)| Effect::Notify(pager_event)));
    }

    /// Whether this copy is being unpacked.
    pub(super) fn is_unpacking(&self, name: CopyId) -> bool {
        let busy = self.memory.busy;
        busy.is_some_and(|(copy, task, _)| copy == name && task == Task::Unpack)
    }

    fn unpack_ended(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        if done.result.is_err() {
            // The failed job made no detached state to discard: the copy still counts as being
            // unpacked here.
            self.fail_load(done.copy, PagerEvent::retry, effects);
        }
        let bytes = self.copies.change(done.copy, |copy| {
            copy.moves.remove(&Task::Unpack);
            copy.bytes
        });
        match done.result {
            Ok(()) => {
                self.rates.memory.observe(bytes.unwrap_or(0), done.took);
                self.unpacked(done.copy, effects);
            }
            Err(_) => {
                self.forget(done.copy, effects);
                self.remove(done.copy, effects);
            }
        }
    }

    /// Discards a detached state from before a reset, and unpacks the copy again if a sequence
    /// waits for it.
    fn repeat_unpack(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        effects.push(Effect::Discard(name));
        let is_loading = self.copies.change(name, |copy| {
            copy.moves.remove(&Task::Unpack);
            copy.loading_for.is_some()
        });
        if is_loading == Some(true) {
            self.to_unpack.push_front(name);
        }
    }

    /// Marks these jobs as in progress; a previous core has started them.
    pub(super) fn resume_jobs(
        &mut self,
        memory: Option<(CopyId, Task)>,
        disk: Option<(CopyId, Task)>,
    ) {
        let since = self.now;
        for (copy_queue, job) in [(&mut self.memory, memory), (&mut self.disk, disk)] {
            copy_queue.busy = job.map(|(copy, task)| (copy, task, since));
        }
    }

    /// Marks the unpack job in progress as void, after the device has lost all state.
    pub(super) fn invalidate_unpack(&mut self) {
        self.memory.is_void = self.memory.busy.is_some();
    }

    fn read_ended(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let read = done.result.is_ok();
        let bytes = self.copies.change(done.copy, |copy| {
            copy.moves.remove(&Task::Read);
            copy.host = if read {
                Presence::Present
            } else {
                Presence::Absent
            };
            copy.disk_bytes()
        });
        match &done.result {
            Ok(()) => {
                self.rates.disk.observe(bytes.unwrap_or(0), done.took);
                self.disk_state.reads.succeeded();
                self.stats.read += 1;
                // A sequence waits for it or will.
                self.copies.touch(done.copy);
                self.host_copy_ready(done.copy);
            }
            Err(error) if error.is_lost => {
                // The file is never used again.
                self.fail_load(done.copy, PagerEvent::retry, effects);
                self.remove(done.copy, effects);
            }
            Err(_) => {
                self.fail_load(done.copy, PagerEvent::miss, effects);
                self.disk_state.reads.failed(self.now);
            }
        }
    }

    fn write_ended(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let written = done.result.is_ok();
        let nowhere = self.copies.change(done.copy, |copy| {
            copy.moves.remove(&Task::Write);
            copy.disk = if written {
                Presence::Present
            } else {
                Presence::Absent
            };
            copy.host == Presence::Absent && !written
        });
        if nowhere == Some(true) {
            // The host copy was dropped meanwhile, since unpacking failed.
            self.lose(done.copy, effects);
        }
        if written {
            self.disk_state.writes.succeeded();
            self.stats.written += 1;
        } else {
            self.disk_state.writes.failed(self.now);
        }
    }

    /// Ends the rests that are due, and detects a disk that does not respond.
    pub(super) fn check_disk(&mut self, effects: &mut Vec<Effect>) {
        self.disk_state.expire_rests(self.now);
        let stalls = self.disk_stalls_at().is_some_and(|at| at <= self.now);
        if stalls && !self.disk_state.is_stalled {
            self.disk_state.is_stalled = true;
            self.stats.failed += 1;
        }
        if !self.disk_state.works() {
            let waits: Vec<CopyId> = self.to_read.drain(..).collect();
            let reads = self.disk.busy.filter(|(_, task, _)| *task == Task::Read);
            for name in waits.into_iter().chain(reads.map(|(name, ..)| name)) {
                self.fail_load(name, PagerEvent::retry, effects);
            }
            self.prefetches.clear();
        }
    }

    pub(super) fn disk_wakes_at(&self) -> Option<Duration> {
        let stalls = self
            .disk_stalls_at()
            .filter(|_| !self.disk_state.is_stalled);
        let DiskState { reads, writes, .. } = &self.disk_state;
        let rest_ends = [reads.rests_until, writes.rests_until];
        stalls
            .into_iter()
            .chain(rest_ends.into_iter().flatten())
            .min()
    }

    fn disk_stalls_at(&self) -> Option<Duration> {
        let (.., since) = self.disk.busy?;
        since.checked_add(self.config.disk_timeout)
    }

    /// Gives idle workers their next jobs.
    pub(super) fn start_jobs(&mut self, effects: &mut Vec<Effect>) {
        if self.memory.busy.is_none()
            && let Some(name) = self.to_unpack.pop_front()
        {
            self.begin(name, Task::Unpack, effects);
        }
        while self.disk.busy.is_none() && self.disk_state.works() && self.start_disk_job(effects) {}
    }

    /// Returns false if the disk has no job to start. After true, there may still be none in
    /// progress.
    fn start_disk_job(&mut self, effects: &mut Vec<Effect>) -> bool {
        if let Some(name) = self.to_read.pop_front() {
            if !self.start_read(name, effects) {
                // A retry at once would not find memory either.
                self.fail_load(name, PagerEvent::miss, effects);
            }
            return true;
        }
        if let Some(copy) = self.to_remove.pop_front() {
            let (label, task) = (Arc::clone(&self.no_label), Task::Remove);
            self.disk.busy = Some((copy, task, self.now));
            effects.push(Effect::Do(Job { copy, label, task }));
            return true;
        }
        while let Some(name) = self.prefetches.pop_front() {
            if self.start_read(name, effects) {
                self.stats.prefetches += 1;
                return true;
            }
        }
        if self.disk_state.writes.is_resting() {
            return false;
        }
        if let Some(name) = self.disk_space_freed_for.take()
            && self.copies.is_unwritten(name)
        {
            return self.start_write(name, effects);
        }
        let unwritten = self.copies.to_be_written();
        let mut unwritten = unwritten.into_iter().flatten();
        unwritten.any(|name| self.start_write(name, effects))
    }

    fn start_read(&mut self, name: CopyId, effects: &mut Vec<Effect>) -> bool {
        let there = self.copies.get(name);
        let there =
            there.filter(|copy| copy.host == Presence::Absent && copy.disk == Presence::Present);
        let Some((bytes, priority)) = there.map(|copy| (copy.bytes, copy.priority)) else {
            return false;
        };
        if !self.free_host_bytes(bytes, priority, effects) {
            return false;
        }
        self.copies
            .change(name, |copy| copy.host = Presence::Incoming);
        self.begin(name, Task::Read, effects);
        true
    }

    fn start_write(&mut self, name: CopyId, effects: &mut Vec<Effect>) -> bool {
        let copy = self
            .copies
            .get(name)
            .expect("the catalog holds every unwritten copy");
        let bytes = copy.disk_bytes();
        if !self.free_disk_bytes(name, bytes, effects) {
            return false;
        }
        if !self.to_remove.is_empty() {
            // Files are removed before others are written. The removed files may be colder than
            // all unwritten copies, so the space is reserved for this copy.
            self.disk_space_freed_for = Some(name);
            return true;
        }
        self.copies
            .change(name, |copy| copy.disk = Presence::Incoming);
        self.begin(name, Task::Write, effects);
        true
    }

    fn begin(&mut self, name: CopyId, task: Task, effects: &mut Vec<Effect>) {
        self.copies.change(name, |copy| copy.moves.insert(task));
        let copy_queue = match task.copy_queue() {
            CopyQueue::Memory => &mut self.memory,
            CopyQueue::Disk => &mut self.disk,
        };
        copy_queue.busy = Some((name, task, self.now));
        effects.push(Effect::Do(self.copies.job(name, task)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The disk may be tried again long before a job needs it.
    #[test]
    fn failed_disk_is_degraded_until_it_works() {
        let mut disk = DiskState::new(true);
        assert!(disk.works() && !disk.is_degraded());
        disk.reads.failed(Duration::ZERO);
        assert!(!disk.works() && disk.is_degraded());
        disk.expire_rests(DISK_REST);
        assert!(disk.works() && disk.is_degraded());
        disk.writes.failed(DISK_REST);
        disk.reads.succeeded();
        assert!(disk.works() && disk.is_degraded());
        disk.writes.succeeded();
        assert!(disk.works() && !disk.is_degraded());
    }
}
