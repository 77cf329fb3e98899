//! The copy workers on paper: where the bytes of each copy are, and the jobs that move them.
//!
//! There are three workers, for host memory, the disk and the remote tier, and each does one job at
//! a time. A pack is no worker's job until the device has exported its state. The driver chooses
//! the job that ends next, and its result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use motet_core::pager::footprint::{disk_bytes, host_bytes};
use motet_core::pager::{Ask, Asked, Done, Job, JobError, Label, PagerStats, PrefixDigest, Task};
use motet_protocol::CopyId;

use crate::transfer_queue::{PaperState, PaperTransferQueue};

/// A stored copy.
#[derive(Clone)]
struct Stored<S> {
    label: Arc<Label>,
    state: S,
}

/// The workers, host memory, the disk and the remote tier.
pub struct CopyMachine<S> {
    host_bytes_max: usize,
    disk_bytes_max: usize,
    /// Running jobs, oldest first.
    jobs: Vec<Job>,
    host: BTreeMap<CopyId, Stored<S>>,
    /// Files, including those that are being written or removed.
    disk: BTreeMap<CopyId, Stored<S>>,
    /// Copies in the remote tier, in the order in which they came.
    remote: Vec<Stored<S>>,
    is_remote_dropped: bool,
    /// Questions to it that are not answered, oldest first.
    asks: Vec<Ask>,
    /// The state that is being unpacked.
    unpacking: Option<S>,
    /// It is in the transfer queue, and the pager is not notified yet.
    is_unpacked: bool,
    /// Packs that were given up and end nevertheless.
    cancelled_packs: BTreeSet<CopyId>,
    reports_cancelled_packs: bool,
}

impl<S: PaperState> CopyMachine<S> {
    /// Empty tiers of so many bytes.
    #[must_use]
    pub fn new(host_bytes_max: usize, disk_bytes_max: usize) -> Self {
        Self {
            host_bytes_max,
            disk_bytes_max,
            jobs: Vec::new(),
            host: BTreeMap::new(),
            disk: BTreeMap::new(),
            remote: Vec::new(),
            is_remote_dropped: false,
            asks: Vec::new(),
            unpacking: None,
            is_unpacked: false,
            cancelled_packs: BTreeSet::new(),
            reports_cancelled_packs: false,
        }
    }

    /// The same, with a worker that learns too late that a pack was given up, and reports its
    /// end.
    #[must_use]
    pub fn reporting_cancelled_packs(mut self) -> Self {
        self.reports_cancelled_packs = true;
        self
    }

    /// Adds a file from an earlier run. Returns false if it does not fit.
    pub fn find(&mut self, copy: CopyId, label: &Label, state: S) -> bool {
        let label = Arc::new(label.clone());
        let fits = self.disk_bytes() + file_bytes(&label) <= self.disk_bytes_max;
        if fits {
            self.disk.insert(copy, Stored { label, state });
        }
        fits
    }

    /// Running jobs, oldest first.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Whether a job may end: a pack does so after the export of its state.
    #[must_use]
    pub fn can_end(&self, job: &Job, queue: &PaperTransferQueue<S>) -> bool {
        job.task != Task::Pack
            || queue.is_exported(job.copy)
            || self.cancelled_packs.contains(&job.copy)
    }

    /// Whether a job may end without success: an unpack that has made its state may not.
    #[must_use]
    pub fn can_fail(&self, job: &Job) -> bool {
        job.task != Task::Unpack || !self.is_unpacked
    }

    /// Whether the pager waits for this state to be exported.
    #[must_use]
    pub fn awaits_export(&self, copy: CopyId) -> bool {
        let awaits = |job: &Job| job.copy == copy && job.task == Task::Pack;
        self.jobs.iter().any(awaits) && !self.cancelled_packs.contains(&copy)
    }

    /// Whether a job moves this copy.
    #[must_use]
    pub fn is_moving(&self, copy: CopyId) -> bool {
        let moves = |job: &Job| job.copy == copy && job.task != Task::Remove;
        self.jobs.iter().any(moves)
    }

    /// Whether a copy is in host memory.
    #[must_use]
    pub fn is_in_host(&self, copy: CopyId) -> bool {
        self.host.contains_key(&copy)
    }

    /// Whether a copy is in host memory or on the disk.
    #[must_use]
    pub fn has(&self, copy: CopyId) -> bool {
        self.host.contains_key(&copy) || self.disk.contains_key(&copy)
    }

    /// The label of a stored copy.
    #[must_use]
    pub fn label(&self, copy: CopyId) -> &Label {
        let stored = self.host.get(&copy).or_else(|| self.disk.get(&copy));
        &stored.expect("a copy is somewhere").label
    }

