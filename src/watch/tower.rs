//! The task that looks at the house while somebody watches.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kameo::actor::WeakActorRef;
use kameo::error::SendError;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::{Budgets, Snapshot};
use crate::actors::cache::{CacheActor, Survey};
use crate::actors::pager::{PagerActor, ShowCopies};
use crate::actors::scheduler::{Scheduler, ShowHouse};
use crate::telemetry::Telemetry;

/// Time between two snapshots, at least.
pub const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(500);

type Snapshots = watch::Sender<Option<Arc<Snapshot>>>;

/// A subscription to snapshots: see [`Engine::watch`](crate::Engine::watch). Whoever is slow
/// gets the latest, and misses those between.
#[derive(Clone, Debug)]
pub struct Watch {
    /// None where nobody looks any more.
    snapshots: Option<watch::Receiver<Option<Arc<Snapshot>>>>,
}

impl Watch {
    /// The next snapshot, or the last if that was not taken yet; none once the engine is
    /// gone.
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

/// The engine's end of it.
#[derive(Debug)]
pub(crate) struct Watching {
    /// Gone when the tower is.
    snapshots: Weak<Snapshots>,
    /// Rung when somebody begins to watch; that it was rung once is enough.
    bell: mpsc::Sender<()>,
}

impl Watching {
    pub(crate) fn subscribe(&self) -> Watch {
        let snapshots = self.snapshots.upgrade();
        let watch = Watch {
            snapshots: snapshots.map(|snapshots| snapshots.subscribe()),
        };
        // A bell that is rung already will be heard, and a tower that is gone needs none.
        self.bell.try_send(()).ok();
        watch
    }
}

/// From where all is seen. It keeps nobody alive.
pub(crate) struct Tower {
    pub(crate) scheduler: WeakActorRef<Scheduler>,
    pub(crate) cache: WeakActorRef<CacheActor>,
    pub(crate) pager: Option<WeakActorRef<PagerActor>>,
    pub(crate) telemetry: Arc<Telemetry>,
    /// Turns to ask the cache something.
    pub(crate) turns: Arc<Semaphore>,
    pub(crate) budgets: Budgets,
    pub(crate) born: Instant,
}

/// The scheduler or the cache is gone.
struct Gone;

impl Tower {
    /// Looks from now on, while somebody watches, until the engine is gone.
    pub(crate) fn man(self) -> Watching {
        let snapshots = Arc::new(Snapshots::new(None));
        let (bell, rung) = mpsc::channel(1);
        let watching = Watching {
            snapshots: Arc::downgrade(&snapshots),
            bell,
        };
        tokio::spawn(self.watch(snapshots, rung));
        watching
    }

    async fn watch(self, snapshots: Arc<Snapshots>, mut rung: mpsc::Receiver<()>) {
        while rung.recv().await.is_some() {
            while snapshots.receiver_count() > 0 {
                match self.look().await {
                    Ok(Some(seen)) => drop(snapshots.send_replace(Some(Arc::new(seen)))),
                    Ok(None) => {}
                    Err(Gone) => return,
                }
                tokio::time::sleep(SNAPSHOT_INTERVAL).await;
            }
        }
    }

    /// One look. None where the scheduler has no time for it.
    async fn look(&self) -> Result<Option<Snapshot>, Gone> {
        let (reply, house) = oneshot::channel();
        let asked = {
            let scheduler = self.scheduler.upgrade().ok_or(Gone)?;
            scheduler.tell(ShowHouse { reply }).try_send()
        };
        match asked {
            Ok(()) => {}
            Err(SendError::MailboxFull(_)) => return Ok(None),
            Err(_) => return Err(Gone),
        }
        let Ok(house) = house.await else {
            return Ok(None);
        };
        let beside = self.copies().await;
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.expect("turns are never closed");
        let cache = self.cache.upgrade().ok_or(Gone)?;
        let asked = cache.ask(Survey { beside, turn }).send().await;
        let trie = asked.map_err(|_| Gone)?.0;
        Ok(Some(Snapshot {
            at: self.born.elapsed(),
            stats: self.telemetry.stats(),
            house,
            trie,
            budgets: self.budgets,
        }))
    }

    /// What the pager keeps, as far as it has time to say.
    async fn copies(&self) -> Vec<motet_core::pager::CopyView> {
        let (reply, copies) = oneshot::channel();
        let pager = self.pager.as_ref().and_then(WeakActorRef::upgrade);
        let asked = pager.map(|pager| pager.tell(ShowCopies { reply }).try_send());
        match asked {
            Some(Ok(())) => copies.await.unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}
