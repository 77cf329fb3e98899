//! Messages to the pager's core, as a cache and copy threads may send them.
//!
//! What the pager says reaches the cache when the input says so, so that answers cross
//! with what the cache has sent meanwhile. Copy threads are what `pager_threads.rs` says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use motet::config::{DiskConfig, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{Extent, LayerKind, ModelSpec};
use motet::{CopyId, SegmentId, SequenceId, TokenId};
use motet_core::cache::SaltDigest;
use motet_core::lease::LeaseWord;
use motet_core::pager::{
    Effect, Label, Message, Offer, PagerCore, Piece, Precision, PrefixDigest, Told, Want,
};

use super::input::Input;
use super::pager_threads::Threads;

const KINDS: [&[LayerKind]; 4] = [
    &[LayerKind::Full],
    &[LayerKind::Full, LayerKind::Window { tokens: 5 }],
    &[LayerKind::Recurrent],
    &[LayerKind::Full, LayerKind::Recurrent],
];
const SEQUENCES: usize = 5;
/// As many as the cache offers at once.
const OFFERS_MAX: usize = 8;
const MESSAGES_MAX: usize = 400;
/// So that copies take between one page and six.
const TOKEN_BYTES: usize = 700;
const PAGE_BYTES: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(1);

struct Pagers {
    core: PagerCore,
    spec: ModelSpec,
    now: Duration,
    threads: Threads,
    /// What the pager has said and the cache has not heard.
    told: Vec<Told>,
    cache: Cache,
    segments_made: u64,
    /// The words of segments of which the pager has the lease, and of those it has given
    /// back.
    leased: BTreeMap<SegmentId, LeaseWord>,
    given_back: Vec<LeaseWord>,
    /// What each sequence has asked for last.
    asked: BTreeMap<SequenceId, Want>,
}

/// What the cache knows of its dealings with the pager.
#[derive(Default)]
struct Cache {
    /// Segments that are offered, and whether they are still on the device.
    offered: BTreeMap<SegmentId, bool>,
    wishes: BTreeMap<SequenceId, Wish>,
    /// Answers to a cancel or to what was spared that are still to come.
    due: BTreeMap<SequenceId, usize>,
    resets_unheard: usize,
}

#[derive(Debug, PartialEq)]
enum Wish {
    Asked,
    Found(Vec<Piece>),
    Fetching(Vec<Piece>),
}

/// The core is consistent after any message, tells nobody of state that is not theirs, keeps
/// within its bytes, and comes to rest with nothing left over.
pub fn pager(input: &[u8]) {
    let mut input = Input(input);
    let mut pagers = Pagers::new(&mut input);
    for _ in 0..MESSAGES_MAX {
        if input.is_empty() {
            break;
        }
        pagers.happen(&mut input);
    }
    pagers.end();
}

impl Pagers {
    fn new(input: &mut Input<'_>) -> Self {
        let oracle = OracleConfig::with_layers(KINDS[input.below(KINDS.len())]);
        let spec = oracle.spec();
        let host_bytes_max = PAGE_BYTES * (1 + input.below(16));
        let disk_bytes_max = input.bit().then(|| PAGE_BYTES * (1 + input.below(16)));
        let config = PagerConfig {
            host_bytes_max,
            // Of all that are found, at least.
            label_bytes_max: Some(Label::host_bytes(12) * (4 + input.below(16))),
            disk: disk_bytes_max.map(|bytes_max| DiskConfig {
                folder: "never touched".into(),
                bytes_max,
            }),
            disk_patience: PATIENCE,
            ..PagerConfig::default()
        };
        let mut threads = Threads::new(host_bytes_max, disk_bytes_max);
        let mut found: Vec<(CopyId, Label)> = Vec::new();
        for number in 0..input.below(4) {
            let (label, _) = label(input);
            let again = found.iter().any(|(_, one)| *one == label);
            let copy = CopyId(number as u64 + 1);
            if !again && threads.find(copy, &label) {
                found.push((copy, label));
            }
        }
        let sizes = |extent: Extent| (TOKEN_BYTES * extent.tokens, Precision::Full);
        Self {
            core: PagerCore::new(spec.clone(), config, Box::new(sizes), found),
            spec,
            now: Duration::ZERO,
            threads,
            told: Vec::new(),
            cache: Cache::default(),
            segments_made: 0,
            leased: BTreeMap::new(),
            given_back: Vec::new(),
            asked: BTreeMap::new(),
        }
    }

