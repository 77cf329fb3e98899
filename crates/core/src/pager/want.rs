//! A sequence begins: what is there for it, and is it worth bringing.
//!
//! What it wants is looked for when it begins, and comes when the cache has made room on
//! the device. Bringing and computing are compared by what both have taken lately.

use std::time::Duration;

use super::PagerCore;
use super::copies::{Copy, Place};
use super::message::{Effect, Piece, Task, Told, Want};
use crate::cache::SaltDigest;
use crate::protocol::Extent;
use crate::{CopyId, SequenceId, TokenId};
use motet_sync::planted::{self, Bug};

/// Copies that are to be read because somebody will want them, at most.
const FORETOLD_MAX: usize = 64;

/// A sequence that waits for copies.
#[derive(Debug)]
pub(super) struct Wanted {
    pieces: Vec<Piece>,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The cache knows what there is, and is to fetch it.
    Found,
    /// It comes; so many parcels are ready.
    Fetching { ready: usize },
    /// Somebody else fetches this copy, which it wants as well.
    Joined(CopyId),
}

impl Wanted {
    /// The copies that it holds.
    pub(super) fn copies(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.pieces.iter().map(|piece| piece.copy)
    }
}

impl PagerCore {
    /// Says what there is for a sequence beyond what is on the device.
    pub(super) fn want(&mut self, want: Want, effects: &mut Vec<Effect>) {
        let sequence = want.sequence;
        let pieces = self.find(&want);
        let copied_tokens = pieces.last().map_or(0, |piece| piece.end);
        let pieces = self.worth_bringing(&want, pieces);
        if pieces.is_empty() {
            effects.push(Effect::Tell(Told::Nothing {
                sequence,
                copied_tokens,
            }));
            return;
        }
        let fetched = |piece: &Piece| {
            let copy = self
                .copies
                .get(piece.copy)
                .expect("what was found is there");
            copy.fetched_by.is_some().then_some(piece.copy)
        };
        if let Some(busy) = pieces.iter().find_map(fetched) {
            let stage = Stage::Joined(busy);
            self.copies.change(busy, |copy| copy.joined.push(sequence));
            let pieces = Vec::new();
            self.wants.insert(sequence, Wanted { pieces, stage });
            return;
        }
        for piece in &pieces {
            self.copies.change(piece.copy, |copy| copy.users += 1);
        }
        effects.push(Effect::Tell(Told::Found {
            sequence,
            pieces: pieces.clone(),
        }));
        let stage = Stage::Found;
        self.wants.insert(sequence, Wanted { pieces, stage });
    }

    /// What was found is to come.
    pub(super) fn fetch(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let Some(wanted) = self.wants.get_mut(&sequence) else {
            return;
        };
        wanted.stage = Stage::Fetching { ready: 0 };
        let copies: Vec<CopyId> = wanted.copies().collect();
        // One may be lost, or somebody may have begun to fetch it.
        let is_mine = |name: &CopyId| {
            let copy = self.copies.get(*name);
            copy.is_some_and(|copy| copy.fetched_by.is_none() && self.is_within_reach(*name, copy))
        };
        if !copies.iter().all(is_mine) {
            self.part(sequence, effects);
            effects.push(Effect::Tell(Told::Again { sequence }));
            return;
        }
        for name in copies {
            self.copies
                .change(name, |copy| copy.fetched_by = Some(sequence));
            let copy = self.copies.get(name).expect("it is within reach");
            let is_made = copy.moves.contains(&Task::Unpack);
            match copy.host {
                Place::Away => {
                    self.stats.disk_hits += 1;
                    self.to_read.push_back(name);
                }
                // It is unpacked when it has been read.
                Place::Coming => self.stats.host_hits += 1,
                Place::Here => {
                    self.stats.host_hits += 1;
                    // Unless it is being made for somebody who has left.
                    if !is_made {
                        self.to_unpack.push_back(name);
                    }
                }
            }
        }
    }

