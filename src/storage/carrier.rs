//! The copy threads: they move bytes, and decide nothing.
//!
//! One thread copies between device and host memory, another between host memory and the
//! disk. What the device hands over is packed when nothing else is asked for: whoever
//! waits for a copy goes first. A thread never waits for the device: what it has not
//! computed yet is looked at again later, and dropped when another device takes its place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, bounded, select};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::device::{Arrived, ExportQueue, Leaving, NextExport, Quay};
use crate::simulation::{Simulation, Way};
use crate::storage::tiers::precision::{EightBits, PrecisionError};
use crate::storage::tiers::{Buffer, BufferPool, DiskTier, HostTier, Tier, TierError};
use motet_core::CopyId;
use motet_core::pager::{Done, Job, JobError, Label, Lane, Precision, Task};
use motet_core::protocol::ModelError;
use motet_model::{Floats, Packer};
use motet_sync::primitives::plant::{Plant, planted};
use motet_sync::primitives::{self, Mutex, MutexGuard};

/// Jobs that a thread may have at once: the pager's core gives it one.
const JOBS_MAX: usize = 1;
/// The shortest time after which it is looked whether an export is computed.
const WATCH_MIN: Duration = Duration::from_micros(50);
/// And at most.
const WATCH_MAX: Duration = Duration::from_millis(10);
/// For so long host memory that nobody uses is kept for the next copy.
const SPARE_TIME: Duration = Duration::from_secs(5);

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
enum CarryError {
    #[error(transparent)]
    Tier(#[from] TierError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    #[error("the copy is of another kind of numbers than the model's")]
    NoFloats,
    #[error("the copy was given up")]
    Forsaken,
    #[error("the copy thread panicked")]
    Panicked,
}

impl CarryError {
    /// Whether the copy is damaged or gone.
    fn is_lost(&self) -> bool {
        match self {
            Self::Tier(error) => error.is_lost(),
            Self::Model(_) | Self::Panicked | Self::Forsaken => false,
            Self::Precision(_) | Self::NoFloats => true,
        }
    }
}

/// The pager's end of the copy threads. Dropping it ends them.
pub struct Carriers {
    memory: Way<Job>,
    disk: Option<Way<Job>>,
    host: Host,
    /// Of one copy, or of all.
    discard: Box<dyn Fn(Option<CopyId>) + Send + Sync>,
}

/// What copies are kept in.
#[derive(Debug)]
pub struct Stores {
    /// Where memory for copies comes from.
    pub pool: BufferPool,
    /// Host memory.
    pub host: Host,
    /// The disk, if there is one.
    pub disk: Option<DiskTier>,
    /// An export that the device has not computed after so long is given up: what waits for
    /// its room would wait for ever if the device hangs and is asked for nothing else.
    pub export_patience: Duration,
}

/// Host memory, shared by the copy threads and the pager.
#[derive(Clone, Debug)]
pub struct Host(primitives::Arc<Mutex<HostShelf>>);

#[derive(Debug)]
struct HostShelf {
    tier: HostTier,
    /// What the device is to hand over. What it hands over beside that is of no use.
    awaited: FxHashMap<CopyId, Arc<Label>>,
}

/// What copies between the device and host memory.
pub struct MemoryCarrier<K: Packer> {
    packer: K,
    pool: BufferPool,
    host: Host,
    arrived: Arrived<K::Parcel>,
    export_patience: Duration,
}

/// What copies between host memory and the disk.
#[derive(Debug)]
pub struct DiskCarrier {
    host: Host,
    tier: DiskTier,
}

impl std::fmt::Debug for Carriers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carriers").finish_non_exhaustive()
    }
}

impl<K: Packer> std::fmt::Debug for MemoryCarrier<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryCarrier").finish_non_exhaustive()
    }
}