    fn happen(&mut self, input: &mut Input<'_>) {
        self.now += Duration::from_millis(1);
        let sequence = SequenceId(input.below(SEQUENCES) as u64);
        match input.below(20) {
            0..=3 => self.offer(input),
            4..=5 => self.want(sequence, input),
            6..=7 => self.fetch(sequence),
            8 => self.cancel(sequence),
            9..=12 => self.hear(),
            13..=16 => {
                if let Some(done) = self.threads.go_on(input) {
                    self.tell(Message::Done(done));
                }
            }
            17 => {
                let (of, tokens) = label(input);
                let resident = input.below(1 + tokens.len());
                self.tell(Message::Foretell {
                    salt: of.salt,
                    tokens,
                    resident,
                });
            }
            // A segment that is offered is cut or given up.
            18 => {
                let mut offered = self.cache.offered.values_mut();
                if let Some(on_device) = offered.nth(input.below(OFFERS_MAX)) {
                    *on_device = false;
                }
            }
            _ => match input.below(4) {
                0 => self.reset(),
                1 => {
                    let salt = input.bit().then(|| salt(input));
                    self.tell(Message::Clear { salt });
                }
                _ => self.wait(),
            },
        }
    }

    fn offer(&mut self, input: &mut Input<'_>) {
        let (label, tokens) = label(input);
        if self.cache.offered.len() == OFFERS_MAX {
            return;
        }
        self.segments_made += 1;
        let word = LeaseWord::new(SegmentId(self.segments_made));
        let lease = word.lease().expect("nobody evicts it");
        self.cache.offered.insert(word.segment(), true);
        self.leased.insert(word.segment(), word);
        self.tell(Message::Offer(Offer {
            lease,
            salt: label.salt,
            extent: label.extent(),
            tokens,
            priority: input.byte() % 3,
        }));
    }

    fn want(&mut self, sequence: SequenceId, input: &mut Input<'_>) {
        let (of, tokens) = label(input);
        let resident = input.below(1 + tokens.len());
        let seen_tokens = resident + input.below(1 + tokens.len() - resident);
        let want = Want {
            sequence,
            salt: of.salt,
            resident: (resident > 0)
                .then(|| Extent::whole(resident))
                .into_iter()
                .collect(),
            tokens,
            seen_tokens,
            token_time: input
                .bit()
                .then(|| Duration::from_micros(1 << input.below(12))),
        };
        // Who waits does not ask, nor who may be taken for one that has left.
        let due = self.cache.due.contains_key(&sequence);
        if !due && !self.cache.wishes.contains_key(&sequence) {
            self.cache.wishes.insert(sequence, Wish::Asked);
            self.asked.insert(sequence, want.clone());
            self.tell(Message::Want(want));
        }
    }

    fn fetch(&mut self, sequence: SequenceId) {
        if let Some(wish) = self.cache.wishes.get_mut(&sequence)
            && let Wish::Found(pieces) = wish
        {
            *wish = Wish::Fetching(std::mem::take(pieces));
            self.tell(Message::Fetch { sequence });
        }
    }

    fn cancel(&mut self, sequence: SequenceId) {
        if self.cache.wishes.remove(&sequence).is_some() {
            *self.cache.due.entry(sequence).or_default() += 1;
            self.tell(Message::Cancel { sequence });
        }
    }