    /// The sequence does not want anything any more.
    pub(super) fn cancel(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let Some(wanted) = self.wants.get(&sequence) else {
            // It has been answered already, and the two have crossed; or it is about to be,
            // when a parcel is gone that may be its own.
            let nothing = Told::nothing(sequence);
            let due = self.cancelled.iter().find(|(_, told)| *told == nothing);
            match due.map(|(copy, _)| *copy) {
                Some(copy) => self.cancelled.push((copy, Told::Cancelled { sequence })),
                None => effects.push(Effect::Tell(Told::Cancelled { sequence })),
            }
            return;
        };
        if let Stage::Joined(copy) = wanted.stage {
            effects.push(Effect::Tell(Told::Cancelled { sequence }));
            self.wants.remove(&sequence);
            self.copies
                .change(copy, |copy| copy.joined.retain(|other| *other != sequence));
            return;
        }
        let making = wanted.copies().find(|name| {
            let copy = self.copies.get(*name);
            let own = copy.is_some_and(|copy| copy.fetched_by == Some(sequence));
            own && self.is_unpacking(*name)
        });
        self.throw_parcels_away(sequence, effects);
        self.part(sequence, effects);
        match making {
            Some(_) if planted::errs(Bug::LostCancel) => {}
            Some(name) => self.cancelled.push((name, Told::Cancelled { sequence })),
            None => effects.push(Effect::Tell(Told::Cancelled { sequence })),
        }
    }

    /// A copy was brought to the host: whoever waits for it goes on.
    pub(super) fn brought(&mut self, name: CopyId) {
        let waits = self.copies.get(name).and_then(|copy| copy.fetched_by);
        self.to_unpack.extend(waits.map(|_| name));
    }

    /// A copy's parcel is ready for whoever waits for it.
    pub(super) fn unpacked(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let waits = self.copies.get(name).and_then(|copy| copy.fetched_by);
        let Some(sequence) = waits else {
            // Who wanted it has left.
            effects.push(Effect::Discard(name));
            return;
        };
        self.stats.unpacked += 1;
        let wanted = self
            .wants
            .get_mut(&sequence)
            .expect("who waits wants something");
        let all = wanted.pieces.len();
        let Stage::Fetching { ready } = &mut wanted.stage else {
            unreachable!("only who fetches waits for a parcel")
        };
        *ready += 1;
        if *ready == all {
            let copies: Vec<CopyId> = wanted.copies().collect();
            for copy in &copies {
                self.copies.touch(*copy);
            }
            effects.push(Effect::Tell(Told::Arrived { sequence, copies }));
            self.part(sequence, effects);
        }
    }

    /// What the sequence waits for cannot be brought, and it is told so.
    pub(super) fn disappoint(
        &mut self,
        name: CopyId,
        told: fn(SequenceId) -> Told,
        effects: &mut Vec<Effect>,
    ) {
        let waits = self.copies.get(name).and_then(|copy| copy.fetched_by);
        if let Some(sequence) = waits {
            self.throw_parcels_away(sequence, effects);
            self.part(sequence, effects);
            effects.push(Effect::Tell(told(sequence)));
        }
    }

    /// What is on the disk of a sequence that waits is brought to the host, when there is
    /// nothing else to do.
    pub(super) fn foretell(&mut self, salt: SaltDigest, tokens: &[TokenId], resident: usize) {
        let whole = !self.spec.resumes_anywhere();
        for one in self.index.chain(salt, tokens, resident, whole) {
            let copy = self.copies.get(one.copy).expect("what is listed is there");
            let away = copy.host == Place::Away && self.is_within_reach(one.copy, copy);
            if away && self.foretold.len() < FORETOLD_MAX && !self.foretold.contains(&one.copy) {
                // Before others are given up for it.
                self.copies.touch(one.copy);
                self.foretold.push_back(one.copy);
            }
        }
    }

