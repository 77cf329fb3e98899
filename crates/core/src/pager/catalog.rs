//! The catalog of copies: their tiers, and the budget of each tier.
//!
//! ```text
//!   device ──Pack──▶ host ──Write──▶ host + disk ── forget ──▶ disk ──Read──▶ host + disk
//!                     │ ▲                                                       │
//!                     │ └────────────────────── Unpack, which changes nothing ──┘
//!                     └── forget ──▶ gone ◀──Remove── disk
//! ```
//!
//! A job removes nothing from the tier that it reads: if it fails, the copy is where it was. A
//! copy that a sequence waits for, or that is moving, is not evicted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::footprint;
use crate::config::PagerConfig;
use crate::lease::Lease;
use crate::pager::Label;
use crate::protocol::SegmentSize;
use crate::protocol::pager::{Job, Task};
use crate::{CopyId, SequenceId};

/// A sealed segment's state outside the device.
#[derive(Debug)]
pub(super) struct CopyEntry {
    pub(super) label: Arc<Label>,
    pub(super) segment_size: SegmentSize,
    /// Bytes that it takes in host memory.
    pub(super) bytes: usize,
    pub(super) host: Presence,
    pub(super) disk: Presence,
    /// Tasks that are in progress.
    pub(super) moves: BTreeSet<Task>,
    /// Number of pending loads that use it.
    pub(super) users: usize,
    /// The sequence that it is loaded for.
    pub(super) loading_for: Option<SequenceId>,
    /// Other sequences that look up again when that load ends.
    pub(super) joined: Vec<SequenceId>,
    /// Lease on the device's segment while it is exported.
    pub(super) lease: Option<Lease>,
    pub(super) priority: u8,
    pub(super) last_use: u64,
}

/// Whether a copy is in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Presence {
    Absent,
    /// On its way; its bytes are counted already.
    Incoming,
    Present,
}

/// All copies, and the bytes that they take in each tier.
#[derive(Debug)]
pub(super) struct Catalog {
    all: BTreeMap<CopyId, CopyEntry>,
    made: u64,
    tick: u64,
    pub(super) host: TierBudget,
    pub(super) disk: TierBudget,
    /// Host copies that are not on the disk, coldest first.
    unwritten: BTreeSet<EvictionRank>,
    /// Host bytes of the labels of all copies.
    label_bytes: usize,
    label_bytes_max: usize,
}

/// Upper bounds on the bytes of copies and labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budgets {
    host_bytes_max: usize,
    disk_bytes_max: usize,
    label_bytes_max: usize,
}

/// The byte budget of one tier.
#[derive(Debug)]
pub(super) struct TierBudget {
    pub(super) bytes_max: usize,
    pub(super) used_bytes: usize,
    pub(super) copies: usize,
    /// Evictable copies, coldest first.
    order: BTreeSet<EvictionRank>,
}

/// Retention priority, last use, name.
type EvictionRank = (u8, u64, CopyId);

impl Budgets {
    /// Returns the budgets that the configuration sets.
    pub(super) fn of(config: &PagerConfig) -> Self {
        Self {
            host_bytes_max: config.host_bytes_max,
            disk_bytes_max: config.disk.as_ref().map_or(0, |disk| disk.bytes_max),
            label_bytes_max: config.label_bytes_max(),
        }
    }
}

impl TierBudget {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            used_bytes: 0,
            copies: 0,
            order: BTreeSet::new(),
        }
    }

    fn update_rank(&mut self, eviction_rank: EvictionRank, free: bool) {
        if free {
            self.order.insert(eviction_rank);
        } else {
            self.order.remove(&eviction_rank);
        }
    }

    /// Returns the evictable copies, hottest first.
    pub(super) fn hottest(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.order.iter().rev().map(|(.., copy)| *copy)
    }

    /// Returns the copies to evict for `bytes` more, coldest first, or `None` if all evictable
    /// copies together are too small.
    fn victims(&self, bytes: usize, size: impl Fn(CopyId) -> usize) -> Option<Vec<CopyId>> {
        let mut excess = (self.used_bytes + bytes).saturating_sub(self.bytes_max);
        let mut victims = Vec::new();
        let mut order = self.order.iter();
        while excess > 0 {
            let (.., copy) = *order.next()?;
            victims.push(copy);
            excess = excess.saturating_sub(size(copy));
        }
        Some(victims)
    }
}

impl CopyEntry {
    pub(super) fn new(
        label: Arc<Label>,
        segment_size: SegmentSize,
        bytes: usize,
        priority: u8,
    ) -> Self {
        Self {
            label,
            segment_size,
            bytes,
            host: Presence::Absent,
            disk: Presence::Absent,
            moves: BTreeSet::new(),
            users: 0,
            loading_for: None,
            joined: Vec::new(),
            lease: None,
            priority,
            last_use: 0,
        }
    }

