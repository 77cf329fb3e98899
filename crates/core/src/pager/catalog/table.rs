//! All copies, the bytes that they take in each tier, and the order of their eviction.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{CopyEntry, Presence};
use crate::config::PagerConfig;
use motet_protocol::CopyId;

/// All copies, with totals and orders that follow each change.
#[derive(Debug)]
pub(super) struct CopyTable {
    copies: BTreeMap<CopyId, CopyEntry>,
    /// The largest name of a copy so far.
    made: u64,
    tick: u64,
    host: TierBudget,
    disk: TierBudget,
    /// Host copies that are not on the disk, coldest first.
    unwritten: BTreeSet<EvictionRank>,
    /// Host bytes of the labels of all copies.
    label_bytes: usize,
    label_bytes_max: usize,
    /// Copies that were changed or used, for a cache that follows where copies are.
    changed: Option<BTreeSet<CopyId>>,
}

/// Upper bounds on the bytes of copies and labels.
#[derive(Clone, Copy, Debug)]
pub(in crate::pager) struct Budgets {
    host_bytes_max: usize,
    disk_bytes_max: usize,
    label_bytes_max: usize,
}

/// The byte budget of one tier.
#[derive(Debug)]
pub(super) struct TierBudget {
    bytes_max: usize,
    used_bytes: usize,
    copies: usize,
    /// Evictable copies, coldest first.
    order: BTreeSet<EvictionRank>,
}

/// Retention, last use, name.
type EvictionRank = (u8, u64, CopyId);

impl Budgets {
    /// Returns the budgets that the configuration sets.
    pub(in crate::pager) fn of(config: &PagerConfig) -> Self {
        Self {
            host_bytes_max: config.host_bytes_max,
            disk_bytes_max: config.disk.as_ref().map_or(0, |disk| disk.bytes_max),
            label_bytes_max: config.label_bytes_max(),
        }
    }
}

impl CopyTable {
    /// An empty table. Names up to `made` are taken.
    pub(super) fn new(budgets: Budgets, made: u64) -> Self {
        Self {
            copies: BTreeMap::new(),
            made,
            tick: 0,
            host: TierBudget::new(budgets.host_bytes_max),
            disk: TierBudget::new(budgets.disk_bytes_max),
            unwritten: BTreeSet::new(),
            label_bytes: 0,
            label_bytes_max: budgets.label_bytes_max,
            changed: None,
        }
    }

    /// Starts or stops to list changed copies.
    pub(super) fn follow(&mut self, follows: bool) {
        self.changed = follows.then(BTreeSet::new);
    }