    /// Whether the copy can be brought now.
    pub(super) fn is_within_reach(&self, name: CopyId, copy: &Copy) -> bool {
        if self.doomed.contains(&name) {
            return false;
        }
        copy.host == Place::Here || copy.disk == Place::Here && self.disk_state.works()
    }

    /// The copies that continue what the sequence would find on the device, as far as it
    /// can go on from them.
    fn find(&self, want: &Want) -> Vec<Piece> {
        let resident = want.resident_tokens();
        let anywhere = self.spec.resumes_anywhere();
        let chain = self
            .index
            .chain(want.salt, &want.tokens, resident, !anywhere);
        // All that comes from the disk must be in host memory at once.
        let mut host_bytes = self.copies.host.bytes_max;
        let pieces = chain.iter().map_while(|one| {
            let copy = self.copies.get(one.copy).expect("what is listed is there");
            host_bytes = host_bytes.checked_sub(copy.bytes)?;
            self.is_within_reach(one.copy, copy).then_some(Piece {
                copy: one.copy,
                start: one.start,
                extent: copy.extent,
                end: one.shared,
            })
        });
        let mut pieces: Vec<Piece> = pieces.collect();
        while !pieces.is_empty() && !self.can_resume(want, &pieces) {
            pieces.pop();
        }
        // What the device has, though not so that it can be gone on from, is not replaced.
        match pieces
            .last()
            .is_some_and(|last| last.end > want.seen_tokens)
        {
            true => pieces,
            false => Vec::new(),
        }
    }

    /// Whether the sequence can go on from the end of these.
    fn can_resume(&self, want: &Want, pieces: &[Piece]) -> bool {
        if self.spec.resumes_anywhere() {
            return true;
        }
        let mut extents = want.resident.clone();
        let mut at = want.resident_tokens();
        for piece in pieces {
            extents.push(Extent {
                tokens: piece.end - at,
                beyond: piece.extent.beyond,
            });
            at = piece.end;
        }
        self.spec.can_resume(&extents)
    }

    /// Of these, as many as save most time.
    fn worth_bringing(&mut self, want: &Want, mut pieces: Vec<Piece>) -> Vec<Piece> {
        let Some(token_time) = want.token_time else {
            return pieces;
        };
        let resident = want.resident_tokens();
        let mut cost = self.backlog();
        let mut best = (0.0, 0);
        for (index, piece) in pieces.iter().enumerate() {
            let copy = self
                .copies
                .get(piece.copy)
                .expect("what was found is there");
            cost += self.time_to_bring(copy);
            let spared = token_time.as_secs_f64() * (piece.end - resident) as f64;
            let gain = spared - cost.as_secs_f64();
            // What ends sooner is on the device, and would not be taken in.
            let is_new = piece.end > want.seen_tokens;
            if gain > best.0 && is_new && self.can_resume(want, &pieces[..=index]) {
                best = (gain, index + 1);
            }
        }
        if best.1 < pieces.len() {
            self.stats.computed_instead += 1;
        }
        pieces.truncate(best.1);
        pieces
    }

    /// How long it takes until what is asked for now has its turn.
    fn backlog(&self) -> Duration {
        let time = |name: &CopyId| {
            let copy = self.copies.get(*name);
            copy.map_or(Duration::ZERO, |copy| self.time_to_bring(copy))
        };
        self.to_unpack.iter().chain(&self.to_read).map(time).sum()
    }

    /// The sequence holds none of its copies any more, and those who joined it look again.
    fn part(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let wanted = self
            .wants
            .remove(&sequence)
            .expect("who parts wanted something");
        for name in wanted.copies() {
            let joined = self.copies.change(name, |copy| {
                copy.users -= 1;
                if copy.fetched_by == Some(sequence) {
                    copy.fetched_by = None;
                    return std::mem::take(&mut copy.joined);
                }
                Vec::new()
            });
            for other in joined.unwrap_or_default() {
                self.wants.remove(&other);
                effects.push(Effect::Tell(Told::Again { sequence: other }));
            }
            let copy = self.copies.get(name);
            if copy.is_none_or(|copy| copy.fetched_by.is_none()) {
                self.to_unpack.retain(|other| *other != name);
                self.to_read.retain(|other| *other != name);
            }
        }
    }