    /// Whether it may be evicted.
    pub(super) fn is_free(&self) -> bool {
        self.users == 0 && self.moves.is_empty()
    }
}

impl Catalog {
    pub(super) fn new(budgets: Budgets, made: u64) -> Self {
        Self {
            all: BTreeMap::new(),
            made,
            tick: 0,
            host: TierBudget::new(budgets.host_bytes_max),
            disk: TierBudget::new(budgets.disk_bytes_max),
            unwritten: BTreeSet::new(),
            label_bytes: 0,
            label_bytes_max: budgets.label_bytes_max,
        }
    }

    pub(super) fn get(&self, copy: CopyId) -> Option<&CopyEntry> {
        self.all.get(&copy)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CopyId, &CopyEntry)> {
        self.all.iter().map(|(copy, one)| (*copy, one))
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns a copy name that was never used before.
    pub(super) fn next_name(&mut self) -> CopyId {
        self.made += 1;
        CopyId(self.made)
    }

    pub(super) fn insert(&mut self, name: CopyId, mut copy: CopyEntry) {
        self.tick += 1;
        copy.last_use = self.tick;
        self.made = self.made.max(name.0);
        self.label_bytes += copy.label_bytes();
        self.count(&copy, true);
        self.all.insert(name, copy);
        self.update_rank(name);
    }

    /// Changes a copy and updates the totals and orders that depend on it.
    pub(super) fn change<T>(
        &mut self,
        name: CopyId,
        change: impl FnOnce(&mut CopyEntry) -> T,
    ) -> Option<T> {
        let mut copy = self.all.remove(&name)?;
        self.remove_rank(name, &copy);
        self.count(&copy, false);
        let changed = change(&mut copy);
        self.count(&copy, true);
        self.all.insert(name, copy);
        self.update_rank(name);
        Some(changed)
    }

    /// Marks the copy as used now.
    pub(super) fn touch(&mut self, name: CopyId) {
        self.tick += 1;
        let tick = self.tick;
        self.change(name, |copy| copy.last_use = tick);
    }

    /// Removes a copy that is in no tier any more.
    pub(super) fn take_entry(&mut self, name: CopyId) -> Option<CopyEntry> {
        let copy = self.all.remove(&name)?;
        self.remove_rank(name, &copy);
        self.count(&copy, false);
        self.label_bytes -= copy.label_bytes();
        Some(copy)
    }

    /// Returns the copies whose host memory must be freed for `bytes` more.
    pub(super) fn host_victims(&self, bytes: usize) -> Option<Vec<CopyId>> {
        self.host.victims(bytes, |copy| self.all[&copy].bytes)
    }

    /// Returns the copies whose files must be removed for `bytes` more on the disk.
    pub(super) fn disk_victims(&self, bytes: usize) -> Option<Vec<CopyId>> {
        self.disk
            .victims(bytes, |copy| self.all[&copy].disk_bytes())
    }

    /// Host bytes of the labels of all copies.
    pub(super) fn label_bytes(&self) -> usize {
        self.label_bytes
    }

    /// Whether `bytes` more of labels fit the budget.
    pub(super) fn fits_label_budget(&self, bytes: usize) -> bool {
        bytes <= self.label_bytes_max.saturating_sub(self.label_bytes)
    }

    /// Returns the copies to evict for `bytes` more of labels, coldest first, or `None` if all
    /// evictable copies together are too small.
    pub(super) fn label_victims(&self, bytes: usize) -> Option<Vec<CopyId>> {
        let mut excess = (self.label_bytes + bytes).saturating_sub(self.label_bytes_max);
        let mut victims = Vec::new();
        // An evictable copy is in the order of each tier that holds it.
        let mut order = self.host.order.union(&self.disk.order);
        while excess > 0 {
            let (.., copy) = *order.next()?;
            victims.push(copy);
            excess = excess.saturating_sub(self.all[&copy].label_bytes());
        }
        Some(victims)
    }

    /// Returns the candidates for the next write. The first is the coldest copy that is not on
    /// the disk. The second, if different, is the coldest such copy that is warmer than the
    /// coldest one on the disk.
    pub(super) fn to_be_written(&self) -> [Option<CopyId>; 2] {
        let coldest = self.unwritten.first();
        let warmer = self.disk.order.first();
        let warmer = warmer.and_then(|least| self.unwritten.range(least..).next());
        let warmer = warmer.filter(|warmer| Some(*warmer) != coldest);
        [coldest, warmer].map(|eviction_rank| eviction_rank.map(|(.., copy)| *copy))
    }

    /// Whether the copy is in host memory, and its file neither exists nor is being written.
    pub(super) fn is_unwritten(&self, name: CopyId) -> bool {
        let copy = self.all.get(&name);
        copy.is_some_and(|copy| self.unwritten.contains(&copy.eviction_rank(name)))
    }

    pub(super) fn job(&self, name: CopyId, task: Task) -> Job {
        Job {
            copy: name,
            label: Arc::clone(&self.all[&name].label),
            task,
        }
    }

    /// Checks that totals and orders agree with the copies.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub(super) fn check_integrity(&self) {
        for (tier_budget, presence, bytes) in [
            (
                &self.host,
                CopyEntry::host as fn(&CopyEntry) -> Presence,
                CopyEntry::host_bytes as fn(&CopyEntry) -> usize,
            ),
            (&self.disk, CopyEntry::disk, CopyEntry::disk_bytes),
        ] {
            let there = self
                .all
                .values()
                .filter(|copy| presence(copy) != Presence::Absent);
            assert_eq!(
                there.clone().count(),
                tier_budget.copies,
                "copies of the tier are miscounted"
            );
            assert_eq!(
                there.map(bytes).sum::<usize>(),
                tier_budget.used_bytes,
                "bytes of the tier are miscounted"
            );
            assert!(
                tier_budget.used_bytes <= tier_budget.bytes_max,
                "tier exceeds its budget"
            );
            let free = self
                .all
                .iter()
                .filter(|(_, copy)| presence(copy) == Presence::Present && copy.is_free());
            let free: BTreeSet<EvictionRank> =
                free.map(|(name, copy)| copy.eviction_rank(*name)).collect();
            assert_eq!(
                free, tier_budget.order,
                "eviction order differs from the evictable copies"
            );
        }
        let labels = self.all.values().map(CopyEntry::label_bytes);
        assert_eq!(
            labels.sum::<usize>(),
            self.label_bytes,
            "label bytes are miscounted"
        );
        assert!(
            self.label_bytes <= self.label_bytes_max,
            "labels exceed their budget"
        );
        for copy in self.all.values() {
            let coming = copy.moves.contains(&Task::Pack) || copy.moves.contains(&Task::Read);
            assert_eq!(
                copy.host == Presence::Incoming,
                coming,
                "incoming presence does not match the jobs in progress"
            );
            assert_eq!(
                copy.disk == Presence::Incoming,
                copy.moves.contains(&Task::Write),
                "incoming presence does not match the jobs in progress"
            );
            assert_eq!(
                copy.lease.is_some(),
                copy.moves.contains(&Task::Pack),
                "lease does not match the pack job"
            );
            assert!(
                copy.host != Presence::Absent || copy.disk != Presence::Absent,
                "copy is in no tier"
            );
        }
    }

