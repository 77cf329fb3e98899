//! The pager: what leaves the device, and how it comes back.
//!
//! [`PagerCore`] is a plain state machine. A *copy* is the state of a sealed segment
//! outside the device: immutable, and found by [what it is the state of](index.rs), so
//! that nothing which happens in the trie changes it. The core knows in which tiers each
//! copy is, keeps the tiers within their bytes, and decides what moves when; it deals in
//! names and byte counts. Threads of their own copy the bytes (the engine's `storage`), and tell it
//! when they have.
//!
//! | file | what happens there |
//! |---|---|
//! | `offload.rs` | a cold segment of the device gets a copy, ahead of need |
//! | `lookup.rs` | a sequence begins: what is there for it, and is it worth bringing |
//! | `copy_queues.rs` | what each copy thread does next; demand overtakes everything else |
//! | `budget.rs` | tiers keep within their bytes |
//! | `catalog.rs` | where each copy is, and who may go |
//! | `recovery_log.rs`, `recovery.rs` | a core that panics is replaced by one that knows as much |
//! | `snapshot.rs` | the copies that count, for those who watch |
//! | `index.rs` | which copies hold the state of which tokens |
//! | [`footprint`] | bytes that a copy takes of a tier's budget |
//!
//! **Nothing waits for a copy but who wants it.** The device hands over and takes in
//! handles only; a segment that leaves stays on the device, and of use there, until its
//! bytes are out. A write to the disk, or one that fails, holds up nobody.

mod budget;
mod catalog;
mod copy_queues;
pub mod footprint;
mod index;
mod label;
mod load;
mod offload;
mod protocol;
mod recovery;
mod recovery_log;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::SaltDigest;
use crate::config::PagerConfig;
use crate::protocol::{ModelSpec, SegmentSize};
use crate::{CopyId, SequenceId};
use catalog::{Budgets, Catalog, CopyEntry, Presence};
use copy_queues::{CopyQueueState, DiskState, Rates};
use index::Index;
use load::PendingLoad;
use motet_sync::injected::{self, Bug};

pub use label::{Label, Precision, PrefixDigest, PrefixHasher};
pub use protocol::{
    CopyQueue, CopyRange, Done, Effect, Job, JobError, Lookup, Message, OffloadCandidate,
    PagerEvent, Task,
};
pub use recovery_log::RecoveryLog;
pub use snapshot::CopyView;

/// Sums that anyone may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagerStats {
    /// Copies.
    pub copies: usize,
    /// Of these, copies in host memory.
    pub host_copies: usize,
    /// Host bytes, those counted that are on their way.
    pub host_bytes: usize,
    /// Copies on the disk.
    pub disk_copies: usize,
    /// Bytes of files, those counted that are on their way.
    pub disk_bytes: usize,
    /// Host bytes of what is known of copies beside their bytes, wherever the copies are.
    pub label_bytes: usize,
    /// Segments that were copied out so far.
    pub packed: u64,
    /// Copies that were brought for a sequence so far.
    pub unpacked: u64,
    /// Copies that were read from the disk so far.
    pub read: u64,
    /// Of these, copies that were read before anybody waited for them.
    pub prefetches: u64,
    /// Copies that a sequence waited for and that were in host memory.
    pub host_hits: u64,
    /// The same of copies that had to be read from the disk.
    pub disk_hits: u64,
    /// Copies that were written to the disk so far.
    pub written: u64,
    /// Offers that were refused for want of room so far.
    pub rejected: u64,
    /// Times that computing was found faster than bringing.
    pub computed_instead: u64,
    /// Jobs that failed so far.
    pub failed: u64,
    /// Whether the disk does not answer, or has failed and not worked since.
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
    /// Copies that are to be unpacked, oldest wish first.
    to_unpack: VecDeque<CopyId>,
    /// Copies that are to be read because somebody waits for them.
    to_read: VecDeque<CopyId>,
    /// Files that are to go.
    to_remove: VecDeque<CopyId>,
    /// What is told when a parcel that is being made for nobody is gone.
    cancelled: Vec<(CopyId, PagerEvent)>,
    /// The label of jobs that need none: what is known of a copy that is gone is gone.
    no_label: Arc<Label>,
    /// The copy for whose file they go.
    disk_space_freed_for: Option<CopyId>,
    /// Copies that somebody will want.
    prefetches: VecDeque<CopyId>,
    /// Copies that are to be given up as soon as nothing holds them.
    pending_eviction: BTreeSet<CopyId>,
    memory: CopyQueueState,
    disk: CopyQueueState,
    disk_state: DiskState,
    rates: Rates,
    now: Duration,
    stats: PagerStats,
}

