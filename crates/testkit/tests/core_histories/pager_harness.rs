//! The pager's part of the harness: its core, the copy workers' jobs, and the messages between
//! them. The history decides when each event happens.

use std::collections::VecDeque;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use motet_core::config::{DiskConfig, PagerConfig, RemoteConfig, RemoteSends};
use motet_core::pager::PagerStats;
use motet_core::pager::{
    Ask, Asked, CopyQueue, Done, Effect, Job, JobError, Message, PagerCore, PagerEvent, Precision,
    RecoveryLog, Task,
};
use motet_device::{DeviceEnd, ExportQueue, ImportQueue, NextExport, transfer_queue};
use motet_model::oracle::Oracle;
use motet_model::{DetachedState, Model, Packer, SegmentSize};
use motet_protocol::CopyId;
use motet_protocol::remote::RemoteModel;
use motet_storage::copy_worker::{
    DiskCopyWorker, Host, MemoryCopyWorker, RemoteCopyWorker, SharedTier,
};
use motet_storage::tiers::{BufferPool, DiskLimits, DiskTier, TierError};
use motet_testkit::remote::MemoryRemote;

use crate::followed_blocks::Places;
use rand::{Rng, RngExt};

/// Channels of the pager: to the core, to the cache, to two copy workers, back from all, to the
/// remote tier's worker, and to the tier with a question.
pub(crate) const PAGER_CHANNELS: u32 = 7;

pub(crate) struct PagerHarness {
    pub(crate) core: PagerCore,
    recovery_log: RecoveryLog,
    /// The core's latest statistics.
    stats: PagerStats,
    /// Where the copies are, by the jobs that ended.
    pub(crate) places: Places,
    /// The core panics at the next message.
    pub(crate) fails: bool,
    /// Number of cores that were lost.
    pub(crate) lost: usize,
    pub(crate) config: PagerConfig,
    memory: MemoryCopyWorker<<Oracle as Model>::Packer>,
    disk: Option<DiskCopyWorker>,
    remote: Option<(RemoteCopyWorker, SharedTier)>,
    /// The content of the remote tier.
    pub(crate) remote_store: MemoryRemote,
    host: Host,
    pool: BufferPool,
    exports: ExportQueue<DetachedState<Oracle>>,
    pub(crate) imports: ImportQueue<DetachedState<Oracle>>,
    /// Messages in flight to the pager, and to the cache.
    pub(crate) messages: VecDeque<Message>,
    pub(crate) sent: VecDeque<PagerEvent>,
    memory_jobs: VecDeque<Job>,
    disk_jobs: VecDeque<Job>,
    remote_jobs: VecDeque<Job>,
    asks: VecDeque<Ask>,
    done: VecDeque<Done>,
    /// Jobs that still fail because of a faulty disk.
    pub(crate) disk_faults: usize,
    /// Whether copies were found on the disk.
    pub(crate) found: bool,
}

/// Tiers of a few pages, or of many, with a disk or without.
pub(crate) fn any_tiers(rng: &mut impl Rng, folder: &Path) -> PagerConfig {
    let pages = |rng: &mut dyn FnMut(usize) -> usize| [1, 3, 6, 1_000][rng(4)] * 4096;
    let mut below = |most: usize| rng.random_range(0..most);
    let clean = below(3);
    let host_bytes_max = pages(&mut below);
    PagerConfig {
        // Live sequences are copied as they grow, or not.
        backup_tokens: [5, 0, 17][clean],
        // Enough for the labels of a few copies, or mostly of all.
        label_bytes_max: Some(if clean == 0 { 8 << 10 } else { 1 << 22 }),
        host_bytes_max,
        disk: (below(3) > 0).then(|| DiskConfig {
            folder: folder.to_owned(),
            bytes_max: pages(&mut below),
        }),
        clean_part: [0.1, 0.5, 1.0][clean],
        disk_timeout: Duration::from_millis([5, 1_000_000][below(2)]),
        remote: (below(3) > 0).then(|| RemoteConfig {
            sends: [RemoteSends::All, RemoteSends::UsedTwice][below(2)],
            shares_salted: below(2) > 0,
            grid_tokens: 4,
            answer_timeout: Duration::from_millis([1, 1_000][below(2)]),
            timeout: Duration::from_millis([5, 1_000_000][below(2)]),
        }),
        ..PagerConfig::default()
    }
}

