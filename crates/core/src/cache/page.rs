//! What leaves the device in good time.
//!
//! Ahead of need, so much of the device is free or *kept*: held in a copy as well, so that
//! it can be dropped at no cost. What is coldest is offered to the pager first. While its
//! bytes are being copied a segment is leased: it stays on the device and of use there. If
//! it is cut or given up meanwhile, that goes on without it, and its bytes count until
//! they are out.
//!
//! What comes back is in `fetch.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::backup::Backups;
use super::fetch::Fetching;
use super::trie::{Keeping, NodeKey};
use super::{Begin, CacheCore, Effect, Flush, Look, Salt};
use crate::config::PagerConfig;
use crate::pager::{self, Offer, Told};
use crate::protocol::Edit;
use crate::{CopyId, SegmentId, SequenceId, TokenId};

/// Segments that are offered to the pager at once.
const OFFERS_MAX: usize = 8;
/// Of the device's bytes, what is offered at once is no more than one in so many, but for
/// a single segment.
const OFFERED_PART: usize = 4;
/// Sequences that the pager was told of and that are remembered.
const FORETOLD_MAX: usize = 1024;

/// What the cache keeps of its dealings with the pager.
#[derive(Debug, Default)]
pub(super) struct Paging {
    /// The part of the device that is to be free or kept.
    clean_part: f64,
    /// Whether there may be copies to ask for.
    pub(super) has_copies: bool,
    /// Whether some may be on a disk, from where they come slowly.
    has_disk: bool,
    /// For the pager.
    pub(super) outbox: Vec<pager::Message>,
    /// Nodes that are to be offered as soon as may be, first the first.
    to_flush: VecDeque<NodeKey>,
    /// Copies of those that live.
    pub(super) backups: Backups,
    /// Segments that it was offered and has not answered for.
    offered: BTreeMap<SegmentId, Offered>,
    /// Nodes whose state is in a copy.
    pub(super) nodes_of: BTreeMap<CopyId, Vec<NodeKey>>,
    /// Newcomers that wait for it.
    pub(super) fetching: BTreeMap<SequenceId, Fetching>,
    /// Device bytes for what is on its way.
    pub(super) arriving_bytes: usize,
    /// Times that the device was to be asked whether it has room for that.
    pub(super) clearings_made: u64,
    /// The same of what has come or was coming for nothing, until the pager has answered that
    /// it has thrown it away: an entry for each answer.
    ebbing: Vec<(SequenceId, usize)>,
    /// Newcomers that there is room for when what leaves has left.
    postponed: Vec<Begin>,
    /// Slots that are to grow then, and how far.
    cramped: Vec<(SequenceId, usize)>,
    /// Sequences of which the pager was told that they will begin.
    foretold: BTreeSet<SequenceId>,
    /// Resets of the device that the pager has not answered for: until then its news are
    /// about what was before.
    resets_unheard: u32,
}

/// A segment that the pager was offered.
#[derive(Clone, Copy, Debug)]
struct Offered {
    /// None where it was cut or given up meanwhile.
    node: Option<NodeKey>,
    bytes: usize,
}

/// What a newcomer may still wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    /// Another sequence that computes the same.
    pub(super) leader: bool,
    /// The pager.
    pub(super) pager: bool,
    /// Tokens of which there are copies that it does not wait for.
    pub(super) copied_tokens: usize,
}

impl Patience {
    pub(super) const ALL: Self = Self {
        leader: true,
        pager: true,
        copied_tokens: 0,
    };
}

impl Paging {
    /// Whether the pager has still to answer for what came, or was to come, for nothing.
    pub(super) fn is_ebbing(&self, sequence: SequenceId) -> bool {
        self.ebbing.iter().any(|(of, _)| *of == sequence)
    }

    /// Device bytes that are neither sealed nor reserved.
    fn transit_bytes(&self) -> usize {
        let ebbing: usize = self.ebbing.iter().map(|(_, bytes)| bytes).sum();
        let gone = self.offered.values().filter(|one| one.node.is_none());
        let gone: usize = gone.map(|one| one.bytes).sum();
        self.arriving_bytes + ebbing + gone + self.backups.bytes()
    }
}