    fn reset(&mut self) {
        self.cache = Cache {
            resets_unheard: self.cache.resets_unheard + 1,
            ..Cache::default()
        };
        self.given_back
            .extend(std::mem::take(&mut self.leased).into_values());
        self.tell(Message::Reset);
    }

    /// Longer than a disk may take, or rests.
    fn wait(&mut self) {
        self.now += PATIENCE * 20;
        self.tell(Message::Tick);
    }

    fn tell(&mut self, message: Message) {
        for effect in self.core.handle(self.now, message) {
            match effect {
                Effect::Tell(told) => {
                    self.check_told(&told);
                    self.told.push(told);
                }
                Effect::Do(job) => self.threads.begin(job),
                Effect::Forget(copy) => self.threads.forget(copy),
                Effect::Discard(copy) => self.threads.take_parcel(copy),
                Effect::DiscardAll => self.threads.parcels.clear(),
            }
        }
        self.core.check_integrity();
        self.threads.check(&self.core.stats());
        for word in self.leased.values() {
            assert_eq!(word.leases(), 1, "what is offered is leased");
        }
        for word in self.given_back.drain(..) {
            assert_eq!(word.leases(), 0, "what is answered for is not");
        }
    }

    /// What is said is true when it is said.
    fn check_told(&mut self, told: &Told) {
        match told {
            Told::Kept { segment, copy } => {
                self.give_back(*segment);
                assert!(self.threads.has(*copy), "a copy that is kept is somewhere");
            }
            Told::Refused { segment } => self.give_back(*segment),
            Told::Lost { copy } => assert!(!self.threads.host.contains_key(copy), "it is lost"),
            Told::Found { sequence, pieces } => {
                let want = &self.asked[sequence];
                let mut at: usize = want.resident.iter().map(|extent| extent.tokens).sum();
                let mut path = want.resident.clone();
                for piece in pieces {
                    let label = self.threads.label(piece.copy);
                    assert_eq!(label.salt, want.salt, "salts never mix");
                    let (before, own) = want.tokens[..piece.end].split_at(label.start);
                    assert!(
                        label.before == PrefixDigest::of(want.salt, before)
                            && label.tokens[..own.len()] == *own,
                        "a copy of the sequence's own tokens"
                    );
                    assert_eq!((piece.start, piece.extent), (label.start, label.extent()));
                    assert!(
                        piece.start <= at && at < piece.end,
                        "they follow each other"
                    );
                    path.push(Extent {
                        tokens: piece.end - at,
                        beyond: piece.extent.beyond,
                    });
                    at = piece.end;
                }
                assert!(at > want.seen_tokens, "more than the device has");
                assert!(self.spec.can_resume(&path), "it can go on from there");
            }
            _ => {}
        }
    }

    fn give_back(&mut self, segment: SegmentId) {
        let word = self.leased.remove(&segment);
        self.given_back
            .push(word.expect("an offer is answered once"));
    }

    /// The cache hears the oldest of what was said.
    fn hear(&mut self) {
        if self.told.is_empty() {
            return;
        }
        let told = self.told.remove(0);
        if self.cache.resets_unheard > 0 {
            self.cache.resets_unheard -= usize::from(told == Told::Reset);
            return;
        }
        let wishes = &mut self.cache.wishes;
        match told {
            Told::Take { segment, copy } => match self.cache.offered[&segment] {
                true => self.threads.hand_over(copy),
                false => {
                    self.cache.offered.remove(&segment);
                    self.give_back(segment);
                    self.tell(Message::Withdraw { copy });
                }
            },
            Told::Kept { segment, .. } | Told::Refused { segment } => {
                let offered = self.cache.offered.remove(&segment);
                assert!(offered.is_some(), "an offer is answered once");
            }
            Told::Found { sequence, pieces } => {
                if let Some(wish) = wishes.get_mut(&sequence) {
                    assert_eq!(*wish, Wish::Asked, "who has asked is answered");
                    *wish = Wish::Found(pieces);
                }
            }
            Told::Nothing { sequence, .. } | Told::Again { sequence } => {
                let wish = wishes.remove(&sequence);
                assert!(
                    !matches!(wish, Some(Wish::Found(_))),
                    "who has not fetched is not told to do without"
                );
            }
            Told::Arrived { sequence, copies } => self.arrived(sequence, copies),
            Told::Cancelled { sequence } => {
                let due = self.cache.due.get_mut(&sequence);
                let due = due.expect("only what was asked is answered");
                *due -= 1;
                if *due == 0 {
                    self.cache.due.remove(&sequence);
                }
            }
            Told::Lost { .. } => {}
            Told::Reset | Told::Gone => unreachable!("nobody has reset it, and it is here"),
        }
    }