    /// Starts a job, which takes its copy from where it is.
    pub fn start(&mut self, job: Job) {
        let copy = job.copy;
        let (in_host, on_disk) = (self.is_in_host(copy), self.disk.contains_key(&copy));
        match job.task {
            Task::Pack => assert!(!self.has(copy), "a name is used once"),
            Task::Unpack => {
                let stored = self.host.get(&copy);
                let stored = stored.expect("an unpacked copy is in memory");
                self.unpacking = Some(stored.state.clone());
            }
            Task::Read => assert!(
                on_disk && !in_host,
                "a copy that is read is on the disk only"
            ),
            Task::Write => {
                assert!(
                    in_host && !on_disk,
                    "a copy that is written is in memory only"
                );
                self.disk.insert(copy, self.host[&copy].clone());
            }
            // It may be gone already.
            Task::Remove => {}
            Task::Fetch => assert!(!self.has(copy), "a name is used once"),
            Task::Send => {
                assert!(in_host, "a copy that is sent is in memory");
                let had = |label: &Arc<Label>| self.is_remote_dropped || self.is_in_remote(label);
                assert!(job.path.iter().all(had), "a copy is sent after its path");
            }
        }
        let queue = job.task.copy_queue();
        let is_alike = |other: &Job| other.task != Task::Pack && other.task.copy_queue() == queue;
        assert!(
            job.task == Task::Pack || !self.jobs.iter().any(is_alike),
            "a worker does one thing at a time: {job:?}"
        );
        self.jobs.push(job);
    }

    /// The running unpack puts its state into the transfer queue, before the pager learns of
    /// it. Returns false if there is none, or if it has done so.
    pub fn unpack(&mut self, queue: &mut PaperTransferQueue<S>) -> bool {
        let Some((job, state)) = self.unpack_job().cloned().zip(self.unpacking.take()) else {
            return false;
        };
        queue.import(job.copy, state);
        self.is_unpacked = true;
        true
    }

    /// Whether [`Self::unpack`] can do something.
    #[must_use]
    pub fn can_unpack(&self) -> bool {
        self.unpacking.is_some()
    }

    /// Ends the job at this place among the running ones.
    pub fn end(
        &mut self,
        at: usize,
        result: Result<(), JobError>,
        took: Duration,
        queue: &mut PaperTransferQueue<S>,
    ) -> Done {
        let Job {
            copy, label, task, ..
        } = self.jobs.remove(at);
        let is_good = result.is_ok();
        match task {
            Task::Pack if self.cancelled_packs.contains(&copy) => {}
            Task::Pack => {
                let state = queue.take_export(copy).expect("it was exported");
                if is_good {
                    state.check(&label);
                    let label = Arc::clone(&label);
                    self.host.insert(copy, Stored { label, state });
                }
            }
            Task::Unpack if std::mem::take(&mut self.is_unpacked) => {
                assert!(is_good, "a finished unpack cannot fail");
            }
            Task::Unpack => {
                let state = self.unpacking.take().expect("it was not finished");
                if is_good {
                    queue.import(copy, state);
                }
            }
            Task::Read if is_good => {
                let stored = self.disk.get(&copy).expect("a file that is read exists");
                self.host.insert(copy, stored.clone());
            }
            // The worker that finds a damaged file removes it.
            Task::Read if matches!(&result, Err(error) if !error.is_lost) => {}
            Task::Write if is_good => {}
            Task::Fetch => {
                let mut remote = self.remote.iter();
                let stored = remote.find(|stored| stored.label == label);
                if let Some(stored) = stored.filter(|_| is_good).cloned() {
                    self.host.insert(copy, stored);
                }
            }
            Task::Send => {
                let is_new = is_good && !self.is_in_remote(&label);
                let stored = self.host.get(&copy).filter(|_| is_new).cloned();
                self.remote.extend(stored);
            }
            // A file that cannot be removed counts no more: no copy is in it.
            Task::Read | Task::Write | Task::Remove => drop(self.disk.remove(&copy)),
        }
        Done {
            copy,
            task,
            result,
            took,
            bytes: label.bytes,
        }
    }

    /// Adds a copy that another process has made to the remote tier.
    pub fn store_remotely(&mut self, label: &Label, state: S) {
        let label = Arc::new(label.clone());
        self.remote.push(Stored { label, state });
    }

    /// The remote tier drops everything.
    pub fn drop_remote(&mut self) {
        self.remote.clear();
        self.is_remote_dropped = true;
    }

    /// Whether the remote tier holds the copy that a job fetches.
    #[must_use]
    pub fn is_in_remote(&self, label: &Label) -> bool {
        self.remote.iter().any(|stored| *stored.label == *label)
    }

    /// Asks the remote tier.
    pub fn ask(&mut self, ask: Ask) {
        self.asks.push(ask);
    }

