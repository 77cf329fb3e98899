//! The task that takes snapshots while there are subscribers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use kameo::actor::WeakActorRef;
use kameo::error::SendError;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::actors::cache::{CacheActor, TakeTrieSnapshot};
use crate::actors::pager::{ListCopies, PagerActor};
use crate::actors::scheduler::{Scheduler, TakeSchedulerSnapshot};
use crate::telemetry::{Budgets, Snapshot, Telemetry};

type SnapshotSender = watch::Sender<Option<Arc<Snapshot>>>;

/// A subscription to snapshots: see [`Engine::snapshots`](crate::Engine::snapshots). A slow
/// subscriber gets the latest snapshot and misses those before it.
#[derive(Clone, Debug)]
pub struct Snapshots {
    /// `None` where the snapshot task has ended.
    snapshots: Option<watch::Receiver<Option<Arc<Snapshot>>>>,
}

impl Snapshots {
    /// Shortest time between two snapshots.
    pub const INTERVAL: Duration = Duration::from_millis(500);

    /// Waits for the next snapshot, or returns the latest if it was not received yet; `None`
    /// once the engine has stopped.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Arc<Snapshot>> {
        let snapshots = self.snapshots.as_mut()?;
        snapshots.changed().await.ok()?;
        snapshots.borrow_and_update().clone()
    }
}

/// The engine's handle to the snapshot task.
#[derive(Debug)]
pub(crate) struct SnapshotHandle {
    /// Dropped by the task when it ends.
    snapshots: Weak<SnapshotSender>,
    /// Wakes the task when a subscriber is added; one pending wakeup is enough. `None` once the
    /// engine is shut down, which ends the task.
    wakeup: Mutex<Option<mpsc::Sender<()>>>,
}

impl SnapshotHandle {
    pub(crate) fn subscribe(&self) -> Snapshots {
        let snapshots = self.snapshots.upgrade();
        let subscription = Snapshots {
            snapshots: snapshots.map(|snapshots| snapshots.subscribe()),
        };
        // A wakeup that is pending already is enough, and a task that has ended needs none.
        if let Some(wakeup) = &*self.wakeup() {
            wakeup.try_send(()).ok();
        }
        subscription
    }

    /// Ends the task, once no snapshot is under way.
    pub(crate) fn end(&self) {
        *self.wakeup() = None;
    }

    fn wakeup(&self) -> MutexGuard<'_, Option<mpsc::Sender<()>>> {
        // Nothing panics under this lock.
        self.wakeup.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The snapshot task. It keeps no actor alive.
pub(crate) struct SnapshotTask {
    pub(crate) scheduler: WeakActorRef<Scheduler>,
    pub(crate) cache: WeakActorRef<CacheActor>,
    pub(crate) pager: Option<WeakActorRef<PagerActor>>,
    pub(crate) telemetry: Arc<Telemetry>,
    /// Permits for messages to the cache.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) budgets: Budgets,
    pub(crate) started_at: Instant,
}

/// The scheduler or the cache is gone.
struct Gone;

impl SnapshotTask {
    /// Starts the task: it takes snapshots while there are subscribers, until the engine is
    /// gone.
    pub(crate) fn spawn(self) -> SnapshotHandle {
        let snapshots = Arc::new(SnapshotSender::new(None));
        let (wakeup, wakeups) = mpsc::channel(1);
        let handle = SnapshotHandle {
            snapshots: Arc::downgrade(&snapshots),
            wakeup: Mutex::new(Some(wakeup)),
        };
        tokio::spawn(self.run(snapshots, wakeups));
        handle
    }

    async fn run(self, snapshots: Arc<SnapshotSender>, mut wakeups: mpsc::Receiver<()>) {
        while wakeups.recv().await.is_some() {
            while snapshots.receiver_count() > 0 {
                match self.take_snapshot().await {
                    Ok(Some(snapshot)) => drop(snapshots.send_replace(Some(Arc::new(snapshot)))),
                    Ok(None) => {}
                    Err(Gone) => return,
                }
                tokio::time::sleep(Snapshots::INTERVAL).await;
            }
        }
    }

    /// Takes one snapshot; `None` where the scheduler's mailbox is full or does not answer.
    async fn take_snapshot(&self) -> Result<Option<Snapshot>, Gone> {
        let (reply, scheduler) = oneshot::channel();
        let asked = {
            let scheduler = self.scheduler.upgrade().ok_or(Gone)?;
            scheduler.tell(TakeSchedulerSnapshot { reply }).try_send()
        };
        match asked {
            Ok(()) => {}
            Err(SendError::MailboxFull(_)) => return Ok(None),
            Err(_) => return Err(Gone),
        }
        let Ok(scheduler) = scheduler.await else {
            return Ok(None);
        };
        let offloaded_copies = self.copies().await;
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let cache = self.cache.upgrade().ok_or(Gone)?;
        let asked = cache
            .ask(TakeTrieSnapshot {
                offloaded_copies,
                permit,
            })
            .send()
            .await;
        let trie = asked.map_err(|_| Gone)?.0;
        Ok(Some(Snapshot {
            at: self.started_at.elapsed(),
            stats: self.telemetry.stats(),
            scheduler,
            trie,
            budgets: self.budgets,
        }))
    }

    /// Returns the pager's copies; empty where the pager's mailbox is full.
    async fn copies(&self) -> Vec<motet_core::snapshot::CopyView> {
        let (reply, copies) = oneshot::channel();
        let pager = self.pager.as_ref().and_then(WeakActorRef::upgrade);
        let asked = pager.map(|pager| pager.tell(ListCopies { reply }).try_send());
        match asked {
            Some(Ok(())) => copies.await.unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}
