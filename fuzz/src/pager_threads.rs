//! Fakes of the pager's copy workers and the transfer queue: where each copy's bytes are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use motet::CopyId;
use motet::pager::PagerStats;
use motet::storage::tiers::{DiskTier, HostTier};
use motet_core::pager::{CopyQueue, Done, Job, JobError, Label, Task};

use super::input::FuzzInput;

pub(crate) struct Threads {
    host_bytes_max: usize,
    disk_bytes_max: usize,
    pub(crate) host: BTreeMap<CopyId, Arc<Label>>,
    /// Files, including those that are being written or removed.
    disk: BTreeMap<CopyId, Arc<Label>>,
    /// Copies that the device exports, and whether it has exported them.
    packs: BTreeMap<CopyId, (Job, bool)>,
    memory: Option<Job>,
    /// Its detached state is in the transfer queue; the pager is not notified yet.
    is_delivered: bool,
    disk_job: Option<Job>,
    /// Detached states that wait for the device.
    pub(crate) detached_states: BTreeMap<CopyId, usize>,
    /// Some files could not be removed: their bytes are not counted as free.
    stuck: bool,
}

impl Threads {
    pub(crate) fn new(host_bytes_max: usize, disk_bytes_max: Option<usize>) -> Self {
        Self {
            host_bytes_max,
            disk_bytes_max: disk_bytes_max.unwrap_or(0),
            host: BTreeMap::new(),
            disk: BTreeMap::new(),
            packs: BTreeMap::new(),
            memory: None,
            is_delivered: false,
            disk_job: None,
            detached_states: BTreeMap::new(),
            stuck: false,
        }
    }

    /// Adds a file from an earlier run, if it fits.
    pub(crate) fn find(&mut self, copy: CopyId, label: &Label) -> bool {
        let fits = self.disk_bytes() + file_bytes(label) <= self.disk_bytes_max;
        if fits {
            self.disk.insert(copy, Arc::new(label.clone()));
        }
        fits
    }

    pub(crate) fn start(&mut self, job: Job) {
        let (copy, label) = (job.copy, Arc::clone(&job.label));
        let (host, disk) = (self.host.contains_key(&copy), self.disk.contains_key(&copy));
        match job.task {
            Task::Pack => {
                assert!(!self.has(copy), "a name is used once");
                self.packs.insert(copy, (job, false));
                return;
            }
            Task::Unpack => assert!(host, "an unpacked copy is in memory"),
            Task::Read => assert!(disk && !host, "a copy that is read is on the disk only"),
            Task::Write => {
                let is_duplicate = disk && !self.stuck;
                assert!(
                    host && !is_duplicate,
                    "a copy that is written is in memory only"
                );
                self.disk.insert(copy, label);
            }
            // It may be gone already.
            Task::Remove => {}
        }
        let thread = match job.task.copy_queue() {
            CopyQueue::Memory => &mut self.memory,
            CopyQueue::Disk => &mut self.disk_job,
        };
        assert!(thread.is_none(), "a thread does one thing at a time");
        *thread = Some(job);
    }

    /// The device has exported a segment; ignored if the copy is no longer needed.
    pub(crate) fn export(&mut self, copy: CopyId) {
        if let Some((_, is_out)) = self.packs.get_mut(&copy) {
            *is_out = true;
        }
    }

    pub(crate) fn forget(&mut self, copy: CopyId) {
        let packed = self.packs.remove(&copy);
        let stored = self.host.remove(&copy);
        assert!(
            packed.is_some() || stored.is_some(),
            "a discarded copy was there"
        );
    }

    pub(crate) fn take_detached(&mut self, copy: CopyId) {
        if let Some(detached_states) = self.detached_states.get_mut(&copy) {
            *detached_states -= 1;
            if *detached_states == 0 {
                self.detached_states.remove(&copy);
            }
        }
    }

    pub(crate) fn has(&self, copy: CopyId) -> bool {
        self.host.contains_key(&copy) || self.disk.contains_key(&copy)
    }

