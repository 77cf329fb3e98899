//! The threads of the copy workers.
//!
//! One thread copies between device and host memory, one between host memory and the disk, and one
//! between host memory and the remote tier, whose questions are tasks of the runtime.
//! Exports are packed when no other job waits, so loads go first. A thread never waits for the
//! device: an export that is not computed yet is checked again later, and dropped when another
//! device takes its place.

#[cfg(motet_injected)]
mod simulated;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, select};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::runtime::{EngineRuntime, JobQueue, Queue, Runtime, Worker};
use motet_core::pager::{Ask, Asked, CopyQueue, Done, Job, Task};
use motet_device::{ExportQueue, HostEnd, NextExport};
use motet_model::Packer;
use motet_protocol::CopyId;
use motet_protocol::time::eighth;
use motet_storage::copy_worker::{
    DiskCopyWorker, Host, MemoryCopyWorker, RemoteCopyWorker, SharedTier,
};
use motet_storage::tiers::{BufferPool, DiskTier};

/// Upper bound on the jobs of a thread: the pager's core gives it one at a time.
const JOBS_MAX: usize = 1;
/// Shortest time between two checks whether an export is computed.
const WATCH_MIN: Duration = Duration::from_micros(50);
/// Longest time between two checks.
const WATCH_MAX: Duration = Duration::from_millis(10);
/// Time for which idle buffers are kept.
const IDLE_BUFFER_TIMEOUT: Duration = Duration::from_secs(5);

/// The pager's handle of the copy workers. Dropping it ends them.
pub(crate) struct CopyWorkers {
    memory: JobQueue<Job>,
    disk: Option<JobQueue<Job>>,
    remote: Option<Remote>,
    host: Host,
    /// Discards the detached states of one copy, or all.
    discard: Box<dyn Fn(Option<CopyId>) + Send + Sync>,
}

/// The remote tier: its copy worker's queue, and where its answers go.
struct Remote {
    jobs: JobQueue<Job>,
    tier: SharedTier,
    asked: mpsc::Sender<Asked>,
}

/// Where the copy workers report to.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    /// Jobs that have ended.
    pub(crate) done: mpsc::Sender<Done>,
    /// Answers of the remote tier.
    pub(crate) asked: mpsc::Sender<Asked>,
}

/// The memory and disk that copies are stored in.
#[derive(Debug)]
pub(crate) struct Stores {
    /// Pool of buffers for copies.
    pub(crate) pool: BufferPool,
    /// Host memory.
    pub(crate) host: Host,
    /// The disk tier, if configured.
    pub(crate) disk: Option<DiskTier>,
    /// The remote tier, if configured.
    pub(crate) remote: Option<SharedTier>,
    /// Time after which an export that the device has not computed is given up. Otherwise
    /// requests that need its memory would wait forever if the device hangs and gets no other
    /// work.
    pub(crate) export_timeout: Duration,
}

/// The memory worker with its ends of the queues.
struct MemoryWorker<K: Packer> {
    copy_worker: MemoryCopyWorker<K>,
    exports: ExportQueue<K::DetachedState>,
    done: mpsc::Sender<Done>,
    /// Dropped when the worker has ended, and its memory is free.
    alive: Arc<oneshot::Sender<()>>,
}

/// The disk worker with its end of the queue.
struct DiskWorker {
    copy_worker: DiskCopyWorker,
    done: mpsc::Sender<Done>,
    /// Dropped when the worker has ended, and its memory is free.
    alive: Arc<oneshot::Sender<()>>,
}

/// The remote tier's worker with its end of the queue.
struct RemoteWorker {
    copy_worker: RemoteCopyWorker,
    done: mpsc::Sender<Done>,
    /// Runs the calls of the tier.
    runtime: Handle,
    /// Dropped when the worker has ended, and its memory is free.
    alive: Arc<oneshot::Sender<()>>,
}

impl std::fmt::Debug for CopyWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyWorkers").finish_non_exhaustive()
    }
}

