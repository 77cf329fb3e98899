//! The pager: moves segment states from the device to host memory and disk, and back.
//!
//! [`PagerCore`] is a plain state machine. A *copy* is the state of a sealed segment outside
//! the device. It is immutable and found by [the tokens whose state it holds](index.rs), so
//! changes of the trie do not affect it. The core knows the tiers that each copy is in, keeps
//! each tier within its budget, and decides what moves when. It handles names and byte counts
//! only. The copy workers (the engine's `storage`) copy the bytes and report finished jobs.
//!
//! | file | contents |
//! |---|---|
//! | `offload.rs` | offload: copies cold segments of the device ahead of need |
//! | `load.rs` | lookup and load: finds the copies that a sequence can use, and weighs loading against computing |
//! | `copy_queues.rs` | the next job of each copy worker; loads that a sequence waits for go first |
//! | `budget.rs` | keeps tiers within their budgets |
//! | `catalog.rs` | where each copy is, and which copies may be evicted |
//! | `recovery_log.rs`, `recovery.rs` | rebuild a core that has panicked |
//! | `snapshot.rs` | the hottest copies, for monitoring |
//! | `index.rs` | finds copies by their tokens |
//! | [`footprint`] | bytes that a copy takes of a tier's budget |
//!
//! **Only the sequence that a copy is loaded for waits for it.** The device exports and imports
//! handles only. A segment that is exported stays on the device, and can be used there, until
//! its bytes are copied. A slow or failing disk write delays no sequence.

mod budget;
mod catalog;
mod copy_queues;
pub mod footprint;
mod index;
mod load;
mod offload;
mod recovery;
mod recovery_log;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::PagerConfig;
use crate::protocol::{ModelSpec, SaltDigest, SegmentSize};
use crate::{CopyId, SequenceId};
use catalog::{Budgets, Catalog, CopyEntry, Presence};
use copy_queues::{CopyQueueState, DiskState, Rates};
use index::Index;
use load::PendingLoad;
use motet_sync::injected::{self, Bug};

pub use crate::protocol::pager::{
    CopyQueue, CopyRange, Done, Effect, Job, JobError, Lookup, Message, OffloadCandidate,
    PagerEvent, Task,
};
pub use crate::protocol::{Label, Precision, PrefixDigest, PrefixHasher};
pub use recovery_log::RecoveryLog;

/// Counters and totals of the pager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagerStats {
    /// Copies.
    pub copies: usize,
    /// Copies in host memory.
    pub host_copies: usize,
    /// Host bytes in use, including those reserved for copies that are on their way.
    pub host_bytes: usize,
    /// Copies on the disk.
    pub disk_copies: usize,
    /// Bytes of files, including those reserved for files that are being written.
    pub disk_bytes: usize,
    /// Host bytes of the labels of all copies, in whatever tier the copies are.
    pub label_bytes: usize,
    /// Segments copied to host memory so far.
    pub packed: u64,
    /// Copies loaded for a sequence so far.
    pub unpacked: u64,
    /// Copies read from the disk so far.
    pub read: u64,
    /// Copies read from the disk before a sequence waited for them; included in `read`.
    pub prefetches: u64,
    /// Copies that a sequence waited for and that were in host memory.
    pub host_hits: u64,
    /// Copies that a sequence waited for and that had to be read from the disk.
    pub disk_hits: u64,
    /// Copies written to the disk so far.
    pub written: u64,
    /// Offload candidates rejected for lack of memory so far.
    pub rejected: u64,
    /// Lookups so far where computing some tokens was expected to be faster than loading their
    /// copies.
    pub computed_instead: u64,
    /// Jobs that failed so far.
    pub failed: u64,
    /// Whether the disk does not respond, or has failed and not succeeded since.
    pub disk_degraded: bool,
}

