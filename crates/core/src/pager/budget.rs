//! Keeps tiers within their budgets.

use super::PagerCore;
use super::catalog::Presence;
use crate::CopyId;
use crate::protocol::pager::{Effect, PagerEvent};

impl PagerCore {
    /// Frees host memory until `bytes` more fit. Copies with a higher priority than `priority`
    /// are not evicted. Returns false, and evicts nothing, if that is not enough. A copy that
    /// is not on the disk is lost: the disk is written ahead of need, coldest first.
    pub(super) fn free_host_bytes(
        &mut self,
        bytes: usize,
        priority: u8,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(victims) = self.evictable(self.copies.host_victims(bytes), priority) else {
            return false;
        };
        for victim in victims {
            self.forget(victim, effects);
        }
        true
    }

    /// Frees memory for one copy more. Evicts copies from all tiers until `label_bytes` more of
    /// labels fit, and from host memory until `bytes` more fit there. Copies with a higher
    /// priority than `priority` are not evicted. Returns false, and evicts nothing, if that is
    /// not enough for both.
    pub(super) fn free_for_copy(
        &mut self,
        label_bytes: usize,
        bytes: usize,
        priority: u8,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let for_labels = self.evictable(self.copies.label_victims(label_bytes), priority);
        let for_host = self.evictable(self.copies.host_victims(bytes), priority);
        let (Some(for_labels), Some(for_host)) = (for_labels, for_host) else {
            return false;
        };
        for victim in for_labels {
            self.forget(victim, effects);
            self.remove(victim, effects);
        }
        // Both lists start with the coldest, so a copy that was evicted already frees host
        // memory for this list too. It is skipped here.
        for victim in for_host {
            self.forget(victim, effects);
        }
        true
    }

    /// Removes files until `bytes` more fit. Only copies with a lower priority and last use
    /// than `candidate` are removed. Returns false, and removes nothing, if that is not enough.
    pub(super) fn free_disk_bytes(
        &mut self,
        candidate: CopyId,
        bytes: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let rank = |core: &Self, name| {
            let copy = core
                .copies
                .get(name)
                .expect("the catalog holds every copy on the disk");
            (copy.priority, copy.last_use)
        };
        let own = rank(self, candidate);
        let victims = self.copies.disk_victims(bytes);
        let Some(victims) = victims.filter(|all| all.iter().all(|one| rank(self, *one) < own))
        else {
            return false;
        };
        for victim in victims {
            self.remove(victim, effects);
        }
        true
    }

    /// Returns these victims, or `None` if one of them has a higher priority than `priority`.
    fn evictable(&self, victims: Option<Vec<CopyId>>, priority: u8) -> Option<Vec<CopyId>> {
        let has_higher_priority = |name: &CopyId| {
            let copy = self.copies.get(*name);
            copy.is_some_and(|copy| copy.priority > priority)
        };
        victims.filter(|victims| !victims.iter().any(has_higher_priority))
    }

    /// Frees a copy's host memory.
    pub(super) fn forget(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let Some(copy) = self
            .copies
            .get(name)
            .filter(|copy| copy.host == Presence::Present)
        else {
            return;
        };
        let gone = copy.disk == Presence::Absent;
        effects.push(Effect::Forget(name));
        if gone {
            self.lose(name, effects);
        } else {
            self.copies
                .change(name, |copy| copy.host = Presence::Absent);
        }
    }

    /// Removes a copy's file.
    pub(super) fn remove(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let Some(copy) = self
            .copies
            .get(name)
            .filter(|copy| copy.disk == Presence::Present)
        else {
            return;
        };
        let gone = copy.host == Presence::Absent;
        self.to_remove.push_back(name);
        if gone {
            self.lose(name, effects);
        } else {
            self.copies
                .change(name, |copy| copy.disk = Presence::Absent);
        }
    }

    /// Removes a copy that is in no tier any more, and reports it as lost.
    pub(super) fn lose(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let copy = self
            .copies
            .take_entry(name)
            .expect("a copy is in the catalog until it is lost");
        self.index.remove(&copy.label, name);
        effects.push(Effect::Notify(PagerEvent::Lost { copy: name }));
    }
}
