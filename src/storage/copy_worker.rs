//! Copy workers: threads that move bytes and decide nothing.
//!
//! One thread copies between device and host memory, another between host memory and the disk.
//! Exports are packed when no other job waits, so loads go first. A thread never waits for the
//! device: an export that is not computed yet is checked again later, and dropped when another
//! device takes its place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, select};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::device::{Export, ExportQueue, HostEnd, ImportQueue, NextExport};
use crate::runtime::{EngineRuntime, JobQueue, Queue, Runtime, Worker};
use crate::storage::tiers::precision::{EightBits, PrecisionError};
use crate::storage::tiers::{Buffer, BufferPool, DiskTier, HostTier, Tier, TierError};
use motet_core::pager::{CopyQueue, Done, Job, JobError, Label, Precision, Task};
use motet_model::Packer;
use motet_protocol::CopyId;
use motet_protocol::ModelError;
use motet_protocol::time::eighth;
use motet_sync::primitives::inject::{InjectedBug, injected};
use motet_sync::primitives::{self, Mutex, MutexGuard};

/// Upper bound on the jobs of a thread: the pager's core gives it one at a time.
const JOBS_MAX: usize = 1;
/// Shortest time between two checks whether an export is computed.
const WATCH_MIN: Duration = Duration::from_micros(50);
/// Longest time between two checks.
const WATCH_MAX: Duration = Duration::from_millis(10);
/// Time for which idle buffers are kept.
const IDLE_BUFFER_TIMEOUT: Duration = Duration::from_secs(5);

/// The error of a job.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error(transparent)]
    Tier(#[from] TierError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    #[error("the copy has another number type than the model")]
    NoFloats,
    #[error("the copy was given up")]
    GivenUp,
    #[error("the copy worker panicked")]
    Panicked,
}

impl CopyError {
    /// Whether the copy is damaged or gone.
    fn is_lost(&self) -> bool {
        match self {
            Self::Tier(error) => error.is_lost(),
            Self::Model(_) | Self::Panicked | Self::GivenUp => false,
            Self::Precision(_) | Self::NoFloats => true,
        }
    }
}

/// The pager's handle of the copy workers. Dropping it ends them.
pub struct CopyWorkers {
    memory: JobQueue<Job>,
    disk: Option<JobQueue<Job>>,
    host: Host,
    /// Discards the detached states of one copy, or all.
    discard: Box<dyn Fn(Option<CopyId>) + Send + Sync>,
}

/// The memory and disk that copies are stored in.
#[derive(Debug)]
pub struct Stores {
    /// Pool of buffers for copies.
    pub pool: BufferPool,
    /// Host memory.
    pub host: Host,
    /// The disk tier, if configured.
    pub disk: Option<DiskTier>,
    /// Time after which an export that the device has not computed is given up. Otherwise
    /// requests that need its memory would wait forever if the device hangs and gets no other
    /// work.
    pub export_timeout: Duration,
}

/// Host memory, shared by the copy workers and the pager.
#[derive(Clone, Debug)]
pub struct Host(primitives::Arc<Mutex<HostState>>);

#[derive(Debug)]
struct HostState {
    tier: HostTier,
    /// Copies that the device must export. Other exports are of no use.
    awaited: FxHashMap<CopyId, Arc<Label>>,
}

/// The worker that copies between the device and host memory.
pub struct MemoryCopyWorker<K: Packer> {
    packer: K,
    pool: BufferPool,
    pub(super) host: Host,
    imports: ImportQueue<K::DetachedState>,
    export_timeout: Duration,
}

/// The worker that copies between host memory and the disk.
#[derive(Debug)]
pub struct DiskCopyWorker {
    host: Host,
    tier: DiskTier,
}

/// The memory worker with its ends of the queues.
pub(super) struct MemoryWorker<K: Packer> {
    pub(super) copy_worker: MemoryCopyWorker<K>,
    pub(super) exports: ExportQueue<K::DetachedState>,
    pub(super) done: mpsc::Sender<Done>,
    /// Dropped when the worker has ended, and its memory is free.
    pub(super) alive: Arc<oneshot::Sender<()>>,
}

/// The disk worker with its end of the queue.
pub(super) struct DiskWorker {
    pub(super) copy_worker: DiskCopyWorker,
    pub(super) done: mpsc::Sender<Done>,
    /// Dropped when the worker has ended, and its memory is free.
    pub(super) alive: Arc<oneshot::Sender<()>>,
}

impl std::fmt::Debug for CopyWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyWorkers").finish_non_exhaustive()
    }
}

impl<K: Packer> std::fmt::Debug for MemoryCopyWorker<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryCopyWorker").finish_non_exhaustive()
    }
}