impl<K: Packer> MemoryWorker<K> {
    /// Runs jobs until the pager or the device is gone.
    fn serve(&mut self, jobs: &Receiver<Job>) {
        loop {
            let job = match jobs.try_recv() {
                Ok(job) => Some(job),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => None,
            };
            let ended = if let Some(job) = job {
                self.copy_worker.run_job(job)
            } else {
                let next = match self.copy_worker.next_export(&self.exports) {
                    NextExport::Ready(export) => Some(self.copy_worker.pack(export)),
                    NextExport::NotComputed(waited) => self.watch(jobs, waited),
                    NextExport::Nothing => self.idle(jobs),
                };
                match next {
                    Some(ended) => ended,
                    None => return,
                }
            };
            if let Some(ended) = ended
                && let Err(unreported) = self.done.blocking_send(ended)
            {
                return self.copy_worker.retract(&unreported.0);
            }
        }
    }

    /// Waits for a job until the oldest export must be checked again; `waited` is its age. Runs
    /// the job. Returns `None` if the pager is gone.
    fn watch(&mut self, jobs: &Receiver<Job>, waited: Duration) -> Option<Option<Done>> {
        match jobs.recv_timeout(eighth(waited).clamp(WATCH_MIN, WATCH_MAX)) {
            Ok(job) => Some(self.copy_worker.run_job(job)),
            Err(RecvTimeoutError::Timeout) => {
                // An export may never be computed. Idle memory is trimmed all the same.
                self.copy_worker.trim(IDLE_BUFFER_TIMEOUT);
                Some(None)
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Waits for a job or an export, and runs the job. Returns `None` if the pager or the
    /// device is gone. A job to unpack may be lost then: no receiver is left.
    fn idle(&mut self, jobs: &Receiver<Job>) -> Option<Option<Done>> {
        select! {
            recv(jobs) -> job => Some(self.copy_worker.run_job(job.ok()?)),
            recv(self.exports.wakeup().receiver()) -> received => {
                received.ok()?;
                Some(None)
            }
            default(IDLE_BUFFER_TIMEOUT) => {
                self.copy_worker.trim(IDLE_BUFFER_TIMEOUT);
                Some(None)
            }
        }
    }
}

impl CopyWorkers {
    /// Starts the workers, in a tokio runtime. `alive` is dropped when the last of them has ended and
    /// all its memory is free.
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    pub(crate) fn start<K: Packer>(
        packer: K,
        host_end: HostEnd<K::DetachedState>,
        stores: Stores,
        reports: Reports,
        alive: &Arc<oneshot::Sender<()>>,
        runtime: &EngineRuntime,
    ) -> std::io::Result<Self> {
        let HostEnd { exports, imports } = host_end;
        let Stores {
            pool,
            host,
            disk,
            remote,
            export_timeout,
        } = stores;
        let Reports { done, asked } = reports;
        let copy_worker =
            MemoryCopyWorker::new(packer, pool.clone(), host.clone(), imports.clone());
        let memory = runtime.spawn(MemoryWorker {
            copy_worker: copy_worker.with_export_timeout(export_timeout),
            exports,
            done: done.clone(),
            alive: Arc::clone(alive),
        })?;
        let start_disk = |tier| {
            runtime.spawn(DiskWorker {
                copy_worker: DiskCopyWorker::new(host.clone(), tier),
                done: done.clone(),
                alive: Arc::clone(alive),
            })
        };
        let disk = disk.map(start_disk).transpose()?;
        let start_remote = |tier: SharedTier| {
            let jobs = runtime.spawn(RemoteWorker {
                copy_worker: RemoteCopyWorker::new(host.clone(), pool, tier.clone()),
                done: done.clone(),
                runtime: Handle::current(),
                alive: Arc::clone(alive),
            })?;
            std::io::Result::Ok(Remote { jobs, tier, asked })
        };
        let remote = remote.map(start_remote).transpose()?;
        Ok(Self {
            memory,
            disk,
            remote,
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
    pub(crate) fn run_job(&self, job: Job) -> bool {
        if job.task == Task::Pack {
            // The job is registered before the device can export the copy, until it is given
            // up.
            self.host.expect_export(job.copy, job.label);
            return true;
        }
        let copy_queue = match job.task.copy_queue() {
            CopyQueue::Memory => &self.memory,
            CopyQueue::Disk => self.disk.as_ref().expect("disk jobs need a disk"),
            CopyQueue::Remote => {
                let remote = self.remote.as_ref();
                &remote.expect("remote jobs need a remote tier").jobs
            }
        };
        copy_queue.enqueue(job, "the pager gives no more jobs than fit")
    }

    /// Asks the remote tier; the answer is reported. The pager's core bounds the questions.
    pub(crate) fn ask(&self, ask: Ask) {
        let remote = self.remote.as_ref();
        let remote = remote.expect("a question needs a remote tier");
        let (tier, asked) = (remote.tier.clone(), remote.asked.clone());
        tokio::spawn(async move {
            let answer = tier.ask(ask).await;
            // The pager may be gone.
            asked.send(answer).await.ok();
        });
    }

    /// Drops a copy from host memory.
    pub(crate) fn forget(&self, copy: CopyId) {
        self.host.forget(copy);
    }

    /// Discards one detached state of a copy.
    pub(crate) fn discard(&self, copy: CopyId) {
        (self.discard)(Some(copy));
    }

    /// Discards all detached states.
    pub(crate) fn discard_all(&self) {
        (self.discard)(None);
    }
}

impl<K: Packer> Worker for MemoryWorker<K> {
    type Job = Job;
    const NAME: &'static str = "motet-memory";
    const JOBS_MAX: usize = JOBS_MAX;

    fn run(mut self, jobs: Receiver<Job>) {
        self.serve(&jobs);
        drop(self.copy_worker);
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

impl Worker for RemoteWorker {
    type Job = Job;
    const NAME: &'static str = "motet-remote";
    const JOBS_MAX: usize = JOBS_MAX;

    fn run(mut self, jobs: Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let (copy_worker, done) = (&mut self.copy_worker, &self.done);
            let call = async {
                tokio::select! {
                    done = copy_worker.run_job(&job) => Some(done),
                    // Nothing waits for a job when the pager is gone.
                    () = done.closed() => None,
                }
            };
            let call = catch_unwind(AssertUnwindSafe(|| self.runtime.block_on(call)));
            let done = call.unwrap_or_else(|_| Some(RemoteCopyWorker::panicked(&job)));
            let reported = done.map(|done| self.done.blocking_send(done));
            if !matches!(reported, Some(Ok(()))) {
                break;
            }
        }
        drop(self.copy_worker);
        drop(self.alive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_device::transfer_queue;
    use motet_model::Model;
    use motet_model::oracle::{Oracle, OracleConfig, OraclePacker};
    use motet_protocol::LayerKind;

    /// An export that is never computed keeps the thread from idling, but its idle memory is
    /// trimmed.
    #[tokio::test(start_paused = true)]
    async fn idle_memory_is_trimmed_while_an_export_is_pending() {
        let oracle = Oracle::new(OracleConfig::with_layers(&[LayerKind::Full]));
        let packer = oracle.expect("a valid configuration").packer();
        let (_device_end, HostEnd { imports, exports }) =
            transfer_queue::<<OraclePacker as Packer>::DetachedState>();
        let pool = BufferPool::new(1 << 20);
        let mut worker = MemoryWorker {
            copy_worker: MemoryCopyWorker::new(packer, pool.clone(), Host::new(0), imports),
            exports,
            done: mpsc::channel(1).0,
            alive: Arc::new(oneshot::channel().0),
        };
        let (_pager, jobs) = crossbeam_channel::bounded(JOBS_MAX);
        drop(pool.take(100).expect("memory is available"));
        let idle_bytes = pool.stats().idle_bytes;
        assert!(idle_bytes > 0);
        let mut watch = |expected| {
            let done = worker.watch(&jobs, Duration::ZERO);
            assert!(matches!(done, Some(None)), "no job has ended: {done:?}");
            assert_eq!(pool.stats().idle_bytes, expected);
        };
        watch(idle_bytes);
        tokio::time::advance(IDLE_BUFFER_TIMEOUT).await;
        watch(0);
    }
}
