//! The pager: moves segment states from the device to host memory and disk, and back.
//!
//! [`PagerCore`] is a plain state machine. A *copy* is the state of a sealed segment outside
//! the device. It is immutable and found by [the tokens whose state it holds](`catalog/index.rs`), so
//! changes of the trie do not affect it. The core knows the tiers that each copy is in, keeps
//! each tier within its budget, and decides what moves when. It handles names and byte counts
//! only. The copy workers (the engine's `storage`) copy the bytes and report finished jobs.
//!
//! | component | its state |
//! |---|---|
//! | `catalog/` | where each copy is, the tokens that find it, and the budget of each tier |
//! | `loads.rs` | the lookups and loads that have not ended |
//! | `asks.rs` | the lookups that wait for the remote tier |
//! | `copy_queues/` | what waits for each copy worker, and which tiers work |
//! | `recovery_log.rs` | what outlives a core that has panicked |
//!
//! | flow | contents |
//! |---|---|
//! | `offload.rs` | copies cold segments of the device ahead of need |
//! | `lookup.rs` | finds the copies that a sequence can use, and weighs loading against computing |
//! | `load.rs` | brings these copies to the device |
//! | `remote.rs` | asks the remote tier before a lookup, fetches what it has, and sends it copies |
//! | `jobs.rs` | the effects of a job that ends, and the next jobs |
//! | `recovery.rs` | rebuilds a core that has panicked |
//! | `snapshot.rs` | the hottest copies, for monitoring |
//!
//! A component keeps its state to itself. A flow is a part of [`PagerCore`] where several
//! components meet. [`footprint`] tells the bytes that a copy takes of a tier's budget.
//!
//! **Only the sequence that a copy is loaded for waits for it.** The device exports and imports
//! handles only. A segment that is exported stays on the device, and can be used there, until
//! its bytes are copied. A slow or failing disk write delays no sequence.

mod asks;
mod catalog;
mod copy_queues;
pub mod footprint;
mod jobs;
mod load;
mod loads;
mod lookup;
mod offload;
mod recovery;
mod recovery_log;
mod remote;
mod snapshot;
mod stats;

use std::fmt;
use std::time::Duration;

use self::asks::Asks;
use self::catalog::{Budgets, Catalog};
use self::copy_queues::{DiskQueue, MemoryQueue, RemoteQueue};
use self::loads::Loads;
pub use self::recovery_log::RecoveryLog;
use self::remote::Missing;
pub use self::stats::PagerStats;
use crate::config::PagerConfig;
use motet_protocol::CopyId;
use motet_protocol::{ModelSpec, SegmentSize};
use motet_sync::injected::{self, Bug};

pub use motet_protocol::pager::{
    Ask, Asked, CopyQueue, CopyRange, Done, Effect, Job, JobError, Lookup, Message,
    OffloadCandidate, PagerEvent, Task,
};
pub use motet_protocol::{Label, Precision, PrefixDigest, PrefixHasher};

/// The pager's state machine. See the module's documentation.
pub struct PagerCore {
    spec: ModelSpec,
    config: PagerConfig,
    sizes: Sizes,
    catalog: Catalog,
    loads: Loads,
    memory: MemoryQueue,
    disk: DiskQueue,
    remote: RemoteQueue,
    asks: Asks,
    missing: Missing,
    now: Duration,
    stats: PagerStats,
}

/// Returns the bytes of a segment's copy and the precision of its numbers.
pub type Sizes = Box<dyn Fn(SegmentSize) -> (usize, Precision) + Send>;

impl fmt::Debug for PagerCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagerCore")
            .field("now", &self.now)
            .field("stats", &self.stats())
            .field("catalog", &self.catalog)
            .field("loads", &self.loads)
            .field("memory", &self.memory)
            .field("disk", &self.disk)
            .field("remote", &self.remote)
            .field("asks", &self.asks)
            .finish_non_exhaustive()
    }
}

impl PagerCore {
    /// Creates a pager with the copies that the disk tier has found, oldest first.
    #[must_use]
    pub fn new(
        spec: ModelSpec,
        config: PagerConfig,
        sizes: Sizes,
        found: Vec<(CopyId, Label)>,
    ) -> Self {
        let mut catalog = Catalog::new(Budgets::of(&config), 0);
        for (name, label) in found {
            catalog.add_found(name, label);
        }
        Self {
            spec,
            sizes,
            catalog,
            loads: Loads::default(),
            memory: MemoryQueue::resumed(None),
            disk: DiskQueue::new(&config),
            remote: RemoteQueue::new(&config),
            asks: Asks::default(),
            missing: Missing::default(),
            config,
            now: Duration::ZERO,
            stats: PagerStats::default(),
        }
    }