    /// The device takes the parcels in, but for what it has got meanwhile.
    fn arrived(&mut self, sequence: SequenceId, copies: Vec<CopyId>) {
        let spared = match self.cache.wishes.remove(&sequence) {
            None => copies,
            Some(wish) => {
                let Wish::Fetching(pieces) = wish else {
                    panic!("what arrives was fetched")
                };
                let fetched: Vec<CopyId> = pieces.iter().map(|piece| piece.copy).collect();
                assert_eq!(fetched, copies, "what arrives is what was fetched");
                for copy in &copies {
                    assert!(self.threads.parcels.contains_key(copy), "a parcel each");
                }
                // One of five, so that both are met.
                let (spared, taken) = copies.into_iter().partition(|copy| copy.0 % 5 == 0);
                let taken: Vec<CopyId> = taken;
                for copy in taken {
                    self.threads.take_parcel(copy);
                }
                spared
            }
        };
        if !spared.is_empty() {
            *self.cache.due.entry(sequence).or_default() += 1;
            let copies = spared;
            self.tell(Message::Spare { sequence, copies });
        }
    }

    /// Whatever is under way ends well; then all copies are given up.
    fn end(mut self) {
        self.come_to_rest();
        assert!(self.cache.wishes.is_empty(), "who asks is answered");
        assert!(self.cache.due.is_empty(), "and who cancels");
        assert!(
            self.cache.offered.is_empty() && self.leased.is_empty(),
            "offers are answered"
        );
        assert!(self.core.is_idle(), "nothing moves");
        self.tell(Message::Clear { salt: None });
        self.come_to_rest();
        let stats = self.core.stats();
        assert_eq!(
            (stats.copies, stats.host_bytes, stats.disk_bytes),
            (0, 0, 0),
            "nothing is left"
        );
        self.threads.check_end();
    }

    fn come_to_rest(&mut self) {
        loop {
            self.now += Duration::from_millis(1);
            let mut wishes = self.cache.wishes.iter();
            let found = wishes.find(|(_, wish)| matches!(wish, Wish::Found(_)));
            if let Some((sequence, _)) = found {
                self.fetch(*sequence);
            } else if !self.told.is_empty() {
                self.hear();
            } else if let Some(done) = self.threads.end_one() {
                self.tell(Message::Done(done));
            } else if self.core.wakes_at().is_some() {
                self.wait();
            } else {
                return;
            }
        }
    }
}

/// A segment or a prompt: tokens that begin alike often, and where the segment begins.
fn label(input: &mut Input<'_>) -> (Label, Arc<[TokenId]>) {
    let shared = input.below(7);
    let mut tokens: Vec<TokenId> = (0..shared as TokenId).collect();
    tokens.extend((0..1 + input.below(6)).map(|_| TokenId::from(input.byte() % 2)));
    let start = input.below(tokens.len());
    let (salt, beyond) = (salt(input), input.below(4) / 3);
    let bytes = TOKEN_BYTES * (tokens.len() - start);
    let label = Label::new(salt, &tokens, start, beyond, Precision::Full, bytes);
    (label, Arc::from(tokens))
}

fn salt(input: &mut Input<'_>) -> SaltDigest {
    SaltDigest([u8::from(input.below(4) == 0); 32])
}