    /// Questions to the remote tier that are not answered, oldest first.
    #[must_use]
    pub fn asks(&self) -> &[Ask] {
        &self.asks
    }

    /// Answers the question at this place with the copies that the remote tier holds.
    pub fn answer(&mut self, at: usize, took: Duration) -> Asked {
        let ask = self.asks.remove(at);
        let mut found = Vec::new();
        let mut reach = ask.from;
        loop {
            let fits = |label: &Label| {
                let tokens = ask.tokens.get(..label.start);
                label.key == ask.key.at(label.start + 1)
                    && label.start <= reach
                    && label.end() > reach
                    && tokens.is_some_and(|before| {
                        label.before == PrefixDigest::of(ask.key, before)
                            && ask.tokens[label.start..].starts_with(&label.tokens)
                            && label.tokens.len() <= ask.key.tokens_alike(label.start)
                    })
            };
            let mut labels = self.remote.iter().map(|stored| &stored.label);
            let Some(label) = labels.find(|label| fits(label)) else {
                break;
            };
            reach = label.end();
            found.push(Label::clone(label));
        }
        Asked {
            ask,
            result: Ok(found),
            took,
        }
    }

    /// Drops the copy in host memory, or gives its pack up.
    pub fn forget(&mut self, copy: CopyId, queue: &mut PaperTransferQueue<S>) {
        let is_stored = self.host.remove(&copy).is_some();
        let is_packed = self.awaits_export(copy);
        assert!(is_stored || is_packed, "a discarded copy was there");
        if is_packed {
            queue.take_export(copy);
            if self.reports_cancelled_packs {
                self.cancelled_packs.insert(copy);
            } else {
                let is_pack = |job: &Job| job.copy == copy && job.task == Task::Pack;
                self.jobs.retain(|job| !is_pack(job));
            }
        }
    }

    fn unpack_job(&self) -> Option<&Job> {
        self.jobs.iter().find(|job| job.task == Task::Unpack)
    }

    fn disk_bytes(&self) -> usize {
        let files = self.disk.values();
        files.map(|stored| file_bytes(&stored.label)).sum()
    }

    /// Checks that both tiers stay within their bytes, and that the pager counts the bytes of
    /// host memory correctly.
    pub fn check(&self, stats: &PagerStats) {
        let is_arriving = |job: &&Job| match job.task {
            Task::Pack => !self.cancelled_packs.contains(&job.copy),
            task => task == Task::Read || task == Task::Fetch,
        };
        let arriving = self.jobs.iter().filter(is_arriving).map(|job| &job.label);
        let labels = self.host.values().map(|stored| &stored.label);
        let bytes: usize = labels
            .chain(arriving)
            .map(|label| host_bytes(label.bytes))
            .sum();
        assert_eq!(stats.host_bytes, bytes, "host memory is counted");
        assert!(bytes <= self.host_bytes_max, "host memory has its bound");
        assert!(
            self.disk_bytes() <= self.disk_bytes_max,
            "files have their bound"
        );
        assert!(
            stats.disk_bytes <= self.disk_bytes_max,
            "so has their count"
        );
    }

    /// Checks that no job runs, and that the pager knows each copy.
    pub fn check_end(&self, stats: &PagerStats) {
        assert!(self.jobs.is_empty(), "jobs end: {:?}", self.jobs);
        assert_eq!(stats.host_copies, self.host.len(), "copies in host memory");
        assert_eq!(stats.disk_copies, self.disk.len(), "copies on the disk");
        let only_host = self
            .host
            .keys()
            .filter(|copy| !self.disk.contains_key(copy));
        let all = self.disk.len() + only_host.count();
        assert_eq!(stats.copies, all, "a copy is somewhere");
    }
}

fn file_bytes(label: &Label) -> usize {
    disk_bytes(label.tokens.len(), label.bytes)
}

/// The text holds all that makes a difference for later jobs.
impl<S: fmt::Debug> fmt::Debug for CopyMachine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.iter().map(|(copy, stored)| (copy, &stored.state));
        let disk = self.disk.iter().map(|(copy, stored)| (copy, &stored.state));
        let remote = self.remote.iter();
        let remote = remote.map(|stored| (&stored.label, &stored.state));
        let mut text = f.debug_struct("CopyMachine");
        text.field("jobs", &self.jobs)
            .field("host", &host.collect::<BTreeMap<_, _>>())
            .field("disk", &disk.collect::<BTreeMap<_, _>>())
            .field("remote", &remote.collect::<Vec<_>>())
            .field("is_remote_dropped", &self.is_remote_dropped)
            .field("asks", &self.asks)
            .field("is_unpacked", &self.is_unpacked)
            .field("cancelled_packs", &self.cancelled_packs)
            .finish()
    }
}