impl CacheCore {
    /// The same cache with a pager of these settings. Where there are no copies yet,
    /// newcomers do not ask for any.
    #[must_use]
    pub fn with_pager(mut self, pager: &PagerConfig, has_copies: bool) -> Self {
        self.trie.note_unkept();
        self.paging = Some(Paging {
            clean_part: pager.clean_part,
            has_copies,
            has_disk: pager.disk.is_some(),
            ..Paging::default()
        });
        self
    }

    /// What the pager is to be told since this was asked last, in order.
    pub fn take_outbox(&mut self) -> Vec<pager::Message> {
        let paging = self.paging.as_mut();
        let outbox = paging.map(|paging| std::mem::take(&mut paging.outbox));
        outbox.unwrap_or_default()
    }

    /// Hears from the pager.
    pub(super) fn told(&mut self, told: Told, effects: &mut Vec<Effect>) {
        let Some(paging) = self.paging.as_mut() else {
            return;
        };
        paging.has_copies |= matches!(told, Told::Kept { .. });
        if paging.resets_unheard > 0 && told != Told::Gone {
            paging.resets_unheard -= u32::from(told == Told::Reset);
            return;
        }
        match told {
            Told::Reset => unreachable!("the pager answers for each reset once"),
            Told::Gone => self.lose_pager(effects),
            Told::Take { segment, copy } if paging.backups.is_under_way(segment) => {
                self.hand_over_backup(segment, copy, effects);
            }
            Told::Take { segment, copy } => {
                let offered = paging.offered.get(&segment);
                if offered.is_some_and(|one| one.node.is_some()) {
                    effects.push(Effect::Edit(Edit::Export { segment, copy }));
                } else {
                    paging.offered.remove(&segment);
                    paging.outbox.push(pager::Message::Withdraw { copy });
                    self.room_may_be_there(effects);
                }
            }
            Told::Kept { segment, copy } => self.offer_ended(segment, Ok(copy), effects),
            Told::Refused { segment } => self.offer_ended(segment, Err(()), effects),
            Told::Lost { copy } => self.lost(copy),
            Told::Found { sequence, pieces } => self.found(sequence, pieces, effects),
            Told::Nothing {
                sequence,
                copied_tokens,
            } => self.begin_again(sequence, Some(copied_tokens), effects),
            Told::Again { sequence } => self.begin_again(sequence, None, effects),
            Told::Arrived { sequence, copies } => self.arrived(sequence, &copies, effects),
            Told::Cancelled { sequence } => self.ebbed(sequence, effects),
        }
    }

    /// Begins to offer the pager what is in no copy.
    pub(super) fn flush(&mut self, flush: Flush) {
        if let Some(paging) = &mut self.paging {
            paging.to_flush = self.trie.hottest_unkept(flush).into();
        }
    }

