//! Tiers keep within their bytes.

use super::PagerCore;
use super::catalog::Presence;
use super::protocol::{Effect, PagerEvent};
use crate::CopyId;

impl PagerCore {
    /// Gives host memory back until `bytes` more fit, but none of copies that are kept more
    /// dearly than `priority`. False, and nothing is given up, where that is not enough.
    /// What is not on the disk is lost with it: the disk is written ahead of need, coldest
    /// first.
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

    /// Makes room for one copy more. Copies are given up, wherever they are, until what is
    /// known of it takes `label_bytes`, and in host memory until it takes `bytes` there. None
    /// goes that is kept more dearly than `priority`. False, and nothing is given up, where
    /// that is not enough for both.
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
        // Both lists begin with the coldest, so one that went already frees its host memory
        // for this list too. It is passed over here.
        for victim in for_host {
            self.forget(victim, effects);
        }
        true
    }

    /// Removes files until `bytes` more fit, but none of copies that were of use since
    /// `candidate` was. False, and nothing is removed, where that is not enough.
    pub(super) fn free_disk_bytes(
        &mut self,
        candidate: CopyId,
        bytes: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let rank = |core: &Self, name| {
            let copy = core.copies.get(name).expect("a copy on the disk is there");
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

    /// These victims, unless one of them is kept more dearly than `priority`.
    fn evictable(&self, victims: Option<Vec<CopyId>>, priority: u8) -> Option<Vec<CopyId>> {
        let has_higher_priority = |name: &CopyId| {
            let copy = self.copies.get(*name);
            copy.is_some_and(|copy| copy.priority > priority)
        };
        victims.filter(|victims| !victims.iter().any(has_higher_priority))
    }

    /// Gives up a copy's place in host memory.
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
        match gone {
            true => self.lose(name, effects),
            false => {
                self.copies
                    .change(name, |copy| copy.host = Presence::Absent);
            }
        }
    }

    /// Gives up a copy's place on the disk.
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
        match gone {
            true => self.lose(name, effects),
            false => {
                self.copies
                    .change(name, |copy| copy.disk = Presence::Absent);
            }
        }
    }

    /// A copy is nowhere any more.
    pub(super) fn lose(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let copy = self
            .copies
            .take_entry(name)
            .expect("what is lost was there");
        self.index.remove(&copy.label, name);
        effects.push(Effect::Notify(PagerEvent::Lost { copy: name }));
    }
}