impl PagerHarness {
    /// A pager for this model, and the device end of its transfer queue.
    pub(crate) fn new(
        model: &Oracle,
        config: &PagerConfig,
        remote: &MemoryRemote,
    ) -> (Self, DeviceEnd<DetachedState<Oracle>>) {
        let (transfer_queue, host_end) = transfer_queue();
        // Pooled memory would hide what is in use.
        let pool = BufferPool::new(0);
        let opened = config.disk.as_ref().map(|disk| {
            let (identity, pool) = (model.packer().identity(), pool.clone());
            let limits = DiskLimits {
                bytes_max: disk.bytes_max,
                label_bytes_max: config.label_bytes_max(),
            };
            DiskTier::open(&disk.folder, limits, identity, pool, CopyId(1)).expect("a disk")
        });
        let host = Host::new(config.host_bytes_max);
        let (disk, found) = match opened {
            Some((tier, found)) => {
                // A copy on a disk that failed for a while may exist twice.
                let whole = |error: &TierError| {
                    matches!(
                        error,
                        TierError::OutOfSpace { .. } | TierError::Twice { .. }
                    )
                };
                let removed = found.removed.iter().chain(&found.left);
                let damaged: Vec<_> = removed.filter(|(_, why)| !whole(why)).collect();
                assert!(damaged.is_empty(), "{damaged:?}");
                (Some(DiskCopyWorker::new(host.clone(), tier)), found.copies)
            }
            None => (None, Vec::new()),
        };
        let packer = model.packer();
        let sizes = {
            let packer = packer.clone();
            move |segment_size: SegmentSize| (packer.packed_bytes(segment_size), Precision::Full)
        };
        let remote_store = remote.clone();
        let remote = config.remote.clone().map(|config| {
            let tier = SharedTier {
                tier: Arc::new(remote.clone()),
                model: RemoteModel {
                    identity: model.packer().identity(),
                    grid_tokens: config.grid_tokens,
                    whole: !model.spec().resumes_anywhere(),
                },
                config,
            };
            let worker = RemoteCopyWorker::new(host.clone(), pool.clone(), tier.clone());
            (worker, tier)
        });
        let any = !found.is_empty();
        let recovery_log = RecoveryLog::new(&found);
        let places = Places::of(&found);
        let core = PagerCore::new(model.spec().clone(), config.clone(), Box::new(sizes), found);
        core.check_integrity();
        let imports = host_end.imports.clone();
        let pages = Self {
            stats: core.stats(),
            core,
            recovery_log,
            places,
            fails: false,
            lost: 0,
            config: config.clone(),
            memory: MemoryCopyWorker::new(packer, pool.clone(), host.clone(), imports.clone()),
            disk,
            remote,
            remote_store,
            host,
            pool,
            exports: host_end.exports,
            imports,
            messages: VecDeque::new(),
            sent: VecDeque::new(),
            memory_jobs: VecDeque::new(),
            disk_jobs: VecDeque::new(),
            remote_jobs: VecDeque::new(),
            asks: VecDeque::new(),
            done: VecDeque::new(),
            disk_faults: 0,
            found: any,
        };
        (pages, transfer_queue)
    }

    /// Delivers the oldest message of a channel, except for events to the cache. Returns false
    /// if there is none.
    pub(crate) fn deliver(&mut self, channel: u32, now: Duration) -> bool {
        match channel {
            0 => match self.messages.pop_front() {
                Some(message) => self.handle_message(now, message),
                None => return false,
            },
            2 => return self.copy_memory(),
            3 => return self.copy_disk(),
            5 => return self.copy_remote(),
            6 => return self.answer(now),
            _ => match self.done.pop_front() {
                Some(done) => self.handle_message(now, Message::Done(done)),
                None => return false,
            },
        }
        true
    }

    /// Passes the time to the core, if it waits for it.
    pub(crate) fn tick(&mut self, now: Duration) {
        if self.core.wakes_at().is_some_and(|at| at <= now) {
            self.handle_message(now, Message::TimePassed);
        }
    }

