//! Copy workers: they move bytes and decide nothing.
//!
//! One copies between device and host memory, one between host memory and the disk, and one between
//! host memory and the tier that several processes share. Each runs one job at a time, on a thread
//! that its owner provides.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use motet_core::config::RemoteConfig;
use motet_core::pager::{Ask, Asked, Done, Job, JobError, Label, Precision, Task};
use motet_device::{Export, ExportQueue, ImportQueue, NextExport};
use motet_model::Packer;
use motet_protocol::remote::{RemoteError, RemoteModel, RemoteTier};
use motet_protocol::{CopyId, ModelError};
use motet_sync::primitives::inject::{InjectedBug, injected};
use motet_sync::primitives::{self, Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::tiers::precision::{EightBits, PrecisionError};
use crate::tiers::{Buffer, BufferPool, DiskTier, HostTier, Tier, TierError};

/// The error of a job.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error(transparent)]
    Tier(#[from] TierError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("the store did not answer in time")]
    TimedOut,
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
            Self::Remote(error) => error.is_lost(),
            Self::Model(_) | Self::Panicked | Self::GivenUp | Self::TimedOut => false,
            Self::Precision(_) | Self::NoFloats => true,
        }
    }
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
    host: Host,
    imports: ImportQueue<K::DetachedState>,
    export_timeout: Duration,
}

/// The worker that copies between host memory and the disk.
#[derive(Debug)]
pub struct DiskCopyWorker {
    host: Host,
    tier: DiskTier,
}

/// The worker that copies between host memory and a tier that several processes share.
#[derive(Debug)]
pub struct RemoteCopyWorker {
    host: Host,
    pool: BufferPool,
    tier: SharedTier,
}

/// A tier that several processes share, as one model uses it.
#[derive(Clone, Debug)]
pub struct SharedTier {
    /// The tier.
    pub tier: Arc<dyn RemoteTier>,
    /// The model.
    pub model: RemoteModel,
    /// Its settings.
    pub config: RemoteConfig,
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

    /// Registers a copy that the device is to export, until it is given up.
    pub fn expect_export(&self, copy: CopyId, label: Arc<Label>) {
        self.state().awaited.insert(copy, label);
    }

    /// Returns the label of a copy that is to be exported, unless it was given up.
    #[must_use]
    pub fn awaited(&self, copy: CopyId) -> Option<Arc<Label>> {
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

    /// The same worker; it gives an export up that the device has not computed in this time.
    #[must_use]
    pub fn with_export_timeout(mut self, export_timeout: Duration) -> Self {
        self.export_timeout = export_timeout;
        self
    }

    /// The host memory that it copies to and from.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns buffers to the system that were idle for this long.
    pub fn trim(&self, idle: Duration) {
        self.pool.trim(idle);
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

    /// Discards a detached state whose job cannot be reported any more.
    pub fn retract(&self, unreported: &Done) {
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
                Task::Pack | Task::Unpack | Task::Fetch | Task::Send => {
                    unreachable!("a job of another worker")
                }
            }
            Ok(())
        })
    }
}

impl RemoteCopyWorker {
    /// Creates a worker between this host memory and this tier.
    #[must_use]
    pub fn new(host: Host, pool: BufferPool, tier: SharedTier) -> Self {
        Self { host, pool, tier }
    }

    /// Runs a job, for no longer than the settings allow.
    pub async fn run_job(&mut self, job: &Job) -> Done {
        let started_at = Instant::now();
        let bytes = job.label.bytes;
        let timeout = self.tier.config.job_timeout(bytes);
        let done = tokio::time::timeout(timeout, self.copy(job)).await;
        done_after(
            job.copy,
            job.task,
            bytes,
            started_at,
            done.unwrap_or(Err(CopyError::TimedOut)),
        )
    }

    /// Reports that a job has panicked.
    #[must_use]
    pub fn panicked(job: &Job) -> Done {
        let result = Err(CopyError::Panicked);
        done_after(job.copy, job.task, 0, Instant::now(), result)
    }

    async fn copy(&self, job: &Job) -> Result<(), CopyError> {
        let SharedTier { tier, model, .. } = &self.tier;
        let label = &job.label;
        if job.task == Task::Fetch {
            let mut bytes = self.pool.take(label.bytes)?;
            tier.load(model, label, &mut bytes).await?;
            self.host.store(job.copy, label, &Arc::new(bytes))?;
        } else {
            let bytes = self.host.load(job.copy, label)?;
            tier.store(model, &job.path, label, &bytes).await?;
        }
        Ok(())
    }
}

impl SharedTier {
    /// Asks the tier, and waits for no longer than the settings allow.
    pub async fn ask(&self, ask: Ask) -> Asked {
        let started_at = Instant::now();
        let answer = self.tier.find(&self.model, &ask);
        let answer = tokio::time::timeout(self.config.timeout, answer).await;
        let result = match answer {
            Ok(Ok(labels)) => Ok(labels),
            Ok(Err(error)) => Err(CopyError::from(error)),
            Err(_) => Err(CopyError::TimedOut),
        };
        Asked {
            ask,
            result: result.map_err(job_error),
            took: started_at.elapsed(),
        }
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
    done_after(copy, task, bytes, started_at, done)
}

fn done_after(
    copy: CopyId,
    task: Task,
    bytes: usize,
    started_at: Instant,
    result: Result<(), CopyError>,
) -> Done {
    Done {
        copy,
        task,
        result: result.map_err(job_error),
        took: started_at.elapsed(),
        bytes,
    }
}

fn job_error(error: CopyError) -> JobError {
    JobError {
        is_lost: error.is_lost(),
        what: error.to_string(),
    }
}