    /// Whether the pager was, or is to be, offered something that it has not answered for. Once
    /// a [`Flush`] has made this true and it is false again, what was to be flushed is in host
    /// memory, was refused, or is gone.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        let flushes = |paging: &Paging| !paging.to_flush.is_empty() || !paging.offered.is_empty();
        self.paging.as_ref().is_some_and(flushes)
    }

    /// Whether there is something in no copy that the pager has not refused.
    #[must_use]
    pub fn has_unkept(&self) -> bool {
        let keys = self.trie.keys();
        let is_paged = self.paging.is_some();
        is_paged
            && keys
                .into_iter()
                .any(|key| self.trie.node(key).keeping() == Keeping::Not)
    }

    /// Offers the pager what is to be flushed, a few at a time.
    fn offer_flushed(&mut self) {
        loop {
            let Some(paging) = &mut self.paging else {
                return;
            };
            if paging.offered.len() >= OFFERS_MAX {
                return;
            }
            let Some(node) = paging.to_flush.pop_front() else {
                return;
            };
            if self.trie.contains(node) && self.trie.node(node).keeping() == Keeping::Not {
                self.offer(node);
            }
        }
    }

    /// Offers the pager what is to be flushed, and then what is coldest, until enough of the
    /// device is free or kept.
    pub(super) fn offer_cold(&mut self) {
        self.offer_flushed();
        let Some(paging) = &self.paging else {
            return;
        };
        let evictable = self.trie.bytes() - self.trie.protected_bytes();
        let clean = self.free_bytes() + evictable - self.trie.unkept_bytes();
        let wanted = (paging.clean_part * self.config.device_bytes_max as f64) as usize;
        let offered: usize = paging.offered.values().map(|one| one.bytes).sum();
        // Those who wait for room want no more to be leased.
        let waited_for = !paging.cramped.is_empty() || !paging.postponed.is_empty();
        if clean + offered >= wanted || waited_for {
            return;
        }
        let places = OFFERS_MAX - paging.offered.len();
        let mut missing = wanted - clean - offered;
        let mut room = (self.config.device_bytes_max / OFFERED_PART).saturating_sub(offered);
        for node in self.trie.coldest_unkept(places) {
            let bytes = self.trie.node(node).bytes();
            let alone = self.paging.as_ref().is_some_and(|p| p.offered.is_empty());
            if missing == 0 || bytes > room && !alone {
                return;
            }
            self.offer(node);
            missing = missing.saturating_sub(bytes);
            room = room.saturating_sub(bytes);
        }
    }

    /// Whether no more is to be offered now.
    pub(super) fn offers_wait(&self) -> bool {
        let full = |paging: &Paging| paging.offered.len() >= OFFERS_MAX;
        let waited_for =
            |paging: &Paging| !paging.cramped.is_empty() || !paging.postponed.is_empty();
        // Those who wait for room want no more to be leased.
        let waits = |paging: &Paging| full(paging) || waited_for(paging);
        self.paging.as_ref().is_none_or(waits)
    }

    pub(super) fn offer(&mut self, key: NodeKey) {
        let salt = self.trie.salt_above(key);
        if salt.is_private() {
            // It is of no use to anybody later.
            self.trie.set_keeping(key, Keeping::Refused);
            return;
        }
        let salt = salt.digest();
        let Some(lease) = self.trie.node(key).word().lease() else {
            return;
        };
        let path = self.trie.path(key);
        let edges = path.iter().map(|node| self.trie.node(*node).edge());
        let tokens: Vec<TokenId> = edges.flatten().copied().collect();
        let node = self.trie.node(key);
        let offered = Offered {
            node: Some(key),
            bytes: node.bytes(),
        };
        let (extent, priority) = (node.extent(), node.priority());
        self.trie.set_keeping(key, Keeping::Offered);
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.offered.insert(lease.segment(), offered);
        paging.outbox.push(pager::Message::Offer(Offer {
            lease,
            salt,
            tokens: tokens.into(),
            extent,
            priority,
        }));
    }

    /// An offer was answered for: the bytes are out, or will not be.
    fn offer_ended(
        &mut self,
        segment: SegmentId,
        kept: Result<CopyId, ()>,
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_mut().expect("there is a pager");
        if paging.backups.is_under_way(segment) {
            self.backup_ended(segment, kept.ok());
            return self.room_may_be_there(effects);
        }
        let offered = paging.offered.remove(&segment);
        // Its lease may have ended before this was heard, and it may have been made part of
        // another.
        let is_it = |node: &NodeKey| {
            let found = self.trie.contains(*node);
            found && self.trie.node(*node).word().segment() == segment
        };
        let node = offered.and_then(|offered| offered.node).filter(is_it);
        if let Some(node) = node {
            match kept {
                Ok(copy) => self.note_copy(node, copy),
                Err(()) => self.trie.set_keeping(node, Keeping::Refused),
            }
        }
        self.room_may_be_there(effects);
    }

    /// Nobody outside has a say in a node any more that is being copied: it is about to
    /// be cut, or to go.
    pub(super) fn withdraw(&mut self, key: NodeKey) {
        if self.trie.node(key).keeping() != Keeping::Offered {
            return;
        }
        let segment = self.trie.node(key).word().segment();
        self.trie.renew_word(key);
        self.trie.set_keeping(key, Keeping::Not);
        let paging = self.paging.as_mut().expect("there is a pager");
        let offered = paging.offered.get_mut(&segment);
        offered.expect("what is offered is known").node = None;
    }

    /// A segment is gone. If it was offered, its lease has ended, and its bytes are out. The
    /// bytes of one that was withdrawn are in transit until the pager has answered.
    pub(super) fn note_gone(&mut self, segment: SegmentId) {
        let paging = self.paging.as_mut();
        let offered = paging.and_then(|paging| paging.offered.get_mut(&segment));
        if let Some(offered) = offered.filter(|offered| offered.node.is_some()) {
            *offered = Offered {
                node: None,
                bytes: 0,
            };
        }
    }

    /// Withdraws all nodes of a salt that are offered and that nobody holds. What is held
    /// stays: its bytes would count as what leaves as well.
    pub(super) fn withdraw_all(&mut self, salt: Option<&Salt>) {
        let offered = self
            .paging
            .iter()
            .flat_map(|paging| paging.offered.values());
        let nodes: Vec<NodeKey> = offered.filter_map(|one| one.node).collect();
        for node in nodes {
            let is_held = self.trie.node(node).holders() > 0;
            if !is_held && salt.is_none_or(|salt| salt == self.trie.salt_above(node)) {
                self.withdraw(node);
            }
        }
    }

    /// The node's state is in a copy.
    pub(super) fn note_copy(&mut self, node: NodeKey, copy: CopyId) {
        self.trie.set_keeping(node, Keeping::Kept(copy));
        if let Some(paging) = &mut self.paging {
            let nodes = paging.nodes_of.entry(copy).or_default();
            // Those that were evicted, and brought back as others.
            nodes.retain(|node| self.trie.contains(*node));
            nodes.push(node);
        }
    }

    /// A copy is nowhere any more: others were worth more. It is not made again before the
    /// node is used.
    fn lost(&mut self, copy: CopyId) {
        let paging = self.paging.as_mut().expect("there is a pager");
        for node in paging.nodes_of.remove(&copy).unwrap_or_default() {
            let kept = Keeping::Kept(copy);
            if self.trie.contains(node) && self.trie.node(node).keeping() == kept {
                self.trie.set_keeping(node, Keeping::Refused);
            }
        }
    }

    /// Bytes that nobody holds and that cannot be evicted now, since the pager reads them or
    /// what lies below them.
    pub(super) fn leased_bytes(&self) -> usize {
        let offered = self.paging.iter().flat_map(|paging| paging.offered.iter());
        let read = offered.filter_map(|(segment, one)| {
            let node = one.node.filter(|node| self.trie.contains(*node))?;
            let word = self.trie.node(node).word();
            // The pager may have ended with it, and the cache not heard of that.
            (word.segment() == *segment && word.leases() > 0).then_some(node)
        });
        let kept: BTreeSet<NodeKey> = read.flat_map(|node| self.trie.path(node)).collect();
        let free = kept.iter().map(|node| self.trie.node(*node));
        let free = free.filter(|node| node.holders() == 0);
        free.map(|node| node.bytes()).sum()
    }

    /// Whether there may be room soon that is not there now.
    pub(super) fn something_leaves(&self) -> bool {
        let leaves = |paging: &Paging| {
            let mut ebbing = paging.ebbing.iter();
            let copied = paging.backups.bytes() > 0;
            copied || !paging.offered.is_empty() || ebbing.any(|(_, bytes)| *bytes > 0)
        };
        self.paging.as_ref().is_some_and(leaves)
    }

    /// There was no room for a newcomer, and something is leaving: it begins again when
    /// that has left.
    pub(super) fn postpone(&mut self, newcomer: Begin, effects: &mut Vec<Effect>) {
        effects.push(Effect::Waits {
            sequence: newcomer.sequence,
            tokens: 0,
        });
        let paging = self.paging.as_mut().expect("something leaves");
        paging.postponed.push(newcomer);
    }

    /// There is no room for a slot to grow: if something is leaving, it is answered when
    /// that has left.
    pub(super) fn grows_later(&mut self, sequence: SequenceId, tokens_max: usize) -> bool {
        let leaves = self.something_leaves();
        if let (Some(paging), true) = (&mut self.paging, leaves) {
            paging.cramped.push((sequence, tokens_max));
        }
        leaves
    }

    /// Something has left: those for whom there was no room try again.
    pub(super) fn room_may_be_there(&mut self, effects: &mut Vec<Effect>) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let postponed = std::mem::take(&mut paging.postponed);
        for (sequence, tokens_max) in std::mem::take(&mut paging.cramped) {
            self.grow(sequence, tokens_max, effects);
        }
        for newcomer in postponed {
            self.begin(newcomer, Patience::ALL, effects);
        }
    }

    /// What has come for nothing is of no use, and there until the pager has thrown it
    /// away.
    pub(super) fn ebbs(&mut self, sequence: SequenceId, bytes: usize) {
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.ebbing.push((sequence, bytes));
    }

    /// What the pager was asked to give up for a sequence has come meanwhile: it is thrown
    /// away as well, and there until that is answered for too.
    pub(super) fn ebbs_again(&mut self, sequence: SequenceId) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let first = paging.ebbing.iter().position(|(of, _)| *of == sequence);
        paging.ebbing.insert(first.unwrap_or(0), (sequence, 0));
    }

    fn ebbed(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let gone = paging.ebbing.iter().position(|(of, _)| *of == sequence);
        let bytes = gone.map_or(0, |gone| paging.ebbing.remove(gone).1);
        if bytes > 0 {
            self.room_may_be_there(effects);
        }
    }

    /// Goes on without a pager: what was asked of it is computed, and nobody waits for what
    /// leaves any more. It has dropped its leases.
    fn lose_pager(&mut self, effects: &mut Vec<Effect>) {
        let paging = self.paging.take().expect("there is a pager");
        for (segment, offered) in paging.offered {
            // It may have been made part of another, or have gone.
            if let Some(node) = offered.node.filter(|node| self.trie.contains(*node))
                && self.trie.node(node).word().segment() == segment
            {
                self.trie.set_keeping(node, Keeping::Not);
            }
        }
        for fetching in paging.fetching.into_values() {
            let newcomer = fetching.give_up(&mut self.trie);
            self.begin(newcomer, Patience::ALL, effects);
        }
        for (sequence, tokens_max) in paging.cramped {
            self.grow(sequence, tokens_max, effects);
        }
        for newcomer in paging.postponed {
            self.begin(newcomer, Patience::ALL, effects);
        }
    }

    /// Tells the pager of a sequence that will begin, once, so that what is on the disk
    /// of it can come to the host meanwhile.
    pub(super) fn foretell(&mut self, look: &Look, resident: usize, most: usize) {
        let Some(paging) = &mut self.paging else {
            return;
        };
        let asks = paging.has_disk && paging.has_copies && resident < most;
        if !asks || !paging.foretold.insert(look.sequence) {
            return;
        }
        if paging.foretold.len() > FORETOLD_MAX {
            // The oldest have begun, as a rule.
            paging.foretold.pop_first();
        }
        paging.outbox.push(pager::Message::Foretell {
            salt: look.salt.digest(),
            tokens: look.tokens[..most].into(),
            resident,
        });
    }

    /// Whether the sequence waits for the pager.
    pub(super) fn is_paged(&self, sequence: SequenceId) -> bool {
        let waits = |paging: &Paging| {
            let postponed = paging.postponed.iter();
            paging.fetching.contains_key(&sequence)
                || postponed.map(|one| one.sequence).any(|one| one == sequence)
        };
        self.paging.as_ref().is_some_and(waits)
    }

    /// A sequence is over that may wait for the pager.
    pub(super) fn stop_paging(&mut self, sequence: SequenceId) {
        if let Some(paging) = &mut self.paging {
            paging.postponed.retain(|one| one.sequence != sequence);
            paging.cramped.retain(|(cramped, _)| *cramped != sequence);
            self.cancel_fetching(sequence);
        }
    }

    /// Device bytes that are neither sealed nor reserved, but on their way.
    pub(super) fn transit_bytes(&self) -> usize {
        self.paging.as_ref().map_or(0, Paging::transit_bytes)
    }

    pub(super) fn tell_pager(&mut self, message: pager::Message) {
        if let Some(paging) = self.paging.as_mut() {
            paging.outbox.push(message);
        }
    }

    /// The device is empty: what was to leave it or to come will not.
    pub(super) fn reset_paging(&mut self) -> Option<Paging> {
        let paging = self.paging.take()?;
        let mut outbox = paging.outbox;
        outbox.push(pager::Message::Reset);
        Some(Paging {
            clean_part: paging.clean_part,
            has_copies: paging.has_copies,
            has_disk: paging.has_disk,
            resets_unheard: paging.resets_unheard + 1,
            clearings_made: paging.clearings_made,
            outbox,
            ..Paging::default()
        })
    }
}