impl Host {
    /// Empty host memory.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self(primitives::Arc::new(Mutex::new(HostShelf {
            tier: HostTier::new(bytes_max),
            awaited: FxHashMap::default(),
        })))
    }

    /// Gives up a copy; one that is still to come is not kept when it does.
    pub fn forget(&self, copy: CopyId) {
        let mut shelf = self.shelf();
        shelf.awaited.remove(&copy);
        // Memory is given back whatever happens.
        shelf.tier.remove(copy).ok();
    }

    fn store(&self, copy: CopyId, label: &Label, bytes: &Arc<Buffer>) -> Result<(), TierError> {
        self.shelf().tier.store(copy, label, bytes)
    }

    fn is_to_come(&self, copy: CopyId, label: Arc<Label>) {
        self.shelf().awaited.insert(copy, label);
    }

    /// What the device hands over under this name, unless nobody waits for it.
    fn awaited(&self, copy: CopyId) -> Option<Arc<Label>> {
        self.shelf().awaited.get(&copy).map(Arc::clone)
    }

    /// Keeps what was handed over, unless it was given up meanwhile.
    fn keep(&self, copy: CopyId, bytes: &Arc<Buffer>) -> Result<(), CarryError> {
        if planted(Plant::HostKeepTwoLocks) {
            // Looks before it keeps, but not in one step: it may be given up between.
            let label = self.awaited(copy).ok_or(CarryError::Forsaken)?;
            self.shelf().awaited.remove(&copy);
            return Ok(self.store(copy, &label, bytes)?);
        }
        let mut shelf = self.shelf();
        let label = shelf.awaited.remove(&copy).ok_or(CarryError::Forsaken)?;
        Ok(shelf.tier.store(copy, &label, bytes)?)
    }

    fn load(&self, copy: CopyId, label: &Label) -> Result<Arc<Buffer>, TierError> {
        self.shelf().tier.load(copy, label)
    }

    /// A panic elsewhere leaves a shelf that is whole.
    fn shelf(&self) -> MutexGuard<'_, HostShelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Packer> MemoryCarrier<K> {
    /// Between this host memory and what the device's dock is made of.
    #[must_use]
    pub fn new(packer: K, pool: BufferPool, host: Host, arrived: Arrived<K::Parcel>) -> Self {
        Self {
            packer,
            pool,
            host,
            arrived,
            export_patience: Duration::MAX,
        }
    }

    /// Does a job. None where it waits for the device.
    pub fn carry(&mut self, job: Job) -> Option<Done> {
        match job.task {
            Task::Pack => {
                self.host.is_to_come(job.copy, job.label);
                None
            }
            task => Some(timed(job.copy, task, job.label.bytes, || self.unpack(&job))),
        }
    }

    /// The oldest export, if the device has computed it, or has not for too long.
    pub fn next_export(&self, exports: &ExportQueue<K::Parcel>) -> NextExport<K::Parcel> {
        exports.next(self.export_patience, |parcel| {
            self.packer.is_computed(parcel)
        })
    }

    /// Packs what the device has handed over. None where nobody has asked for it.
    pub fn pack(&mut self, leaving: Leaving<K::Parcel>) -> Option<Done> {
        let copy = leaving.copy;
        let label = self.host.awaited(copy)?;
        let done = timed(copy, Task::Pack, label.bytes, || {
            let parcel = leaving.parcel?;
            let mut full = self.pool.take(self.packer.packed_bytes(label.extent()))?;
            self.packer.pack(&parcel, &mut full)?;
            // The device's memory is free before anybody hears of it.
            drop(parcel);
            let kept = self.at_rest(&label, full)?;
            self.host.keep(copy, &Arc::new(kept))
        });
        if done.result.is_err() {
            self.host.forget(copy);
        }
        Some(done)
    }

    /// What the device hands over under this name, unless nobody waits for it.
    pub(super) fn awaited(&self, copy: CopyId) -> Option<Arc<Label>> {
        self.host.awaited(copy)
    }

    /// Gives a copy up.
    pub(super) fn forget(&self, copy: CopyId) {
        self.host.forget(copy);
    }

    fn unpack(&self, job: &Job) -> Result<(), CarryError> {
        let label = &job.label;
        let kept = self.host.load(job.copy, label)?;
        let parcel = match label.precision {
            Precision::Full => self.packer.unpack(label.extent(), &kept)?,
            Precision::Eight => {
                let full = self.packer.packed_bytes(label.extent());
                let mut full = self.pool.take(full)?;
                EightBits(self.floats(label)?).decode(&kept, &mut full)?;
                self.packer.unpack(label.extent(), &full)?
            }
        };
        self.arrived.put(job.copy, parcel);
        Ok(())
    }

    /// What is kept of a packed parcel.
    fn at_rest(&self, label: &Label, full: Buffer) -> Result<Buffer, CarryError> {
        match label.precision {
            Precision::Full => Ok(full),
            Precision::Eight => {
                let mut eight = self.pool.take(label.bytes)?;
                EightBits(self.floats(label)?).encode(&full, &mut eight)?;
                Ok(eight)
            }
        }
    }

    fn floats(&self, label: &Label) -> Result<Floats, CarryError> {
        let floats = self.packer.floats(label.extent());
        floats.ok_or(CarryError::NoFloats)
    }

    fn run(
        mut self,
        jobs: &Receiver<Job>,
        exports: &ExportQueue<K::Parcel>,
        done: &mpsc::Sender<Done>,
    ) {
        loop {
            let job = match jobs.try_recv() {
                Ok(job) => Some(job),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => None,
            };
            let ended = if let Some(job) = job {
                self.carry(job)
            } else {
                let next = match self.next_export(exports) {
                    NextExport::Ready(leaving) => Some(self.pack(leaving)),
                    NextExport::NotComputed(waited) => self.watch(jobs, waited),
                    NextExport::Nothing => self.idle(jobs, exports),
                };
                match next {
                    Some(ended) => ended,
                    None => return,
                }
            };
            if let Some(ended) = ended
                && let Err(unheard) = done.blocking_send(ended)
            {
                return self.retract(&unheard.0);
            }
        }
    }

    /// Waits for a job until the oldest export, which was handed over so long ago, is to be
    /// looked at again. Does the job. None where the pager is gone.
    fn watch(&mut self, jobs: &Receiver<Job>, waited: Duration) -> Option<Option<Done>> {
        match jobs.recv_timeout((waited / 8).clamp(WATCH_MIN, WATCH_MAX)) {
            Ok(job) => Some(self.carry(job)),
            Err(RecvTimeoutError::Timeout) => {
                // An export may never be computed. Spare memory goes back all the same.
                self.pool.trim(SPARE_TIME);
                Some(None)
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Waits for something to do, and does it if it is a job. None where the pager or the
    /// device is gone. There may be something to unpack for nobody then.
    fn idle(
        &mut self,
        jobs: &Receiver<Job>,
        exports: &ExportQueue<K::Parcel>,
    ) -> Option<Option<Done>> {
        select! {
            recv(jobs) -> job => Some(self.carry(job.ok()?)),
            recv(exports.bell().rings()) -> rung => {
                rung.ok()?;
                Some(None)
            }
            default(SPARE_TIME) => {
                self.pool.trim(SPARE_TIME);
                Some(None)
            }
        }
    }

    /// Nobody hears of this any more: what was brought is thrown away.
    pub(super) fn retract(&self, unheard: &Done) {
        if unheard.task == Task::Unpack && unheard.result.is_ok() {
            drop(self.arrived.take(unheard.copy));
        }
    }
}

impl DiskCarrier {
    /// Between this host memory and this disk.
    #[must_use]
    pub fn new(host: Host, tier: DiskTier) -> Self {
        Self { host, tier }
    }

    /// Does a job.
    pub fn carry(&mut self, job: &Job) -> Done {
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
                Task::Pack | Task::Unpack => unreachable!("another thread's"),
            }
            Ok(())
        })
    }
}