    /// Handles a message. A core that fails has changed, and its effects are lost: another one
    /// replaces it.
    fn handle_message(&mut self, now: Duration, message: Message) {
        self.recovery_log.on_message(&message);
        if let Message::Done(done) = &message {
            self.places.done(done);
        }
        let mut effects = self.core.handle(now, message);
        if std::mem::take(&mut self.fails) {
            self.lost += 1;
            effects = self.core.rebuild(now, &self.recovery_log, self.stats);
        }
        for effect in effects {
            self.recovery_log.on_effect(&effect);
            self.places.on_effect(&effect);
            match effect {
                Effect::Notify(sent) => self.sent.push_back(sent),
                Effect::Do(job) => match job.task.copy_queue() {
                    // The copy workers know of an export at once, as the core does.
                    CopyQueue::Memory if job.task == Task::Pack => drop(self.memory.run_job(job)),
                    CopyQueue::Memory => self.memory_jobs.push_back(job),
                    CopyQueue::Disk => self.disk_jobs.push_back(job),
                    CopyQueue::Remote => self.remote_jobs.push_back(job),
                },
                Effect::Forget(copy) => self.host.forget(copy),
                Effect::Discard(copy) => drop(self.imports.take(copy)),
                Effect::DiscardAll => self.imports.clear(),
                Effect::Ask(ask) => self.asks.push_back(ask),
            }
        }
        self.stats = self.core.stats();
        self.check();
    }

    /// The worker between device and host: loads go before offloads.
    fn copy_memory(&mut self) -> bool {
        if let Some(job) = self.memory_jobs.pop_front() {
            let done = self.memory.run_job(job);
            self.end(done);
            return true;
        }
        let NextExport::Ready(detached_state) = self.memory.next_export(&self.exports) else {
            return false;
        };
        let done = self.memory.pack(detached_state);
        self.end(done);
        true
    }

    fn copy_disk(&mut self) -> bool {
        let Some(job) = self.disk_jobs.pop_front() else {
            return false;
        };
        let mut done = None;
        if self.disk_faults > 0 && job.task != Task::Remove {
            self.disk_faults -= 1;
            done = Some(Done {
                copy: job.copy,
                task: job.task,
                result: Err(JobError {
                    what: "a disk that fails".into(),
                    is_lost: false,
                }),
                took: Duration::ZERO,
                bytes: 0,
            });
        }
        let disk = self.disk.as_mut().expect("a disk has jobs");
        let done = done.unwrap_or_else(|| disk.run_job(&job));
        self.end(Some(done));
        true
    }

    fn copy_remote(&mut self) -> bool {
        let Some(job) = self.remote_jobs.pop_front() else {
            return false;
        };
        let (worker, _) = self.remote.as_mut().expect("a remote tier has jobs");
        let done = on_paused_clock(worker.run_job(&job));
        self.end(Some(done));
        true
    }

    /// The remote tier answers its oldest question.
    fn answer(&mut self, now: Duration) -> bool {
        let Some(ask) = self.asks.pop_front() else {
            return false;
        };
        let (_, tier) = self.remote.as_ref().expect("a remote tier is asked");
        let asked = on_paused_clock(tier.ask(ask));
        let took = Duration::from_micros(10);
        self.handle_message(now, Message::Asked(Asked { took, ..asked }));
        true
    }

    fn end(&mut self, done: Option<Done>) {
        // A fixed time makes the decision to load independent of this machine.
        let took = Duration::from_micros(10);
        self.done.extend(done.map(|done| Done { took, ..done }));
        self.check();
    }

    /// Checks the invariants after each event.
    fn check(&self) {
        self.core.check_integrity();
        let in_use = self.pool.stats().in_use_bytes;
        assert!(
            in_use <= self.config.host_bytes_max,
            "{in_use} bytes of host memory, of {} at most",
            self.config.host_bytes_max
        );
        let known = self.core.stats().label_bytes;
        assert!(
            known <= self.config.label_bytes_max(),
            "{known} bytes of labels"
        );
        if let Some(disk) = &self.config.disk {
            let files = std::fs::read_dir(&disk.folder).expect("a folder");
            let bytes = |file: std::fs::DirEntry| file.metadata().map_or(0, |file| file.len());
            let used: u64 = files.map(|file| bytes(file.expect("a file"))).sum();
            assert!(used <= disk.bytes_max as u64, "{used} bytes of files");
        }
    }

    /// Checks that nothing is in flight, no sequence waits, and no copy is left over.
    pub(crate) fn check_end(&self) {
        assert!(self.core.is_idle(), "the pager has nothing to do");
        assert!(
            self.exports.is_empty() && self.imports.is_empty(),
            "detached states in the transfer queue"
        );
        let stats = self.core.stats();
        let in_use = self.pool.stats().in_use_bytes;
        assert_eq!(in_use, stats.host_bytes, "host memory holds only copies");
    }
}

/// Completes a call of the remote tier. Time passes as soon as nothing else is to be done.
fn on_paused_clock<T>(call: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime without threads").block_on(call)
}
