//! A follower of blocks, held to what the device and the copy workers have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use motet_core::cache::{BlockEvent, BlockTier, PrefixKey, Salt};
use motet_core::pager::{Done, Effect, Label, PrefixDigest, Task};
use motet_protocol::KeyDigest;
use motet_protocol::{CopyId, TokenId};
use motet_testkit::block_follower::BlockFollower;
use motet_testkit::naive::spelled;

use crate::harness::HistoryHarness;

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: usize = 3;

const TIERS: [BlockTier; 2] = [BlockTier::Host, BlockTier::Disk];

/// Where each copy is, by the jobs that have moved it.
#[derive(Debug, Default)]
pub(crate) struct Places {
    copies: BTreeMap<CopyId, Place>,
}

#[derive(Debug)]
struct Place {
    label: Arc<Label>,
    in_host: bool,
    on_disk: bool,
    /// Whether the cache has offered it.
    is_packed: bool,
    is_forgotten: bool,
}

impl Places {
    /// Copies that were found on the disk.
    pub(crate) fn of(found: &[(CopyId, Label)]) -> Self {
        let place = |(copy, label): &(CopyId, Label)| {
            let on_disk = Place {
                on_disk: true,
                ..Place::new(Arc::new(label.clone()))
            };
            (*copy, on_disk)
        };
        Self {
            copies: found.iter().map(place).collect(),
        }
    }

    /// A job has ended.
    pub(crate) fn done(&mut self, done: &Done) {
        let Some(place) = self.copies.get_mut(&done.copy) else {
            return;
        };
        if done.result.is_ok() && !place.is_forgotten {
            match done.task {
                Task::Pack | Task::Read | Task::Fetch => place.in_host = true,
                Task::Write => place.on_disk = true,
                Task::Unpack | Task::Send | Task::Remove => {}
            }
        }
    }

    /// The pager wants something done.
    pub(crate) fn on_effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Do(job) => {
                let new = || Place::new(Arc::clone(&job.label));
                let place = self.copies.entry(job.copy).or_insert_with(new);
                place.is_packed |= job.task == Task::Pack;
                place.on_disk &= job.task != Task::Remove;
                place.is_forgotten &= job.task != Task::Read;
            }
            Effect::Forget(copy) => {
                if let Some(place) = self.copies.get_mut(copy) {
                    (place.in_host, place.is_forgotten) = (false, true);
                }
            }
            _ => {}
        }
    }

    /// The copies in a tier, and whether the cache has offered each.
    fn within(&self, tier: BlockTier) -> impl Iterator<Item = (&Label, bool)> {
        let is_there = move |place: &&Place| match tier {
            BlockTier::Host => place.in_host,
            _ => place.on_disk,
        };
        let there = self.copies.values().filter(is_there);
        there.map(|place| (&*place.label, place.is_packed))
    }
}

impl Place {
    fn new(label: Arc<Label>) -> Self {
        Self {
            label,
            in_host: false,
            on_disk: false,
            is_packed: false,
            is_forgotten: false,
        }
    }
}

/// The first tokens of a sequence, and the digest of each of its prefixes.
struct Text<'a> {
    salt: &'a Salt,
    tokens: &'a [TokenId],
    digests: Vec<PrefixDigest>,
}

impl<'a> Text<'a> {
    fn new(salt: &'a Salt, tokens: &'a [TokenId]) -> Self {
        let digest = |end| PrefixDigest::of(KeyDigest::of(salt.digest()), &tokens[..end]);
        Self {
            salt,
            tokens,
            digests: (0..=tokens.len()).map(digest).collect(),
        }
    }

    /// The tokens of this text whose state is in these copies.
    fn held<'l>(&self, copies: impl Iterator<Item = &'l Label>) -> Vec<bool> {
        let mut held = vec![false; self.tokens.len()];
        for label in copies.filter(|label| label.key.salt == self.salt.digest()) {
            if self.digests.get(label.start) != Some(&label.before) {
                continue;
            }
            let text = self.tokens[label.start..].iter().zip(&*label.tokens);
            let shared = text.take_while(|(text, own)| text == own).count();
            held[label.start..label.start + shared].fill(true);
        }
        held
    }
}

impl HistoryHarness {
    /// Starts to follow blocks.
    pub(crate) fn follow_blocks(&mut self) {
        let all = self.cores.follow_blocks();
        self.block_follower = Some(BlockFollower::default());
        self.apply_block_events(all);
    }

    pub(crate) fn apply_block_events(&mut self, events: Vec<BlockEvent>) {
        let follower = &mut self.block_follower;
        for event in events {
            let follower = follower.as_mut().expect("only followed blocks are told");
            follower.apply(event, BLOCK_TOKENS);
        }
    }

    /// Checks that the follower knows exactly the blocks of the trie and of the copies, now that no
    /// sequence is live and no message under way. If `knows_all`, no copy is left out whose tokens
    /// the cache has offered.
    pub(crate) fn check_followed_blocks(&self, knows_all: bool) {
        let Some(follower) = &self.block_follower else {
            return;
        };
        let salts: BTreeSet<&Salt> = self.callers.values().map(|caller| &caller.salt).collect();
        for salt in salts.into_iter().filter(|salt| !salt.is_private()) {
            let view = self.cores.cache().tree(salt);
            let mut blocks = BTreeSet::new();
            for (tokens, node) in spelled(&view) {
                let ends = node.tokens_before + 1..=tokens.len();
                let ends = ends.filter(|end| end.is_multiple_of(BLOCK_TOKENS));
                blocks.extend(ends.map(|end| tokens[..end].to_vec()));
            }
            let known = follower.prefixes(BlockTier::Device, &PrefixKey::of(salt.clone()));
            assert_eq!(known, blocks, "a follower knows the blocks of the trie");
            for tier in TIERS {
                let known = follower.prefixes(tier, &PrefixKey::of(salt.clone()));
                self.check_copied(salt, tier, &known, knows_all);
            }
        }
    }

    fn check_copied(
        &self,
        salt: &Salt,
        tier: BlockTier,
        known: &BTreeSet<Vec<TokenId>>,
        knows_all: bool,
    ) {
        let Some(pager_harness) = &self.pager_harness else {
            assert!(known.is_empty(), "no pager has copies");
            return;
        };
        let places = &pager_harness.places;
        for block in known {
            let held = Text::new(salt, block).held(places.within(tier).map(|(label, _)| label));
            let own = &held[block.len() - BLOCK_TOKENS..];
            assert!(own.iter().all(|held| *held), "{tier:?} holds {block:?}");
        }
        let of_salt = self.callers.values().filter(|one| one.salt == *salt);
        for caller in of_salt.filter(|_| knows_all) {
            let tokens = [&caller.prompt[..], &caller.sent].concat();
            let packed = places.within(tier).filter(|(_, is_packed)| *is_packed);
            let held = Text::new(salt, &tokens).held(packed.map(|(label, _)| label));
            for (block, held) in held.chunks_exact(BLOCK_TOKENS).enumerate() {
                let text = &tokens[..(block + 1) * BLOCK_TOKENS];
                let is_left_out = held.iter().all(|held| *held) && !known.contains(text);
                assert!(
                    !is_left_out,
                    "a follower knows that {tier:?} holds {text:?}"
                );
            }
        }
    }
}