/// The pager's state machine. See the module's documentation.
pub struct PagerCore {
    spec: ModelSpec,
    config: PagerConfig,
    sizes: Sizes,
    copies: Catalog,
    index: Index,
    pending_loads: BTreeMap<SequenceId, PendingLoad>,
    /// Copies to unpack, oldest request first.
    to_unpack: VecDeque<CopyId>,
    /// Copies to read because a sequence waits for them.
    to_read: VecDeque<CopyId>,
    /// Files to remove.
    to_remove: VecDeque<CopyId>,
    /// Events to send when an unpack job without a waiting sequence has ended and its detached
    /// state was discarded.
    cancelled: Vec<(CopyId, PagerEvent)>,
    /// Label of removal jobs: the label of an evicted copy no longer exists.
    no_label: Arc<Label>,
    /// The copy whose write waits for the removal of other files.
    disk_space_freed_for: Option<CopyId>,
    /// Copies to prefetch from the disk.
    prefetches: VecDeque<CopyId>,
    /// Copies to evict as soon as no sequence and no job uses them.
    pending_eviction: BTreeSet<CopyId>,
    memory: CopyQueueState,
    disk: CopyQueueState,
    disk_state: DiskState,
    rates: Rates,
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
            .field("copies", &self.copies)
            .field("index", &self.index)
            .field("pending_loads", &self.pending_loads)
            .field("to_unpack", &self.to_unpack)
            .field("to_read", &self.to_read)
            .field("to_remove", &self.to_remove)
            .field("cancelled", &self.cancelled)
            .field("disk_space_freed_for", &self.disk_space_freed_for)
            .field("prefetches", &self.prefetches)
            .field("pending_eviction", &self.pending_eviction)
            .field("memory", &self.memory)
            .field("disk", &self.disk)
            .field("disk_state", &self.disk_state)
            .field("rates", &self.rates)
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
        let mut core = Self {
            copies: Catalog::new(Budgets::of(&config), 0),
            spec,
            sizes,
            index: Index::default(),
            pending_loads: BTreeMap::new(),
            to_unpack: VecDeque::new(),
            to_read: VecDeque::new(),
            to_remove: VecDeque::new(),
            no_label: Arc::new(Label::new(
                SaltDigest([0; 32]),
                &[],
                0,
                0,
                Precision::Full,
                0,
            )),
            cancelled: Vec::new(),
            disk_space_freed_for: None,
            prefetches: VecDeque::new(),
            pending_eviction: BTreeSet::new(),
            memory: CopyQueueState::default(),
            disk: CopyQueueState::default(),
            disk_state: DiskState::new(config.disk.is_some()),
            rates: Rates::default(),
            config,
            now: Duration::ZERO,
            stats: PagerStats::default(),
        };
        for (name, label) in found {
            core.recover(name, label);
        }
        core
    }

    /// Handles one message and returns the effects, in order. `now` is the time since a fixed
    /// moment and never decreases.
    pub fn handle(&mut self, now: Duration, message: Message) -> Vec<Effect> {
        self.now = now;
        let mut effects = Vec::new();
        match message {
            Message::OffloadCandidate(candidate) => self.offload(candidate, &mut effects),
            Message::Lookup(lookup) => self.lookup(lookup, &mut effects),
            Message::Load { sequence } => self.load(sequence, &mut effects),
            Message::Cancel { sequence } => self.cancel(sequence, &mut effects),
            Message::Prefetch {
                salt,
                tokens,
                resident,
            } => self.prefetch(salt, &tokens, resident),
            Message::Clear { salt } => self.clear(salt),
            Message::GiveUp { copies } => {
                let there = copies
                    .into_iter()
                    .filter(|copy| self.copies.get(*copy).is_some());
                self.pending_eviction.extend(there.collect::<Vec<_>>());
            }
            Message::CancelExport { copy } => self.cancel_export(copy, &mut effects),
            Message::Discard { sequence, copies } => {
                effects.extend(copies.into_iter().map(Effect::Discard));
                effects.push(Effect::Notify(PagerEvent::Cancelled { sequence }));
            }
            Message::Reset => self.reset(&mut effects),
            Message::Done(done) => self.done(&done, &mut effects),
            Message::TimePassed => {}
        }
        self.check_disk(&mut effects);
        self.evict_pending(&mut effects);
        self.start_jobs(&mut effects);
        effects
    }

    /// Returns when to call [`handle`](Self::handle) again if no message arrives before.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        self.disk_wakes_at()
    }

    /// Returns the current counters and totals.
    #[must_use]
    pub fn stats(&self) -> PagerStats {
        PagerStats {
            copies: self.copies.len(),
            host_copies: self.copies.host.copies,
            host_bytes: self.copies.host.used_bytes,
            disk_copies: self.copies.disk.copies,
            disk_bytes: self.copies.disk.used_bytes,
            label_bytes: self.copies.label_bytes(),
            disk_degraded: self.disk_state.is_degraded(),
            ..self.stats
        }
    }

    /// Whether no copy is moving and no sequence waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let moving = self.copies.iter().any(|(_, copy)| !copy.moves.is_empty());
        self.pending_loads.is_empty() && !moving
    }

    /// Whether a disk job is in progress on a disk that works.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        // Every job that can run has been started already.
        self.disk_state.works() && self.disk.is_busy()
    }

    /// Checks that copies, totals and pending loads agree.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub fn check_integrity(&self) {
        self.copies.check_integrity();
        let mut users: BTreeMap<CopyId, usize> = BTreeMap::new();
        for pending_load in self.pending_loads.values() {
            for copy in pending_load.copies() {
                *users.entry(copy).or_default() += 1;
            }
        }
        for (name, copy) in self.copies.iter() {
            let users_known = users.remove(&name).unwrap_or(0);
            assert_eq!(
                copy.users, users_known,
                "{name:?}: users differ from pending loads"
            );
            let loading = copy.loading_for.iter().chain(&copy.joined);
            for sequence in loading {
                assert!(
                    self.pending_loads.contains_key(sequence),
                    "waiting sequence has no pending load"
                );
            }
        }
    }

    /// Adds a copy that was on the disk when the pager was started, if it fits the budgets.
    fn recover(&mut self, name: CopyId, label: Label) {
        let label = Arc::new(label);
        let bytes = footprint::host_bytes(label.bytes);
        let mut copy = CopyEntry::new(Arc::clone(&label), label.segment_size(), bytes, 0);
        copy.disk = Presence::Present;
        let fits = self.copies.disk.used_bytes + copy.disk_bytes() <= self.copies.disk.bytes_max;
        if !fits || !self.copies.fits_label_budget(copy.label_bytes()) {
            return;
        }
        self.index.insert(&label, name);
        self.copies.insert(name, copy);
    }

    /// Handles the loss of all device state: pending exports will not come.
    fn reset(&mut self, effects: &mut Vec<Effect>) {
        let exporting = self.copies.iter().filter(|(_, copy)| copy.lease.is_some());
        for name in exporting.map(|(name, _)| name).collect::<Vec<_>>() {
            self.cancel_export(name, effects);
        }
        let pending_loads: Vec<SequenceId> = self.pending_loads.keys().copied().collect();
        for sequence in pending_loads {
            self.cancel(sequence, effects);
        }
        // Detached states that were ready are not imported any more. One that is being unpacked
        // may be in the queue already, or may arrive after this.
        effects.push(Effect::DiscardAll);
        if !injected::is_injected(Bug::StaleDetachedState) {
            self.invalidate_unpack();
        }
        self.cancelled.clear();
        effects.push(Effect::Notify(PagerEvent::Reset));
    }

    /// Cancels the export of a segment, which may have been exported already.
    fn cancel_export(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let copy = self.copies.get(name);
        if copy.is_some_and(|copy| copy.lease.is_some()) {
            effects.push(Effect::Forget(name));
            self.copies.take_entry(name);
        }
    }
}