impl Host {
    /// Creates empty host memory.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self(primitives::Arc::new(Mutex::new(HostState {
            tier: HostTier::new(bytes_max),
            awaited: FxHashMap::default(),
        })))
    }

    /// Drops a copy. One that is still to be packed is not stored.
    pub fn forget(&self, copy: CopyId) {
        let mut state = self.state();
        state.awaited.remove(&copy);
        // Removal from host memory never fails.
        state.tier.remove(copy).ok();
    }

    fn store(&self, copy: CopyId, label: &Label, bytes: &Arc<Buffer>) -> Result<(), TierError> {
        self.state().tier.store(copy, label, bytes)
    }

    fn expect_export(&self, copy: CopyId, label: Arc<Label>) {
        self.state().awaited.insert(copy, label);
    }

    /// Returns the label of a copy that is to be exported, unless it was given up.
    pub(super) fn awaited(&self, copy: CopyId) -> Option<Arc<Label>> {
        self.state().awaited.get(&copy).map(Arc::clone)
    }

    /// Stores an exported copy, unless it was given up meanwhile.
    fn store_awaited(&self, copy: CopyId, bytes: &Arc<Buffer>) -> Result<(), CopyError> {
        if injected(InjectedBug::HostKeepTwoLocks) {
            // Checks and stores in two steps: the copy may be given up in between.
            let label = self.awaited(copy).ok_or(CopyError::GivenUp)?;
            self.state().awaited.remove(&copy);
            return Ok(self.store(copy, &label, bytes)?);
        }
        let mut state = self.state();
        let label = state.awaited.remove(&copy).ok_or(CopyError::GivenUp)?;
        Ok(state.tier.store(copy, &label, bytes)?)
    }

    fn load(&self, copy: CopyId, label: &Label) -> Result<Arc<Buffer>, TierError> {
        self.state().tier.load(copy, label)
    }

    /// A panic of another thread leaves a consistent state, so poisoning is ignored.
    fn state(&self) -> MutexGuard<'_, HostState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Packer> MemoryCopyWorker<K> {
    /// Creates a worker between this host memory and the device's imports.
    #[must_use]
    pub fn new(
        packer: K,
        pool: BufferPool,
        host: Host,
        imports: ImportQueue<K::DetachedState>,
    ) -> Self {
        Self {
            packer,
            pool,
            host,
            imports,
            export_timeout: Duration::MAX,
        }
    }

    /// Runs a job. Returns `None` if the job waits for the device.
    pub fn run_job(&mut self, job: Job) -> Option<Done> {
        match job.task {
            Task::Pack => {
                self.host.expect_export(job.copy, job.label);
                None
            }
            task => Some(timed(job.copy, task, job.label.bytes, || self.unpack(&job))),
        }
    }

    /// Returns the oldest export, if the device has computed it or has exceeded the timeout.
    pub fn next_export(
        &self,
        exports: &ExportQueue<K::DetachedState>,
    ) -> NextExport<K::DetachedState> {
        exports.next(self.export_timeout, |detached_state| {
            self.packer.is_computed(detached_state)
        })
    }

    /// Packs an exported segment. Returns `None` if no job asks for it.
    pub fn pack(&mut self, export: Export<K::DetachedState>) -> Option<Done> {
        let copy = export.copy;
        let label = self.host.awaited(copy)?;
        let done = timed(copy, Task::Pack, label.bytes, || {
            let detached_state = export.detached_state?;
            let mut full = self
                .pool
                .take(self.packer.packed_bytes(label.segment_size()))?;
            self.packer.pack(&detached_state, &mut full)?;
            // The device's memory is freed before the pager learns of it.
            drop(detached_state);
            let stored = self.at_rest(&label, full)?;
            self.host.store_awaited(copy, &Arc::new(stored))
        });
        if done.result.is_err() {
            self.host.forget(copy);
        }
        Some(done)
    }

    fn unpack(&self, job: &Job) -> Result<(), CopyError> {
        let label = &job.label;
        let stored = self.host.load(job.copy, label)?;
        let detached_state = match label.precision {
            Precision::Full => self.packer.unpack(label.segment_size(), &stored)?,
            Precision::Eight => {
                let full = self.packer.packed_bytes(label.segment_size());
                let mut full = self.pool.take(full)?;
                self.eight_bits(label)?.decode(&stored, &mut full)?;
                self.packer.unpack(label.segment_size(), &full)?
            }
        };
        self.imports.put(job.copy, detached_state);
        Ok(())
    }

    /// Converts a packed segment to the precision in which it is stored.
    fn at_rest(&self, label: &Label, full: Buffer) -> Result<Buffer, CopyError> {
        match label.precision {
            Precision::Full => Ok(full),
            Precision::Eight => {
                let mut eight = self.pool.take(label.bytes)?;
                self.eight_bits(label)?.encode(&full, &mut eight)?;
                Ok(eight)
            }
        }
    }

    fn eight_bits(&self, label: &Label) -> Result<EightBits, CopyError> {
        let floats = self.packer.floats(label.segment_size());
        if floats.is_empty() {
            return Err(CopyError::NoFloats);
        }
        Ok(EightBits(floats))
    }

    fn run(
        mut self,
        jobs: &Receiver<Job>,
        exports: &ExportQueue<K::DetachedState>,
        done: &mpsc::Sender<Done>,
    ) {
        loop {
            let job = match jobs.try_recv() {
                Ok(job) => Some(job),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => None,
            };
            let ended = if let Some(job) = job {
                self.run_job(job)
            } else {
                let next = match self.next_export(exports) {
                    NextExport::Ready(export) => Some(self.pack(export)),
                    NextExport::NotComputed(waited) => self.watch(jobs, waited),
                    NextExport::Nothing => self.idle(jobs, exports),
                };
                match next {
                    Some(ended) => ended,
                    None => return,
                }
            };
            if let Some(ended) = ended
                && let Err(unreported) = done.blocking_send(ended)
            {
                return self.retract(&unreported.0);
            }
        }
    }

    /// Waits for a job until the oldest export must be checked again; `waited` is its age. Runs
    /// the job. Returns `None` if the pager is gone.
    fn watch(&mut self, jobs: &Receiver<Job>, waited: Duration) -> Option<Option<Done>> {
        match jobs.recv_timeout(eighth(waited).clamp(WATCH_MIN, WATCH_MAX)) {
            Ok(job) => Some(self.run_job(job)),
            Err(RecvTimeoutError::Timeout) => {
                // An export may never be computed. Idle memory is trimmed all the same.
                self.pool.trim(IDLE_BUFFER_TIMEOUT);
                Some(None)
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Waits for a job or an export, and runs the job. Returns `None` if the pager or the
    /// device is gone. A job to unpack may be lost then: no receiver is left.
    fn idle(
        &mut self,
        jobs: &Receiver<Job>,
        exports: &ExportQueue<K::DetachedState>,
    ) -> Option<Option<Done>> {
        select! {
            recv(jobs) -> job => Some(self.run_job(job.ok()?)),
            recv(exports.wakeup().receiver()) -> received => {
                received.ok()?;
                Some(None)
            }
            default(IDLE_BUFFER_TIMEOUT) => {
                self.pool.trim(IDLE_BUFFER_TIMEOUT);
                Some(None)
            }
        }
    }

    /// Discards a detached state whose job cannot be reported any more.
    pub(super) fn retract(&self, unreported: &Done) {
        if unreported.task == Task::Unpack && unreported.result.is_ok() {
            drop(self.imports.take(unreported.copy));
        }
    }
}

impl DiskCopyWorker {
    /// Creates a worker between this host memory and this disk.
    #[must_use]
    pub fn new(host: Host, tier: DiskTier) -> Self {
        Self { host, tier }
    }

    /// Runs a job.
    pub fn run_job(&mut self, job: &Job) -> Done {
        let bytes = match job.task {
            Task::Remove => 0,
            _ => job.label.bytes,
        };
        timed(job.copy, job.task, bytes, || {
            match job.task {
                Task::Read => {
                    let bytes = self.tier.load(job.copy, &job.label)?;
                    self.host.store(job.copy, &job.label, &bytes)?;
                }
                Task::Write => {
                    let bytes = self.host.load(job.copy, &job.label)?;
                    self.tier.store(job.copy, &job.label, &bytes)?;
                }
                Task::Remove => self.tier.remove(job.copy)?,
                Task::Pack | Task::Unpack => unreachable!("a job of the memory worker"),
            }
            Ok(())
        })
    }
}

impl CopyWorkers {
    /// Starts the workers. They send finished jobs to `done`. `alive` is dropped when the last
    /// of them has ended and all its memory is free.
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    pub(crate) fn start<K: Packer>(
        packer: K,
        host_end: HostEnd<K::DetachedState>,
        stores: Stores,
        done: mpsc::Sender<Done>,
        alive: &Arc<oneshot::Sender<()>>,
        runtime: &EngineRuntime,
    ) -> std::io::Result<Self> {
        let HostEnd { exports, imports } = host_end;
        let Stores {
            pool,
            host,
            disk,
            export_timeout,
        } = stores;
        let mut copy_worker = MemoryCopyWorker::new(packer, pool, host.clone(), imports.clone());
        copy_worker.export_timeout = export_timeout;
        let memory = runtime.spawn(MemoryWorker {
            copy_worker,
            exports,
            done: done.clone(),
            alive: Arc::clone(alive),
        })?;
        let start_disk = |tier| {
            runtime.spawn(DiskWorker {
                copy_worker: DiskCopyWorker::new(host.clone(), tier),
                done,
                alive: Arc::clone(alive),
            })
        };
        let disk = disk.map(start_disk).transpose()?;
        Ok(Self {
            memory,
            disk,
            host,
            discard: Box::new(move |copy| match copy {
                Some(copy) => drop(imports.take(copy)),
                None => imports.clear(),
            }),
        })
    }

    /// Queues a job. Returns false if the thread is gone.
    ///
    /// # Panics
    ///
    /// If the worker has a queued job already: the pager's core gives one at a time.
    #[must_use]
    pub fn run_job(&self, job: Job) -> bool {
        if job.task == Task::Pack {
            // The job is registered before the device can export the copy, until it is given
            // up.
            self.host.expect_export(job.copy, job.label);
            return true;
        }
        let copy_queue = match job.task.copy_queue() {
            CopyQueue::Memory => &self.memory,
            CopyQueue::Disk => self.disk.as_ref().expect("disk jobs need a disk"),
        };
        copy_queue.enqueue(job, "the pager gives no more jobs than fit")
    }

    /// Drops a copy from host memory.
    pub fn forget(&self, copy: CopyId) {
        self.host.forget(copy);
    }

    /// Discards one detached state of a copy.
    pub fn discard(&self, copy: CopyId) {
        (self.discard)(Some(copy));
    }

    /// Discards all detached states.
    pub fn discard_all(&self) {
        (self.discard)(None);
    }
}

impl<K: Packer> Worker for MemoryWorker<K> {
    type Job = Job;
    const NAME: &'static str = "motet-memory";
    const JOBS_MAX: usize = JOBS_MAX;

    fn run(self, jobs: Receiver<Job>) {
        self.copy_worker.run(&jobs, &self.exports, &self.done);
        drop(self.alive);
    }
}

impl Worker for DiskWorker {
    type Job = Job;
    const NAME: &'static str = "motet-disk";
    const JOBS_MAX: usize = JOBS_MAX;

    fn run(mut self, jobs: Receiver<Job>) {
        while let Ok(job) = jobs.recv()
            && self
                .done
                .blocking_send(self.copy_worker.run_job(&job))
                .is_ok()
        {}
        // The folder is unlocked before `alive` reports the end.
        drop(self.copy_worker);
        drop(self.alive);
    }
}

/// Runs a job and reports its result. A panic is an error.
fn timed(
    copy: CopyId,
    task: Task,
    bytes: usize,
    job: impl FnOnce() -> Result<(), CopyError>,
) -> Done {
    let started_at = Instant::now();
    let done = catch_unwind(AssertUnwindSafe(job)).unwrap_or(Err(CopyError::Panicked));
    Done {
        copy,
        task,
        result: done.map_err(|error| JobError {
            is_lost: error.is_lost(),
            what: error.to_string(),
        }),
        took: started_at.elapsed(),
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use crate::device::transfer_queue;
    use crate::storage::copy_worker::*;
    use motet_model::Model;
    use motet_model::oracle::{Oracle, OracleConfig, OraclePacker};
    use motet_protocol::LayerKind;

    /// An export that is never computed keeps the thread from idling, but its idle memory is
    /// trimmed.
    #[tokio::test(start_paused = true)]
    async fn idle_memory_is_trimmed_while_an_export_is_pending() {
        let oracle = Oracle::new(OracleConfig::with_layers(&[LayerKind::Full]));
        let packer = oracle.expect("a valid configuration").packer();
        let (_device_end, HostEnd { imports, .. }) =
            transfer_queue::<<OraclePacker as Packer>::DetachedState>();
        let pool = BufferPool::new(1 << 20);
        let mut copy_worker = MemoryCopyWorker::new(packer, pool.clone(), Host::new(0), imports);
        let (_pager, jobs) = crossbeam_channel::bounded(JOBS_MAX);
        drop(pool.take(100).expect("memory is available"));
        let idle_bytes = pool.stats().idle_bytes;
        assert!(idle_bytes > 0);
        let mut watch = |expected| {
            let done = copy_worker.watch(&jobs, Duration::ZERO);
            assert!(matches!(done, Some(None)), "no job has ended: {done:?}");
            assert_eq!(pool.stats().idle_bytes, expected);
        };
        watch(idle_bytes);
        tokio::time::advance(IDLE_BUFFER_TIMEOUT).await;
        watch(0);
    }
}
