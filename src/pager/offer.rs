//! A cold segment of the device gets a copy, ahead of need.

use std::sync::Arc;
use std::time::Duration;

use super::PagerCore;
use super::copies::{Copy, Place};
use super::message::{Done, Effect, Offer, Task, Told};
use super::tiers::{HostTier, Label, SaltDigest};
use crate::CopyId;
use crate::planted::{self, Bug};

impl PagerCore {
    /// The cache's segment is cold: it is copied out, unless there is a copy or no room.
    pub(super) fn offer(&mut self, offer: Offer, effects: &mut Vec<Effect>) {
        let segment = offer.lease.segment();
        let end = offer.tokens.len();
        let start = end - offer.extent.tokens;
        if let Some(copy) = self.covers(offer.salt, &offer.tokens, start, offer.extent.beyond) {
            self.copies.touch(copy);
            effects.push(Effect::Tell(Told::Kept { segment, copy }));
            return;
        }
        let (payload_bytes, precision) = (self.sizes)(offer.extent);
        let bytes = HostTier::bytes_taken(payload_bytes);
        let label_bytes = Label::host_bytes(offer.extent.tokens);
        if !self.make_label_room(label_bytes, offer.priority, effects)
            || !self.make_host_room(bytes, offer.priority, effects)
        {
            self.stats.refused += 1;
            effects.push(Effect::Tell(Told::Refused { segment }));
            return;
        }
        let label = Label::new(
            offer.salt,
            &offer.tokens,
            start,
            offer.extent.beyond,
            precision,
            payload_bytes,
        );
        let mut copy = Copy::new(Arc::new(label), offer.extent, bytes, offer.priority);
        copy.host = Place::Coming;
        copy.moves.insert(Task::Pack);
        copy.lease = Some(offer.lease);
        let name = self.copies.next_name();
        self.copies.insert(name, copy);
        effects.push(Effect::Do(self.copies.job(name, Task::Pack)));
        effects.push(Effect::Tell(Told::Take {
            segment,
            copy: name,
        }));
    }

    /// A copy from which this range can be had as well.
    fn covers(
        &self,
        salt: SaltDigest,
        tokens: &Arc<[crate::TokenId]>,
        start: usize,
        beyond: usize,
    ) -> Option<CopyId> {
        let anywhere = self.spec.resumes_anywhere();
        let chain = self.index.chain(salt, tokens, start, !anywhere);
        let whole = chain.first().filter(|one| one.shared == tokens.len())?;
        let copy = self
            .copies
            .get(whole.copy)
            .expect("what is listed is there");
        let serves = anywhere || copy.label.beyond <= beyond;
        (serves && self.is_within_reach(whole.copy, copy)).then_some(whole.copy)
    }

    /// The segment's bytes are out, or will not come.
    pub(super) fn packed(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let Some(copy) = self.copies.get(done.copy) else {
            // The device was reset meanwhile.
            return;
        };
        let segment = copy
            .lease
            .as_ref()
            .expect("what is packed is leased")
            .segment();
        if done.result.is_err() {
            let given_up = self.copies.take_out(done.copy);
            if planted::errs(Bug::LostLease) {
                std::mem::forget(given_up);
            }
            self.stats.refused += 1;
            effects.push(Effect::Tell(Told::Refused { segment }));
            return;
        }
        self.rates.memory.observe(copy.bytes, done.took);
        let label = Arc::clone(&copy.label);
        self.copies.change(done.copy, |copy| {
            copy.lease = None;
            copy.moves.remove(&Task::Pack);
            copy.host = Place::Here;
        });
        self.index.insert(&label, done.copy);
        self.stats.packed += 1;
        effects.push(Effect::Tell(Told::Kept {
            segment,
            copy: done.copy,
        }));
    }

    /// Gives up all copies, those that move or are waited for as soon as that is over.
    pub(super) fn clear(&mut self, salt: Option<SaltDigest>) {
        let of_salt = |copy: &Copy| salt.is_none_or(|salt| salt == copy.label.salt);
        let all = self.copies.iter().filter(|(_, copy)| of_salt(copy));
        self.doomed.extend(all.map(|(name, _)| name));
    }

    /// Gives up what is to be, as far as nothing holds it.
    pub(super) fn reap(&mut self, effects: &mut Vec<Effect>) {
        for name in std::mem::take(&mut self.doomed) {
            match self.copies.get(name) {
                Some(copy) if copy.is_free() => {
                    self.forget(name, effects);
                    self.remove(name, effects);
                }
                Some(_) => drop(self.doomed.insert(name)),
                None => {}
            }
        }
    }

    /// How long it takes to bring a copy, as far as is known.
    pub(super) fn time_to_bring(&self, copy: &Copy) -> Duration {
        let memory = self.rates.memory.time(copy.bytes);
        match copy.host {
            Place::Away => memory + self.rates.disk.time(copy.disk_bytes()),
            Place::Coming | Place::Here => memory,
        }
    }
}