    fn count(&mut self, copy: &CopyEntry, more: bool) {
        for (tier_budget, presence, bytes) in [
            (&mut self.host, copy.host, copy.host_bytes()),
            (&mut self.disk, copy.disk, copy.disk_bytes()),
        ] {
            if presence != Presence::Absent {
                if more {
                    tier_budget.used_bytes += bytes;
                    tier_budget.copies += 1;
                } else {
                    tier_budget.used_bytes -= bytes;
                    tier_budget.copies -= 1;
                }
            }
        }
    }

    fn update_rank(&mut self, name: CopyId) {
        let copy = &self.all[&name];
        let (eviction_rank, free) = (copy.eviction_rank(name), copy.is_free());
        self.host
            .update_rank(eviction_rank, copy.host == Presence::Present && free);
        self.disk
            .update_rank(eviction_rank, copy.disk == Presence::Present && free);
        if copy.host == Presence::Present
            && copy.disk == Presence::Absent
            && !copy.moves.contains(&Task::Write)
        {
            self.unwritten.insert(eviction_rank);
        }
    }

    fn remove_rank(&mut self, name: CopyId, copy: &CopyEntry) {
        let eviction_rank = copy.eviction_rank(name);
        self.host.update_rank(eviction_rank, false);
        self.disk.update_rank(eviction_rank, false);
        self.unwritten.remove(&eviction_rank);
    }
}

impl CopyEntry {
    fn eviction_rank(&self, name: CopyId) -> EvictionRank {
        (self.priority, self.last_use, name)
    }

    fn host(&self) -> Presence {
        self.host
    }

    fn disk(&self) -> Presence {
        self.disk
    }

    fn host_bytes(&self) -> usize {
        self.bytes
    }

    /// Host bytes of its label.
    pub(super) fn label_bytes(&self) -> usize {
        Label::host_bytes(self.label.tokens.len())
    }

    /// Bytes of its file.
    pub(super) fn disk_bytes(&self) -> usize {
        footprint::disk_bytes(self.label.tokens.len(), self.label.bytes)
    }
}