impl Carriers {
    /// Starts the threads. What they have done is told to `done`; `alive` is dropped when
    /// the last of them has ended, and all that they held is free.
    ///
    /// # Errors
    ///
    /// When there are no threads to be had.
    pub fn start<K: Packer>(
        packer: K,
        quay: Quay<K::Parcel>,
        stores: Stores,
        done: mpsc::Sender<Done>,
        alive: &Arc<oneshot::Sender<()>>,
    ) -> std::io::Result<Self> {
        let Quay { leaving, arrived } = quay;
        let Stores {
            pool,
            host,
            disk,
            export_patience,
        } = stores;
        let (memory, jobs) = bounded(JOBS_MAX);
        let mut carrier = MemoryCarrier::new(packer, pool, host.clone(), arrived.clone());
        carrier.export_patience = export_patience;
        let (told, lives) = (done.clone(), Arc::clone(alive));
        std::thread::Builder::new()
            .name("motet-memory".into())
            .spawn(move || {
                carrier.run(&jobs, &leaving, &told);
                drop(lives);
            })?;
        let disk = disk.map(|tier| DiskCarrier::new(host.clone(), tier));
        let start = |carrier| start_disk(carrier, done, Arc::clone(alive));
        let disk = disk.map(start).transpose()?;
        Ok(Self::new(Way::Thread(memory), disk, host, arrived))
    }

    /// As [`start`](Carriers::start), in a simulated house: tasks take the threads' place.
    #[must_use]
    pub fn simulate<K: Packer>(
        packer: K,
        quay: Quay<K::Parcel>,
        stores: Stores,
        done: mpsc::Sender<Done>,
        alive: &Arc<oneshot::Sender<()>>,
        simulation: &Simulation,
    ) -> Self {
        let Quay { leaving, arrived } = quay;
        let Stores {
            pool,
            host,
            disk,
            export_patience,
        } = stores;
        let (memory, jobs) = mpsc::channel(JOBS_MAX);
        let mut carrier = MemoryCarrier::new(packer, pool, host.clone(), arrived.clone());
        carrier.export_patience = export_patience;
        let (told, lives, inside) = (done.clone(), Arc::clone(alive), simulation.clone());
        simulation.spawn(move || async move {
            carrier.simulate(jobs, leaving, told, inside).await;
            drop(lives);
        });
        let disk = disk.map(|tier| {
            let carrier = DiskCarrier::new(host.clone(), tier);
            let (sender, jobs) = mpsc::channel(JOBS_MAX);
            let (lives, inside) = (Arc::clone(alive), simulation.clone());
            simulation.spawn(move || async move {
                carrier.simulate(jobs, done, inside).await;
                drop(lives);
            });
            Way::Task(sender)
        });
        Self::new(Way::Task(memory), disk, host, arrived)
    }