/// How many bytes a segment's copy has, and how its numbers are kept.
pub type Sizes = Box<dyn Fn(SegmentSize) -> (usize, Precision) + Send>;

impl fmt::Debug for PagerCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagerCore")
            .field("now", &self.now)
            .field("stats", &self.stats())
            .field("copies", &self.copies)
            .field("index", &self.index)
            .field("wants", &self.pending_loads)
            .field("to_unpack", &self.to_unpack)
            .field("to_read", &self.to_read)
            .field("to_remove", &self.to_remove)
            .field("cancelled", &self.cancelled)
            .field("room_made_for", &self.disk_space_freed_for)
            .field("foretold", &self.prefetches)
            .field("doomed", &self.pending_eviction)
            .field("memory", &self.memory)
            .field("disk", &self.disk)
            .field("disk_state", &self.disk_state)
            .field("rates", &self.rates)
            .finish_non_exhaustive()
    }
}

impl PagerCore {
    /// A pager without copies, but for those that a disk tier has found, oldest first.
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

    /// Takes in one message and says what follows, in order. `now` is the time since a
    /// moment that never changes; it only goes on.
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

    /// When [`handle`](Self::handle) wants to be called again if nothing else happens.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        self.disk_wakes_at()
    }

    /// Sums that anyone may look at.
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

    /// Whether nothing is moving, and nobody waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let moving = self.copies.iter().any(|(_, copy)| !copy.moves.is_empty());
        self.pending_loads.is_empty() && !moving
    }

    /// Whether something is being written to the disk, or still to be.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        // Whatever can be done has been begun.
        self.disk_state.works() && self.disk.is_busy()
    }

    /// Panics unless copies, sums and wants agree.
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
                "{name:?} is used by those who want it"
            );
            let loading = copy.loading_for.iter().chain(&copy.joined);
            for sequence in loading {
                assert!(
                    self.pending_loads.contains_key(sequence),
                    "who waits wants something"
                );
            }
        }
    }

    /// A copy that was on the disk when the pager was started.
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

    /// The device has lost everything: what was to be handed over will not come.
    fn reset(&mut self, effects: &mut Vec<Effect>) {
        let exporting = self.copies.iter().filter(|(_, copy)| copy.lease.is_some());
        for name in exporting.map(|(name, _)| name).collect::<Vec<_>>() {
            self.cancel_export(name, effects);
        }
        let pending_loads: Vec<SequenceId> = self.pending_loads.keys().copied().collect();
        for sequence in pending_loads {
            self.cancel(sequence, effects);
        }
        // What has arrived and was not taken in will not be, and what is being made may
        // lie there already, or come after this.
        effects.push(Effect::DiscardAll);
        if !injected::is_injected(Bug::StaleDetachedState) {
            self.invalidate_unpack();
        }
        self.cancelled.clear();
        effects.push(Effect::Notify(PagerEvent::Reset));
    }

    /// A segment will not be handed over. It may be on its way all the same.
    fn cancel_export(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let copy = self.copies.get(name);
        if copy.is_some_and(|copy| copy.lease.is_some()) {
            effects.push(Effect::Forget(name));
            self.copies.take_entry(name);
        }
    }
}