    /// Handles one message and returns the effects, in order. `now` is the time since a fixed
    /// moment and never decreases.
    pub fn handle(&mut self, now: Duration, message: Message) -> Vec<Effect> {
        self.now = now;
        let mut effects = Vec::new();
        match message {
            Message::OffloadCandidate(candidate) => self.offload(candidate, &mut effects),
            Message::Lookup(lookup) => self.look_up(lookup, &mut effects),
            Message::Load { sequence } => self.load(sequence, &mut effects),
            Message::Cancel { sequence } => self.cancel(sequence, &mut effects),
            Message::Prefetch {
                key,
                tokens,
                resident,
            } => self.prefetch(key, &tokens, resident),
            Message::Clear { salt } => self.catalog.mark_salt(salt),
            Message::GiveUp { copies } => self.catalog.mark(copies),
            Message::CancelExport { copy } => self.cancel_export(copy, &mut effects),
            Message::Discard { sequence, copies } => {
                effects.extend(copies.into_iter().map(Effect::Discard));
                effects.push(Effect::Notify(PagerEvent::Cancelled { sequence }));
            }
            Message::Share { key, tokens } => self.share(key, &tokens),
            Message::Follow { follows } => self.catalog.follow(follows),
            Message::Reset => self.reset(&mut effects),
            Message::Done(done) => self.done(&done, &mut effects),
            Message::Asked(asked) => self.asked(asked, &mut effects),
            Message::TimePassed => {}
        }
        self.check_disk(&mut effects);
        self.check_remote(&mut effects);
        self.catalog.evict_marked(&mut effects);
        self.start_jobs(&mut effects);
        self.catalog.report_places(&mut effects);
        effects
    }

    /// Returns when to call [`handle`](Self::handle) again if no message arrives before.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        let tiers = [self.disk.wakes_at(), self.remote.wakes_at()];
        let waits = self.asks.wakes_at();
        tiers.into_iter().chain([waits]).flatten().min()
    }

    /// Returns the current counters and totals.
    #[must_use]
    pub fn stats(&self) -> PagerStats {
        PagerStats {
            disk_degraded: self.disk.is_degraded(),
            remote_degraded: self.remote.is_degraded(),
            ..self.catalog.with_totals(self.stats)
        }
    }

    /// Whether no copy is moving and no sequence waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let mut copies = self.catalog.iter();
        let waits = !self.loads.is_empty() || !self.asks.is_empty();
        !waits && !copies.any(|(_, copy)| copy.is_moving())
    }

    /// Whether a disk job is in progress on a disk that works.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        // Every job that can run has been started already.
        self.disk.is_working()
    }

    /// Whether copies are sent to a remote tier that works, or are to be.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.remote.is_sending()
    }

    /// Checks each component, and that copies, jobs and pending loads agree.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub fn check_integrity(&self) {
        self.catalog.check_integrity();
        self.loads.check_integrity(&self.catalog);
        self.memory.check_integrity(&self.catalog);
        self.disk.check_integrity(&self.catalog);
        self.remote.check_integrity(&self.catalog);
    }

    /// Handles the loss of all device state: pending exports will not come.
    fn reset(&mut self, effects: &mut Vec<Effect>) {
        let exporting = self.catalog.iter();
        let exporting = exporting.filter(|(_, copy)| copy.exported_segment().is_some());
        for name in exporting.map(|(name, _)| name).collect::<Vec<_>>() {
            self.cancel_export(name, effects);
        }
        let asking = self.asks.sequences();
        for sequence in self.loads.sequences().into_iter().chain(asking) {
            self.cancel(sequence, effects);
        }
        // Detached states that were ready are not imported any more. One that is being unpacked
        // may be in the queue already, or may arrive after this.
        effects.push(Effect::DiscardAll);
        if !injected::is_injected(Bug::StaleDetachedState) {
            self.memory.invalidate_job();
        }
        self.loads.drop_deferred();
        effects.push(Effect::Notify(PagerEvent::Reset));
    }
}