    /// Returns the copies that were changed or used since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<CopyId> {
        self.changed
            .as_mut()
            .map_or_else(BTreeSet::new, std::mem::take)
    }

    pub(super) fn get(&self, name: CopyId) -> Option<&CopyEntry> {
        self.copies.get(&name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CopyId, &CopyEntry)> {
        self.copies.iter().map(|(name, copy)| (*name, copy))
    }

    pub(super) fn len(&self) -> usize {
        self.copies.len()
    }

    /// Returns a copy name that was never used before.
    pub(super) fn next_name(&mut self) -> CopyId {
        self.made += 1;
        CopyId(self.made)
    }

    pub(super) fn insert(&mut self, name: CopyId, mut copy: CopyEntry) {
        self.tick += 1;
        copy.used_at(self.tick);
        self.made = self.made.max(name.0);
        self.label_bytes += copy.label_bytes();
        self.note_changed(name);
        self.count(&copy, true);
        self.copies.insert(name, copy);
        self.update_rank(name);
    }

    /// Changes a copy and updates the totals and orders that depend on it.
    pub(super) fn change<T>(
        &mut self,
        name: CopyId,
        change: impl FnOnce(&mut CopyEntry) -> T,
    ) -> Option<T> {
        let mut copy = self.copies.remove(&name)?;
        self.remove_rank(name, &copy);
        self.count(&copy, false);
        let changed = change(&mut copy);
        self.note_changed(name);
        self.count(&copy, true);
        self.copies.insert(name, copy);
        self.update_rank(name);
        Some(changed)
    }

    /// Marks the copy as used now.
    pub(super) fn touch(&mut self, name: CopyId) {
        self.tick += 1;
        let tick = self.tick;
        self.change(name, |copy| copy.used_at(tick));
    }

    /// Removes a copy.
    pub(super) fn take(&mut self, name: CopyId) -> Option<CopyEntry> {
        let copy = self.copies.remove(&name)?;
        self.remove_rank(name, &copy);
        self.count(&copy, false);
        self.label_bytes -= copy.label_bytes();
        self.note_changed(name);
        Some(copy)
    }

    pub(super) fn host(&self) -> &TierBudget {
        &self.host
    }

    pub(super) fn disk(&self) -> &TierBudget {
        &self.disk
    }

    /// Host bytes of the labels of all copies.
    pub(super) fn label_bytes(&self) -> usize {
        self.label_bytes
    }

    /// Whether `bytes` more of labels fit the budget.
    pub(super) fn fits_label_budget(&self, bytes: usize) -> bool {
        bytes <= self.label_bytes_max.saturating_sub(self.label_bytes)
    }

    /// Returns the copies whose host memory must be freed for `bytes` more.
    pub(super) fn host_victims(&self, bytes: usize) -> Option<Vec<CopyId>> {
        self.host
            .victims(bytes, |copy| self.copies[&copy].host_bytes())
    }

    /// Returns the copies whose files must be removed for `bytes` more on the disk.
    pub(super) fn disk_victims(&self, bytes: usize) -> Option<Vec<CopyId>> {
        self.disk
            .victims(bytes, |copy| self.copies[&copy].disk_bytes())
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
            excess = excess.saturating_sub(self.copies[&copy].label_bytes());
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

    /// Checks that totals and orders agree with the copies.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub(super) fn check_integrity(&self) {
        let copies = || self.copies.iter();
        self.host
            .check_integrity(copies(), CopyEntry::host, CopyEntry::host_bytes);
        self.disk
            .check_integrity(copies(), CopyEntry::disk, CopyEntry::disk_bytes);
        let labels = self.copies.values().map(CopyEntry::label_bytes);
        assert_eq!(
            labels.sum::<usize>(),
            self.label_bytes,
            "label bytes are miscounted"
        );
        assert!(
            self.label_bytes <= self.label_bytes_max,
            "labels exceed their budget"
        );
        let unwritten = copies().filter(|(_, copy)| copy.is_unwritten());
        let unwritten: BTreeSet<EvictionRank> =
            unwritten.map(|(name, copy)| rank(*name, copy)).collect();
        assert_eq!(
            unwritten, self.unwritten,
            "order of writes differs from the unwritten copies"
        );
        self.copies.values().for_each(CopyEntry::check_integrity);
    }

    fn note_changed(&mut self, name: CopyId) {
        if let Some(changed) = &mut self.changed {
            changed.insert(name);
        }
    }

    fn count(&mut self, copy: &CopyEntry, more: bool) {
        for (tier_budget, presence, bytes) in [
            (&mut self.host, copy.host(), copy.host_bytes()),
            (&mut self.disk, copy.disk(), copy.disk_bytes()),
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
        let copy = &self.copies[&name];
        let (eviction_rank, free) = (rank(name, copy), copy.is_free());
        self.host
            .update_rank(eviction_rank, copy.host() == Presence::Present && free);
        self.disk
            .update_rank(eviction_rank, copy.disk() == Presence::Present && free);
        if copy.is_unwritten() {
            self.unwritten.insert(eviction_rank);
        }
    }

    fn remove_rank(&mut self, name: CopyId, copy: &CopyEntry) {
        let eviction_rank = rank(name, copy);
        self.host.update_rank(eviction_rank, false);
        self.disk.update_rank(eviction_rank, false);
        self.unwritten.remove(&eviction_rank);
    }
}

fn rank(name: CopyId, copy: &CopyEntry) -> EvictionRank {
    (copy.retention(), copy.last_use(), name)
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

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    pub(super) fn copies(&self) -> usize {
        self.copies
    }

    /// Returns the evictable copies, hottest first.
    pub(super) fn hottest(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.order.iter().rev().map(|(.., copy)| *copy)
    }

    fn update_rank(&mut self, eviction_rank: EvictionRank, free: bool) {
        if free {
            self.order.insert(eviction_rank);
        } else {
            self.order.remove(&eviction_rank);
        }
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

    /// Checks the totals and the order against the copies.
    fn check_integrity<'a>(
        &self,
        copies: impl Iterator<Item = (&'a CopyId, &'a CopyEntry)>,
        presence: fn(&CopyEntry) -> Presence,
        bytes: fn(&CopyEntry) -> usize,
    ) {
        let there: Vec<_> = copies
            .filter(|(_, copy)| presence(copy) != Presence::Absent)
            .collect();
        assert_eq!(
            there.len(),
            self.copies,
            "copies of the tier are miscounted"
        );
        assert_eq!(
            there.iter().map(|(_, copy)| bytes(copy)).sum::<usize>(),
            self.used_bytes,
            "bytes of the tier are miscounted"
        );
        assert!(self.used_bytes <= self.bytes_max, "tier exceeds its budget");
        let free = there
            .iter()
            .filter(|(_, copy)| presence(copy) == Presence::Present && copy.is_free());
        let free: BTreeSet<EvictionRank> = free.map(|(name, copy)| rank(**name, copy)).collect();
        assert_eq!(
            free, self.order,
            "eviction order differs from the evictable copies"
        );
    }
}