    /// The parcels that are ready for it, and those that are being made, serve nobody.
    fn throw_parcels_away(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let wanted = &self.wants[&sequence];
        let fetching = matches!(wanted.stage, Stage::Fetching { .. });
        for name in wanted.copies().filter(|_| fetching) {
            let Some(copy) = self.copies.get(name) else {
                continue;
            };
            let is_ready = copy.host == Place::Here
                && !copy.moves.contains(&Task::Unpack)
                && !self.to_unpack.contains(&name);
            if is_ready {
                effects.push(Effect::Discard(name));
            }
        }
    }
}

impl Want {
    /// Tokens on the device that it would begin with.
    #[must_use]
    pub fn resident_tokens(&self) -> usize {
        self.resident.iter().map(|extent| extent.tokens).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::SegmentId;
    use crate::config::PagerConfig;
    use crate::lease::LeaseWord;
    use crate::pager::{Done, Message, Offer, Precision};
    use crate::protocol::{LayerKind, ModelSpec};

    const SALT: SaltDigest = SaltDigest([0; 32]);
    const TOKENS: [TokenId; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    /// To bring a copy, each of which takes a page.
    const TOOK: Duration = Duration::from_micros(10);

    /// A pager with a copy of the first eight tokens, and one of the ninth.
    fn pager() -> PagerCore {
        let config = PagerConfig {
            host_bytes_max: 1 << 20,
            ..PagerConfig::default()
        };
        let spec = ModelSpec::of_kinds(&[LayerKind::Recurrent]);
        let sizes = |_| (100, Precision::Full);
        let mut core = PagerCore::new(spec, config, Box::new(sizes), Vec::new());
        for (number, range) in [(1, 0..8), (2, 8..9)] {
            let word = LeaseWord::new(SegmentId(number));
            core.handle(
                Duration::ZERO,
                Message::Offer(Offer {
                    lease: word.lease().expect("nobody evicts it"),
                    salt: SALT,
                    tokens: Arc::from(&TOKENS[..range.end]),
                    extent: Extent::whole(range.len()),
                    priority: 0,
                }),
            );
            core.handle(
                Duration::ZERO,
                Message::Done(Done {
                    copy: CopyId(number),
                    task: Task::Pack,
                    result: Ok(()),
                    took: TOOK,
                    bytes: 100,
                }),
            );
        }
        core
    }

    /// How many copies are found by who knows of so many tokens, with no state of them.
    fn found(seen_tokens: usize, token_time: Duration) -> usize {
        let want = Want {
            sequence: SequenceId(1),
            salt: SALT,
            tokens: Arc::from(TOKENS),
            resident: Vec::new(),
            seen_tokens,
            token_time: Some(token_time),
        };
        let told = pager().handle(Duration::ZERO, Message::Want(want));
        match &told[..] {
            [Effect::Tell(Told::Found { pieces, .. })] => pieces.len(),
            [Effect::Tell(Told::Nothing { .. })] => 0,
            other => panic!("one answer: {other:?}"),
        }
    }

    #[test]
    fn what_is_faster_to_compute_is_not_brought() {
        for (micros, copies) in [(1, 0), (2, 1), (9, 1), (11, 2)] {
            assert_eq!(found(0, Duration::from_micros(micros)), copies, "{micros}");
        }
    }

    /// It would be thrown away as soon as it is there.
    #[test]
    fn what_the_trie_knows_is_not_brought_alone() {
        for (seen, micros, copies) in [(7, 2, 1), (8, 2, 0), (8, 11, 2), (9, 11, 0)] {
            let time = Duration::from_micros(micros);
            assert_eq!(found(seen, time), copies, "{seen} {micros}");
        }
    }
}
