//! The jobs of the copy workers: what follows when one ends, and which is next.

use super::PagerCore;
use super::copy_queues::Started;
use motet_protocol::CopyId;
use motet_protocol::pager::{Done, Effect, PagerEvent, Task};

impl PagerCore {
    /// Handles the end of a job.
    pub(super) fn done(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        if done.task != Task::Pack && done.result.is_err() {
            self.stats.failed += 1;
        }
        match done.task {
            Task::Pack => self.packed(done, effects),
            Task::Unpack => self.unpack_ended(done, effects),
            Task::Read | Task::Write | Task::Remove => {
                self.disk.job_ended();
                let is_known = self.catalog.get(done.copy).is_some();
                match done.task {
                    Task::Read if is_known => self.read_ended(done, effects),
                    Task::Write if is_known => self.write_ended(done, effects),
                    Task::Remove if done.result.is_err() => self.disk.remove_failed(self.now),
                    _ => {}
                }
            }
            Task::Fetch | Task::Send => {
                self.remote.job_ended();
                let is_known = self.catalog.get(done.copy).is_some();
                match done.task {
                    Task::Fetch if is_known => self.fetch_ended(done, effects),
                    Task::Send => self.send_ended(done),
                    _ => {}
                }
            }
        }
    }

    fn unpack_ended(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let is_void = self.memory.job_ended();
        let name = done.copy;
        if self.catalog.get(name).is_none() {
            return;
        }
        match done.result {
            Ok(()) if is_void => self.repeat_unpack(name, effects),
            Ok(()) => {
                self.catalog.unpack_ended(name);
                let bytes = self.catalog.found(name).host_bytes();
                self.memory.observe(bytes, done.took);
                self.unpacked(name, effects);
            }
            Err(_) => {
                // The failed job made no detached state to discard: the copy still counts as
                // being unpacked here.
                self.fail_load(name, PagerEvent::retry, effects);
                self.catalog.unpack_ended(name);
                // The remote tier would give it again.
                self.missing.add(self.catalog.found(name).label(), self.now);
                self.catalog.evict(name, effects);
            }
        }
        self.loads.notify_deferred(name, effects);
    }

    /// Discards a detached state from before a reset, and unpacks the copy again if a sequence
    /// waits for it.
    fn repeat_unpack(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        effects.push(Effect::Discard(name));
        self.catalog.unpack_ended(name);
        if self.loads.waits_for(name).is_some() {
            self.memory.push_first(name);
        }
    }

    fn read_ended(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let name = done.copy;
        self.catalog.read_ended(name, done.result.is_ok());
        match &done.result {
            Ok(()) => {
                let bytes = self.catalog.found(name).disk_bytes();
                self.disk.has_read(bytes, done.took, self.now);
                self.stats.read += 1;
                // A sequence waits for it or will.
                self.catalog.touch(name);
                self.host_copy_ready(name);
            }
            Err(error) if error.is_lost => {
                // The file is never used again.
                self.fail_load(name, PagerEvent::retry, effects);
                self.catalog.remove_file(name, effects);
            }
            Err(_) => {
                self.fail_load(name, PagerEvent::miss, effects);
                self.disk.read_failed(self.now);
            }
        }
    }

    fn write_ended(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let succeeded = done.result.is_ok();
        self.catalog.write_ended(done.copy, succeeded, effects);
        self.disk.has_written(succeeded, self.now);
        self.stats.written += u64::from(succeeded);
    }

    /// Ends the loads that wait for a disk that does not work.
    pub(super) fn check_disk(&mut self, effects: &mut Vec<Effect>) {
        if self.disk.check(self.now) {
            self.stats.failed += 1;
        }
        for name in self.disk.abandon_reads() {
            self.fail_load(name, PagerEvent::retry, effects);
        }
    }

    /// Gives idle workers their next jobs.
    pub(super) fn start_jobs(&mut self, effects: &mut Vec<Effect>) {
        self.memory.start_job(&mut self.catalog, effects);
        while let Some(name) = self.remote.start_next(self.now, &mut self.catalog, effects) {
            self.not_fetched(name, effects);
            self.drop_unawaited_fetches();
        }
        while let Some(started) = self.disk.start_next(self.now, &mut self.catalog, effects) {
            match started {
                Started::Job | Started::SpaceFreed => {}
                Started::Prefetch => self.stats.prefetches += 1,
                // A retry at once would not find memory either.
                Started::OutOfMemory(name) => self.fail_load(name, PagerEvent::miss, effects),
            }
        }
    }
}
