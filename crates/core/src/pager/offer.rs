//! A cold segment of the device gets a copy, ahead of need.

use std::sync::Arc;
use std::time::Duration;

use super::PagerCore;
use super::copies::{Copy, Place};
use super::footprint;
use super::message::{Done, Effect, Offer, Task, Told};
use crate::CopyId;
use crate::cache::SaltDigest;
use crate::pager::Label;
use motet_sync::planted::{self, Bug};

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
        let bytes = footprint::host_bytes(payload_bytes);
        let label_bytes = Label::host_bytes(offer.extent.tokens);
        if !self.make_room(label_bytes, bytes, offer.priority, effects) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DiskConfig, PagerConfig};
    use crate::lease::LeaseWord;
    use crate::pager::{Message, Precision};
    use crate::protocol::{Extent, LayerKind, ModelSpec};
    use crate::{SegmentId, TokenId};

    const SALT: SaltDigest = SaltDigest([0; 32]);
    const TOKENS: [TokenId; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    /// What is known of the copy on the disk takes all that it may, and another segment is
    /// offered. The segment's copy takes 100 bytes of host memory.
    fn offered(host_bytes_max: usize) -> (PagerCore, Vec<Effect>) {
        let config = PagerConfig {
            host_bytes_max,
            label_bytes_max: Some(Label::host_bytes(TOKENS.len())),
            disk: Some(DiskConfig {
                folder: "never touched".into(),
                bytes_max: 1 << 20,
            }),
            ..PagerConfig::default()
        };
        let spec = ModelSpec::of_kinds(&[LayerKind::Full]);
        let sizes = |_: Extent| (100, Precision::Full);
        let known = Label::new(SALT, &TOKENS, 0, 0, Precision::Full, 100);
        let found = vec![(CopyId(1), known)];
        let mut core = PagerCore::new(spec, config, Box::new(sizes), found);
        assert_eq!(core.stats().disk_copies, 1);
        let word = LeaseWord::new(SegmentId(1));
        let offer = Offer {
            lease: word.lease().expect("nobody evicts it"),
            salt: SALT,
            tokens: TOKENS.iter().map(|token| token + 100).collect(),
            extent: Extent::whole(TOKENS.len()),
            priority: 0,
        };
        let effects = core.handle(Duration::ZERO, Message::Offer(offer));
        core.check_integrity();
        (core, effects)
    }

    #[test]
    fn a_refused_offer_costs_no_copy() {
        let (core, effects) = offered(footprint::host_bytes(100) - 1);
        let [Effect::Tell(Told::Refused { .. })] = effects[..] else {
            panic!("{effects:?}");
        };
        let stats = core.stats();
        assert_eq!((stats.refused, stats.copies, stats.disk_copies), (1, 1, 1));
    }

    /// Where both are to be had, what is known of the older copy makes room.
    #[test]
    fn an_offer_that_fits_takes_the_room_of_a_colder_copy() {
        let (core, effects) = offered(footprint::host_bytes(100));
        let is_lost = |one: &Effect| matches!(one, Effect::Tell(Told::Lost { copy: CopyId(1) }));
        assert!(effects.iter().any(is_lost), "{effects:?}");
        let stats = core.stats();
        assert_eq!((stats.refused, stats.copies, stats.disk_copies), (0, 1, 0));
    }
}