    pub(crate) fn label(&self, copy: CopyId) -> &Label {
        let label = self.host.get(&copy).or_else(|| self.disk.get(&copy));
        label.expect("a copy is somewhere")
    }

    /// Advances one of the workers: a job ends, with success or failure, or a detached state is
    /// made.
    pub(crate) fn advance(&mut self, input: &mut FuzzInput<'_>) -> Option<Done> {
        let took = Duration::from_micros(1 << input.below(10));
        let result = match input.below(8) {
            0 => Err(JobError {
                what: "a fault".into(),
                is_lost: input.bit(),
            }),
            _ => Ok(()),
        };
        let job = match input.below(4) {
            0 => self.take_pack()?,
            1 => self.disk_job.take()?,
            2 if !self.is_delivered => {
                self.deliver();
                return None;
            }
            _ => self.memory.take()?,
        };
        // A finished unpack cannot fail.
        let made = self.is_delivered && job.task == Task::Unpack;
        Some(self.ended(job, if made { Ok(()) } else { result }, took))
    }

    /// Ends the first possible job successfully.
    pub(crate) fn end_one(&mut self) -> Option<Done> {
        let job = self.memory.take().or_else(|| self.disk_job.take());
        let job = job.or_else(|| self.take_pack())?;
        Some(self.ended(job, Ok(()), Duration::from_micros(1)))
    }

    fn take_pack(&mut self) -> Option<Job> {
        let mut out = self.packs.iter().filter(|(_, (_, is_out))| *is_out);
        let copy = *out.next()?.0;
        self.packs.remove(&copy).map(|(job, _)| job)
    }

    fn deliver(&mut self) {
        if let Some(job) = &self.memory {
            *self.detached_states.entry(job.copy).or_default() += 1;
            self.is_delivered = true;
        }
    }

    fn ended(&mut self, job: Job, result: Result<(), JobError>, took: Duration) -> Done {
        let (copy, label) = (job.copy, job.label);
        match (job.task, &result) {
            (Task::Pack | Task::Read, Ok(())) => drop(self.host.insert(copy, label.clone())),
            (Task::Unpack, _) if std::mem::take(&mut self.is_delivered) => {}
            (Task::Unpack, Ok(())) => *self.detached_states.entry(copy).or_default() += 1,
            (Task::Remove, Ok(())) | (Task::Write, Err(_)) => drop(self.disk.remove(&copy)),
            // The worker that finds a damaged file removes it.
            (Task::Read, Err(error)) if error.is_lost => drop(self.disk.remove(&copy)),
            (Task::Remove, Err(_)) => self.stuck = true,
            _ => {}
        }
        Done {
            copy,
            task: job.task,
            result,
            took,
            bytes: label.bytes,
        }
    }

    fn disk_bytes(&self) -> usize {
        self.disk.values().map(|label| file_bytes(label)).sum()
    }

    /// Checks that both tiers stay within their budgets, and that host memory is counted
    /// correctly.
    pub(crate) fn check(&self, stats: &PagerStats) {
        let reads = self.disk_job.iter().filter(|job| job.task == Task::Read);
        let comes = self.packs.values().map(|(job, _)| &job.label);
        let comes = comes.chain(reads.map(|job| &job.label));
        let all = self.host.values().chain(comes);
        let bytes: usize = all.map(|label| HostTier::bytes_taken(label.bytes)).sum();
        assert_eq!(stats.host_bytes, bytes, "host memory is counted");
        assert!(bytes <= self.host_bytes_max, "host memory has its bound");
        assert!(
            self.stuck || self.disk_bytes() <= self.disk_bytes_max,
            "files have their bound"
        );
    }

    pub(crate) fn check_end(&self) {
        assert!(
            self.detached_states.is_empty(),
            "detached states are left over"
        );
        assert!(self.stuck || self.disk.is_empty(), "files without a copy");
    }
}

fn file_bytes(label: &Label) -> usize {
    DiskTier::bytes_taken(label.tokens.len(), label.bytes)
}