    fn new<P: Send + 'static>(
        memory: Way<Job>,
        disk: Option<Way<Job>>,
        host: Host,
        arrived: Arrived<P>,
    ) -> Self {
        Self {
            memory,
            disk,
            host,
            discard: Box::new(move |copy| match copy {
                Some(copy) => drop(arrived.take(copy)),
                None => arrived.clear(),
            }),
        }
    }

    /// Has a job done. False when the thread is gone.
    ///
    /// # Panics
    ///
    /// When more jobs are out than the pager's core gives.
    #[must_use]
    pub fn carry(&self, job: Job) -> bool {
        if job.task == Task::Pack {
            // Known before the device can be asked for it, and until it is given up.
            self.host.is_to_come(job.copy, job.label);
            return true;
        }
        let lane = match job.task.lane() {
            Lane::Memory => &self.memory,
            Lane::Disk => self.disk.as_ref().expect("there is a disk"),
        };
        lane.send(job, "the pager gives no more jobs than fit")
    }

    /// Gives host memory back.
    pub fn forget(&self, copy: CopyId) {
        self.host.forget(copy);
    }

    /// Throws a parcel away.
    pub fn discard(&self, copy: CopyId) {
        (self.discard)(Some(copy));
    }

    /// Throws all parcels away.
    pub fn discard_all(&self) {
        (self.discard)(None);
    }
}

fn start_disk(
    mut carrier: DiskCarrier,
    done: mpsc::Sender<Done>,
    lives: Arc<oneshot::Sender<()>>,
) -> std::io::Result<Way<Job>> {
    let (sender, jobs) = bounded::<Job>(JOBS_MAX);
    std::thread::Builder::new()
        .name("motet-disk".into())
        .spawn(move || {
            while let Ok(job) = jobs.recv()
                && done.blocking_send(carrier.carry(&job)).is_ok()
            {}
            // The folder is free for others before anybody hears of it.
            drop(carrier);
            drop(lives);
        })?;
    Ok(Way::Thread(sender))
}

/// Does a job, and says how it went. A panic is one way.
fn timed(
    copy: CopyId,
    task: Task,
    bytes: usize,
    job: impl FnOnce() -> Result<(), CarryError>,
) -> Done {
    let begun = Instant::now();
    let done = catch_unwind(AssertUnwindSafe(job)).unwrap_or(Err(CarryError::Panicked));
    Done {
        copy,
        task,
        result: done.map_err(|error| JobError {
            is_lost: error.is_lost(),
            what: error.to_string(),
        }),
        took: begun.elapsed(),
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use crate::device::dock;
    use crate::storage::carrier::*;
    use motet_core::protocol::LayerKind;
    use motet_model::Model;
    use motet_model::oracle::{Oracle, OracleConfig, OraclePacker};

    /// An export that is never computed keeps the thread from being idle, and no memory with it.
    #[tokio::test(start_paused = true)]
    async fn spare_memory_goes_back_while_an_export_is_waited_for() {
        let oracle = Oracle::new(OracleConfig::with_layers(&[LayerKind::Full]));
        let packer = oracle.expect("a valid configuration").packer();
        let (_dock, Quay { arrived, .. }) = dock::<<OraclePacker as Packer>::Parcel>();
        let pool = BufferPool::new(1 << 20);
        let mut carrier = MemoryCarrier::new(packer, pool.clone(), Host::new(0), arrived);
        let (_pager, jobs) = bounded(JOBS_MAX);
        drop(pool.take(100).expect("memory"));
        let spare_bytes = pool.stats().spare_bytes;
        assert!(spare_bytes > 0);
        let mut watch = |expected| {
            let done = carrier.watch(&jobs, Duration::ZERO);
            assert!(matches!(done, Some(None)), "nothing is done: {done:?}");
            assert_eq!(pool.stats().spare_bytes, expected);
        };
        watch(spare_bytes);
        tokio::time::advance(SPARE_TIME).await;
        watch(0);
    }
}
