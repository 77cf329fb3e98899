//! Tiers keep within their bytes.

use super::PagerCore;
use super::copies::Place;
use super::message::{Effect, Told};
use crate::CopyId;

impl PagerCore {
    /// Gives host memory back until `bytes` more fit, but none of copies that are kept more
    /// dearly than `priority`. False, and nothing is given up, where that is not enough.
    /// What is not on the disk is lost with it: the disk is written ahead of need, coldest
    /// first.
    pub(super) fn make_host_room(
        &mut self,
        bytes: usize,
        priority: u8,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(victims) = self.cheap(self.copies.host_victims(bytes), priority) else {
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
    pub(super) fn make_room(
        &mut self,
        label_bytes: usize,
        bytes: usize,
        priority: u8,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let known = self.cheap(self.copies.label_victims(label_bytes), priority);
        let hosted = self.cheap(self.copies.host_victims(bytes), priority);
        let (Some(known), Some(hosted)) = (known, hosted) else {
            return false;
        };
        for victim in known {
            self.forget(victim, effects);
            self.remove(victim, effects);
        }
        // Both lists begin with the coldest, so one that went already frees its host memory
        // for this list too. It is passed over here.
        for victim in hosted {
            self.forget(victim, effects);
        }
        true
    }

    /// Removes files until `bytes` more fit, but none of copies that were of use since
    /// `newcomer` was. False, and nothing is removed, where that is not enough.
    pub(super) fn make_disk_room(
        &mut self,
        newcomer: CopyId,
        bytes: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let rank = |core: &Self, name| {
            let copy = core.copies.get(name).expect("a copy on the disk is there");
            (copy.priority, copy.last_use)
        };
        let own = rank(self, newcomer);
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
    fn cheap(&self, victims: Option<Vec<CopyId>>, priority: u8) -> Option<Vec<CopyId>> {
        let is_dearer = |name: &CopyId| {
            let copy = self.copies.get(*name);
            copy.is_some_and(|copy| copy.priority > priority)
        };
        victims.filter(|victims| !victims.iter().any(is_dearer))
    }

    /// Gives up a copy's place in host memory.
    pub(super) fn forget(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let Some(copy) = self
            .copies
            .get(name)
            .filter(|copy| copy.host == Place::Here)
        else {
            return;
        };
        let gone = copy.disk == Place::Away;
        effects.push(Effect::Forget(name));
        match gone {
            true => self.lose(name, effects),
            false => {
                self.copies.change(name, |copy| copy.host = Place::Away);
            }
        }
    }

    /// Gives up a copy's place on the disk.
    pub(super) fn remove(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let Some(copy) = self
            .copies
            .get(name)
            .filter(|copy| copy.disk == Place::Here)
        else {
            return;
        };
        let gone = copy.host == Place::Away;
        self.to_remove.push_back(name);
        match gone {
            true => self.lose(name, effects),
            false => {
                self.copies.change(name, |copy| copy.disk = Place::Away);
            }
        }
    }

    /// A copy is nowhere any more.
    pub(super) fn lose(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let copy = self.copies.take_out(name).expect("what is lost was there");
        self.index.remove(&copy.label, name);
        effects.push(Effect::Tell(Told::Lost { copy: name }));
    }
}
