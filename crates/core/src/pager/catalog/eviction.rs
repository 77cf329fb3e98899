//! Keeps tiers within their budgets: frees memory for new copies, and evicts what was marked.

use super::{Catalog, CopyEntry, Presence};
use motet_protocol::CopyId;
use motet_protocol::SaltDigest;
use motet_protocol::pager::{Effect, PagerEvent};

impl Catalog {
    /// Frees host memory until `bytes` more fit. Copies with a higher retention than `retention`
    /// are not evicted. Returns false, and evicts nothing, if that is not enough. A copy that
    /// is not on the disk is lost: the disk is written ahead of need, coldest first.
    pub(in crate::pager) fn free_host_bytes(
        &mut self,
        bytes: usize,
        retention: u8,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(victims) = self.evictable(self.table.host_victims(bytes), retention) else {
            return false;
        };
        for victim in victims {
            self.forget(victim, effects);
        }
        true
    }

    /// Frees host memory to read this copy from the disk. Returns false, and evicts nothing, if
    /// the copy is not on the disk alone, or if all that may be evicted is not enough.
    pub(in crate::pager) fn free_for_read(
        &mut self,
        name: CopyId,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(copy) = self.get(name).filter(|_| self.is_readable(name)) else {
            return false;
        };
        let (bytes, retention) = (copy.host_bytes(), copy.retention());
        self.free_host_bytes(bytes, retention, effects)
    }

    /// Frees memory for one copy more. Evicts copies from all tiers until `label_bytes` more of
    /// labels fit, and from host memory until `bytes` more fit there. Copies with a higher
    /// retention than `retention` are not evicted. Returns false, and evicts nothing, if that is
    /// not enough for both.
    pub(in crate::pager) fn free_for_copy(
        &mut self,
        label_bytes: usize,
        bytes: usize,
        retention: u8,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let for_labels = self.evictable(self.table.label_victims(label_bytes), retention);
        let for_host = self.evictable(self.table.host_victims(bytes), retention);
        let (Some(for_labels), Some(for_host)) = (for_labels, for_host) else {
            return false;
        };
        for victim in for_labels {
            self.evict(victim, effects);
        }
        // Both lists start with the coldest, so a copy that was evicted already frees host
        // memory for this list too. It is skipped here.
        for victim in for_host {
            self.forget(victim, effects);
        }
        true
    }

    /// Removes files until this copy fits on the disk. Only copies with a lower retention and
    /// last use are removed. Returns false, and removes nothing, if that is not enough.
    pub(in crate::pager) fn free_for_write(
        &mut self,
        candidate: CopyId,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let rank = |copy: &CopyEntry| (copy.retention(), copy.last_use());
        let copy = self
            .get(candidate)
            .expect("the catalog holds every unwritten copy");
        let own = rank(copy);
        let is_colder = |name: &CopyId| {
            let copy = self.get(*name);
            rank(copy.expect("the catalog holds every copy on the disk")) < own
        };
        let victims = self.table.disk_victims(copy.disk_bytes());
        let Some(victims) = victims.filter(|all| all.iter().all(is_colder)) else {
            return false;
        };
        for victim in victims {
            self.remove_file(victim, effects);
        }
        true
    }

    /// Marks copies for eviction; those in use are evicted when they are free.
    pub(in crate::pager) fn mark(&mut self, copies: impl IntoIterator<Item = CopyId>) {
        let there = copies.into_iter();
        let there = there.filter(|copy| self.table.get(*copy).is_some());
        self.pending_eviction.extend(there);
    }

    /// Marks all copies, or all with this salt, for eviction.
    pub(in crate::pager) fn mark_salt(&mut self, salt: Option<SaltDigest>) {
        let of_salt = |copy: &CopyEntry| salt.is_none_or(|salt| salt == copy.label().key.salt);
        let all = self.table.iter().filter(|(_, copy)| of_salt(copy));
        self.pending_eviction.extend(all.map(|(name, _)| name));
    }

    /// Evicts marked copies that are free.
    pub(in crate::pager) fn evict_marked(&mut self, effects: &mut Vec<Effect>) {
        for name in std::mem::take(&mut self.pending_eviction) {
            match self.get(name) {
                Some(copy) if copy.is_free() => self.evict(name, effects),
                Some(_) => drop(self.pending_eviction.insert(name)),
                None => {}
            }
        }
    }

    /// Removes a copy from all tiers that hold it.
    pub(in crate::pager) fn evict(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        self.forget(name, effects);
        self.remove_file(name, effects);
    }

    /// Removes a copy's file.
    pub(in crate::pager) fn remove_file(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let copy = self.get(name);
        let Some(copy) = copy.filter(|copy| copy.disk() == Presence::Present) else {
            return;
        };
        let is_last = copy.host() == Presence::Absent;
        self.removed_files.push_back(name);
        if is_last {
            self.lose(name, effects);
        } else {
            self.table.change(name, CopyEntry::leave_disk);
        }
    }

    /// Takes over files of lost copies that a pager before this one had to remove.
    pub(in crate::pager) fn resume_removals(&mut self, lost: impl IntoIterator<Item = CopyId>) {
        self.removed_files.extend(lost);
    }

    /// Returns the copy whose file is to be removed next, once.
    pub(in crate::pager) fn next_removed_file(&mut self) -> Option<CopyId> {
        self.removed_files.pop_front()
    }

    /// Whether files are to be removed.
    pub(in crate::pager) fn has_removed_files(&self) -> bool {
        !self.removed_files.is_empty()
    }

    /// Frees a copy's host memory.
    fn forget(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let copy = self.get(name);
        let Some(copy) = copy.filter(|copy| copy.host() == Presence::Present) else {
            return;
        };
        let is_last = copy.disk() == Presence::Absent;
        effects.push(Effect::Forget(name));
        if is_last {
            self.lose(name, effects);
        } else {
            self.table.change(name, CopyEntry::leave_host);
        }
    }

    /// Removes a copy that is in no tier any more, and reports it as lost.
    pub(super) fn lose(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let copy = self
            .table
            .take(name)
            .expect("a copy is in the catalog until it is lost");
        self.index.remove(copy.label(), name);
        effects.push(Effect::Notify(PagerEvent::Lost { copy: name }));
    }

    /// Returns these victims, or `None` if one of them has a higher retention than `retention`.
    fn evictable(&self, victims: Option<Vec<CopyId>>, retention: u8) -> Option<Vec<CopyId>> {
        let has_higher_retention = |name: &CopyId| {
            let copy = self.get(*name);
            copy.is_some_and(|copy| copy.retention() > retention)
        };
        victims.filter(|victims| !victims.iter().any(has_higher_retention))
    }
}
