//! What each copy thread does next; demand overtakes everything else.
//!
//! A thread is given one job at a time, so that what is wanted most is decided here, when
//! it is free. What a sequence waits for goes first; then what one will want; then what is
//! to be on the disk before host memory runs short. Packing is not among them: the device
//! hands over when it can, and no more than was asked for.
//!
//! A disk that fails is left alone for a while, and so is one that does not answer: who
//! waits for it computes instead. Reading and writing rest each by itself, so that a folder
//! that has become read-only is still read from.

use std::sync::Arc;
use std::time::Duration;

use super::PagerCore;
use super::catalog::Presence;
use super::protocol::{CopyQueue, Done, Effect, Job, PagerEvent, Task};
use crate::CopyId;

/// How long a disk that has failed is left alone.
const DISK_REST: Duration = Duration::from_secs(10);

/// One copy thread.
#[derive(Debug, Default)]
pub(super) struct CopyQueueState {
    /// What it does, and since when.
    busy: Option<(CopyId, Task, Duration)>,
    /// What comes of that is of no use: the device has lost everything meanwhile.
    is_void: bool,
}

/// Whether the disk is of use.
#[derive(Debug)]
pub(super) struct DiskState {
    is_there: bool,
    /// It does not answer.
    is_stalled: bool,
    /// Where this does not work, the disk is left alone.
    reads: Ability,
    /// Where this does not work, nothing is written.
    writes: Ability,
}

/// Whether the disk can do one thing, by how it went when that was last tried.
#[derive(Debug, Default)]
struct Ability {
    failed: bool,
    /// It is not tried before.
    rests_until: Option<Duration>,
}

/// How fast copies move.
#[derive(Debug)]
pub(super) struct Rates {
    pub(super) memory: Rate,
    pub(super) disk: Rate,
}

/// Seconds for each byte, as far as is known.
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

    /// Whether it does less than it should, as far as is known: what has failed counts
    /// until it works.
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
    /// Guesses, until something has moved.
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

    /// So many bytes have taken so long. An exponential mean over about eight jobs.
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
    /// A copy thread has done a job.
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
                // Its room is not free, whatever is believed.
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

    /// What was being made for who has left is gone, or somebody else's.
    fn send_cancelled(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let ended = self.cancelled.extract_if(.., |(copy, _)| *copy == name);
        effects.extend(ended.map(|(_, pager_event)| Effect::Notify(pager_event)));
    }

    /// Whether a parcel of this copy is being made.
    pub(super) fn is_unpacking(&self, name: CopyId) -> bool {
        let busy = self.memory.busy;
        busy.is_some_and(|(copy, task, _)| copy == name && task == Task::Unpack)
    }

    fn unpack_ended(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        if done.result.is_err() {
            // Of this one there is no parcel to throw away: it counts as being made.
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

    /// The parcel is one of before a reset, wherever it lies. Who wants the copy since
    /// gets another.
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

    /// The threads are at this, begun by a core that is no more.
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

    /// What is being made for the device is for one that has lost everything since.
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
                // It will be asked for, or is.
                self.copies.touch(done.copy);
                self.host_copy_ready(done.copy);
            }
            Err(error) if error.is_lost => {
                // It is never believed again.
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
            // It was given up meanwhile, since no parcel could be made of it.
            self.lose(done.copy, effects);
        }
        match written {
            true => {
                self.disk_state.writes.succeeded();
                self.stats.written += 1;
            }
            false => self.disk_state.writes.failed(self.now),
        }
    }

    /// Whether the disk has rested, or does not answer.
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

    /// Gives threads that have nothing to do the next job.
    pub(super) fn start_jobs(&mut self, effects: &mut Vec<Effect>) {
        if self.memory.busy.is_none()
            && let Some(name) = self.to_unpack.pop_front()
        {
            self.begin(name, Task::Unpack, effects);
        }
        while self.disk.busy.is_none() && self.disk_state.works() && self.start_disk_job(effects) {}
    }

    /// False where there is nothing for the disk to do. True may still mean that nothing
    /// was begun.
    fn start_disk_job(&mut self, effects: &mut Vec<Effect>) -> bool {
        if let Some(name) = self.to_read.pop_front() {
            if !self.start_read(name, effects) {
                // Nor would there be room for it if it were asked for again at once.
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
        let copy = self.copies.get(name).expect("an unwritten copy is there");
        let bytes = copy.disk_bytes();
        if !self.free_disk_bytes(name, bytes, effects) {
            return false;
        }
        if !self.to_remove.is_empty() {
            // Files go before others come. What goes may be colder than all that is not
            // written: it is not what has the room then.
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

    /// It may be tried again long before anybody has a reason to.
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
