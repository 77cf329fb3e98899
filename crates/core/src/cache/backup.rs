//! What is copied of those that live.
//!
//! A device that is lost takes all with it that it held. What is in a copy comes back, and only
//! the rest is computed again. What leaves the device for want of room is not enough for that:
//! live tails never do. So their tokens are copied as they go, a part at a time, as if each part
//! were a segment: the pager is offered one that stands in no trie. The sequence goes on
//! meanwhile. Its tail stays as it is, in one piece, which is fastest to decode on.
//!
//! When a sequence is over its copies are given up: what it leaves in the trie leaves the device
//! in good time, like all else.
//!
//! A copy that is made on the device takes room there until it is in host memory. It is made
//! only where there is room, and evicts nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::trie::{Keeping, NodeKey};
use super::{CacheCore, Effect};
use crate::lease::LeaseWord;
use crate::pager::{self, Offer};
use crate::protocol::{Edit, Extent};
use crate::{CopyId, SegmentId, SequenceId, SlotId, TokenId};

/// Parts of tails that are on their way at once: few, since each takes room on the device.
const BACKUPS_MAX: usize = 4;

/// Parts of live tails, on their way to host memory.
#[derive(Debug, Default)]
pub(super) struct Backups {
    /// To be offered, first the first; one at most of each slot.
    due: VecDeque<Backup>,
    /// Nodes on the paths of live slots that are in no copy.
    paths: VecDeque<NodeKey>,
    /// Offered and not answered for, each by the segment that it would be.
    under_way: BTreeMap<SegmentId, Backup>,
}

/// A part of a live tail.
#[derive(Debug)]
struct Backup {
    sequence: SequenceId,
    slot: SlotId,
    /// The sequence's tokens up to the part's end.
    tokens: Arc<[TokenId]>,
    /// Where the part begins.
    from: usize,
    /// Device bytes that its copy takes; 0 until it is made.
    bytes: usize,
    /// Whether the slot does not hold these tokens any more.
    is_void: bool,
}

impl Backups {
    /// Device bytes of what was copied there and is not in host memory yet.
    pub(super) fn bytes(&self) -> usize {
        self.under_way.values().map(|backup| backup.bytes).sum()
    }

    /// The parts of a sequence's tail.
    fn of(&mut self, sequence: SequenceId) -> impl Iterator<Item = &mut Backup> {
        let all = self.due.iter_mut().chain(self.under_way.values_mut());
        all.filter(move |backup| backup.sequence == sequence)
    }

    pub(super) fn is_under_way(&self, segment: SegmentId) -> bool {
        self.under_way.contains_key(&segment)
    }
}

impl Backup {
    fn len(&self) -> usize {
        self.tokens.len() - self.from
    }
}

impl CacheCore {
    /// A live sequence has computed so much: what is in no copy of it is to be.
    pub(super) fn back_up(&mut self, sequence: SequenceId, computed: usize, generated: &[TokenId]) {
        let (Some(slot), Some(paging)) = (self.slots.get_mut(&sequence), &mut self.paging) else {
            return;
        };
        if slot.salt.is_private() {
            return;
        }
        slot.computed = slot.computed.max(computed);
        let backups = &mut paging.backups;
        for node in self.trie.path(slot.end) {
            let is_kept = self.trie.node(node).keeping() != Keeping::Not;
            if !is_kept && !backups.paths.contains(&node) {
                backups.paths.push_back(node);
            }
        }
        let known = slot.tokens.iter().chain(generated).copied();
        let tokens: Arc<[TokenId]> = known.take(computed.min(slot.exact_tokens)).collect();
        let mut from = slot.backed_up.max(slot.path_tokens);
        if tokens.len() <= from {
            return;
        }
        slot.backed_up = tokens.len();
        if let Some(at) = backups.due.iter().position(|due| due.slot == slot.id) {
            let before = backups.due.remove(at);
            from = from.min(before.map_or(from, |before| before.from));
        }
        backups.due.push_back(Backup {
            sequence,
            slot: slot.id,
            tokens,
            from,
            bytes: 0,
            is_void: false,
        });
    }

    /// Offers the pager what is to be copied of live sequences, a little at a time.
    pub(super) fn offer_backups(&mut self) {
        while !self.offers_wait()
            && let Some(paging) = &mut self.paging
            && let Some(node) = paging.backups.paths.pop_front()
        {
            if self.trie.contains(node) && self.trie.node(node).keeping() == Keeping::Not {
                self.offer(node);
            }
        }
        while !self.offers_wait()
            && let Some(paging) = &mut self.paging
            && paging.backups.under_way.len() < BACKUPS_MAX
            && let Some(backup) = paging.backups.due.pop_front()
        {
            self.offer_backup(backup);
        }
    }

    fn offer_backup(&mut self, backup: Backup) {
        if !self.is_there(&backup) || self.copied_bytes(&backup) > self.free_bytes() {
            return self.not_backed_up(&backup);
        }
        let segment = self.next_segment();
        let lease = LeaseWord::new(segment).lease();
        let slot = &self.slots[&backup.sequence];
        let offer = Offer {
            lease: lease.expect("nobody evicts what was just named"),
            salt: slot.salt.digest(),
            tokens: Arc::clone(&backup.tokens),
            extent: Extent::whole(backup.len()),
            priority: slot.priority,
        };
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.backups.under_way.insert(segment, backup);
        self.tell_pager(pager::Message::Offer(offer));
    }

    /// The pager has room for it: the device is to copy it, if it has room for that too.
    pub(super) fn hand_over_backup(
        &mut self,
        segment: SegmentId,
        copy: CopyId,
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let mut backup = paging.backups.under_way.remove(&segment);
        let backup = backup.as_mut().expect("it is under way");
        let bytes = self.copied_bytes(backup);
        if !self.is_there(backup) || bytes > self.free_bytes() {
            self.not_backed_up(backup);
            return self.tell_pager(pager::Message::Withdraw { copy });
        }
        let path_tokens = self.slots[&backup.sequence].path_tokens;
        effects.push(Effect::Edit(Edit::CopyOut {
            slot: backup.slot,
            tokens: backup.from - path_tokens..backup.tokens.len() - path_tokens,
            copy,
        }));
        let handed_over = Backup {
            tokens: Arc::clone(&backup.tokens),
            bytes,
            ..*backup
        };
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.backups.under_way.insert(segment, handed_over);
    }

    /// It is in host memory, in this copy, or will not be.
    pub(super) fn backup_ended(&mut self, segment: SegmentId, kept: Option<CopyId>) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let backup = paging.backups.under_way.remove(&segment);
        let backup = backup.expect("it is under way");
        // What another copy holds as well was not made for this.
        let was_made = backup.bytes > 0;
        let slot = self.slots.get_mut(&backup.sequence);
        let slot = slot.filter(|slot| slot.id == backup.slot);
        match (kept, slot) {
            (None, _) => self.not_backed_up(&backup),
            (Some(copy), Some(slot)) if was_made => slot.backups.push(copy),
            (Some(copy), None) if was_made => self.give_up_backups(vec![copy]),
            (Some(_), _) => {}
        }
    }

    /// The sequence that these are of is over. What it leaves in the trie is copied when it is
    /// cold, like all else; what serves a node already stays.
    pub(super) fn give_up_backups(&mut self, mut copies: Vec<CopyId>) {
        let Some(paging) = &self.paging else {
            return;
        };
        copies.retain(|copy| {
            let nodes = paging.nodes_of.get(copy);
            !nodes.is_some_and(|nodes| nodes.iter().any(|node| self.trie.contains(*node)))
        });
        if !copies.is_empty() {
            self.tell_pager(pager::Message::GiveUp { copies });
        }
    }

    /// A slot gives up its tokens from there on: others may take their place.
    pub(super) fn void_backups(&mut self, sequence: SequenceId, from: usize) {
        let Some(paging) = &mut self.paging else {
            return;
        };
        for backup in paging.backups.of(sequence) {
            backup.is_void |= backup.tokens.len() > from;
        }
        if let Some(slot) = self.slots.get_mut(&sequence) {
            slot.backed_up = slot.backed_up.min(from);
        }
    }

    /// A slot is another sequence's from now on, and so are the parts of its tail.
    pub(super) fn rename_backups(&mut self, from: SequenceId, to: SequenceId) {
        if let Some(paging) = &mut self.paging {
            paging
                .backups
                .of(from)
                .for_each(|backup| backup.sequence = to);
        }
    }

    /// Whether the part is still its slot's tail's.
    fn is_there(&self, backup: &Backup) -> bool {
        let slot = self.slots.get(&backup.sequence);
        let is_its = slot.filter(|slot| slot.id == backup.slot && !slot.is_retired);
        !backup.is_void && is_its.is_some_and(|slot| slot.path_tokens <= backup.from)
    }

    /// The part is in no copy: the next begins with it.
    fn not_backed_up(&mut self, backup: &Backup) {
        let slot = self.slots.get_mut(&backup.sequence);
        if let Some(slot) = slot.filter(|slot| slot.id == backup.slot) {
            slot.backed_up = slot.backed_up.min(backup.from);
        }
    }

    fn copied_bytes(&self, backup: &Backup) -> usize {
        self.spec.segment_bytes(Extent::whole(backup.len()))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::time::Duration;

    use super::*;
    use crate::cache::{Begin, Message};
    use crate::config::{CacheConfig, PagerConfig};
    use crate::pager::Told;
    use crate::protocol::{LayerKind, ModelSpec};

    const LIVE: SequenceId = SequenceId(1);

    fn spec() -> ModelSpec {
        ModelSpec {
            tail_block_tokens: 4,
            ..ModelSpec::of_kinds(&[LayerKind::Full])
        }
    }

    /// A cache with room for so many tokens, and in it a sequence that began with 8 and may
    /// have 24.
    fn cache(tokens: usize) -> CacheCore {
        let config = CacheConfig {
            device_bytes_max: spec().tail_bytes(tokens),
            ..CacheConfig::default()
        };
        let pager = PagerConfig {
            clean_part: 0.0,
            ..PagerConfig::default()
        };
        let mut core = CacheCore::new(spec(), config).with_pager(&pager, false);
        tell(&mut core, Message::Begin(Begin::new(LIVE, [1; 8], 16)));
        assert!(core.take_outbox().is_empty());
        core
    }

    fn tell(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message makes sense")
    }

    fn back_up(core: &mut CacheCore, computed: usize) {
        let message = Message::BackUp {
            sequence: LIVE,
            computed,
            generated: vec![2; computed.saturating_sub(7)],
        };
        assert_eq!(tell(core, message), [], "nobody waits for it");
    }

    /// The segment that the pager is offered, and which tokens of the sequence it would be.
    fn offered(core: &mut CacheCore) -> Option<(SegmentId, Range<usize>)> {
        let outbox = core.take_outbox();
        let [pager::Message::Offer(offer)] = &outbox[..] else {
            assert!(outbox.is_empty(), "{outbox:?}");
            return None;
        };
        let end = offer.tokens.len();
        assert!(offer.tokens.iter().take(8).all(|token| *token == 1));
        assert!(offer.tokens.iter().skip(8).all(|token| *token == 2));
        Some((offer.lease.segment(), end - offer.extent.tokens..end))
    }

    fn take(core: &mut CacheCore, segment: SegmentId) -> Vec<Effect> {
        let copy = CopyId(9);
        tell(core, Message::Paged(Told::Take { segment, copy }))
    }

    fn copy_out(effects: &[Effect]) -> Range<usize> {
        match effects {
            [Effect::Edit(Edit::CopyOut { tokens, .. })] => tokens.clone(),
            other => panic!("a tail is copied: {other:?}"),
        }
    }

    #[test]
    fn each_token_is_copied_once() {
        let mut core = cache(96);
        back_up(&mut core, 10);
        let (segment, tokens) = offered(&mut core).expect("there is room");
        assert_eq!(tokens, 0..10);
        let free = core.free_bytes();
        assert_eq!(copy_out(&take(&mut core, segment)), 0..10);
        let bytes = spec().segment_bytes(Extent::whole(10));
        assert_eq!(free - core.free_bytes(), bytes, "the copy counts");
        // What comes meanwhile waits for nothing.
        back_up(&mut core, 14);
        let (next, tokens) = offered(&mut core).expect("there is room");
        assert_eq!(tokens, 10..14);
        let kept = |segment| {
            Message::Paged(Told::Kept {
                segment,
                copy: CopyId(9),
            })
        };
        tell(&mut core, kept(segment));
        assert_eq!(core.free_bytes(), free, "it is in host memory");
        // What is refused is tried again with what has come since.
        tell(&mut core, Message::Paged(Told::Refused { segment: next }));
        back_up(&mut core, 20);
        let (_, tokens) = offered(&mut core).expect("there is room");
        assert_eq!(tokens, 10..20);
    }

    #[test]
    fn copies_of_a_sequence_that_is_over_are_given_up() {
        let copy = CopyId(9);
        let close = || Message::Close {
            sequence: LIVE,
            computed: 10,
            generated: vec![2; 2],
        };
        let mut core = cache(96);
        back_up(&mut core, 10);
        let (segment, _) = offered(&mut core).expect("there is room");
        take(&mut core, segment);
        tell(&mut core, Message::Paged(Told::Kept { segment, copy }));
        tell(&mut core, close());
        let outbox = core.take_outbox();
        let [pager::Message::GiveUp { copies }] = &outbox[..] else {
            panic!("its copy is given up: {outbox:?}");
        };
        assert_eq!(copies[..], [copy]);
        // It was over before the copy was there; and another copy had served all along.
        for (is_made, given_up) in [(true, 1), (false, 0)] {
            let mut core = cache(96);
            back_up(&mut core, 10);
            let (segment, _) = offered(&mut core).expect("there is room");
            if is_made {
                take(&mut core, segment);
            }
            tell(&mut core, close());
            tell(&mut core, Message::Paged(Told::Kept { segment, copy }));
            assert_eq!(core.take_outbox().len(), given_up);
        }
        // A device that is lost takes no sequence with it: it comes back for its copies.
        let mut core = cache(96);
        back_up(&mut core, 10);
        let (segment, _) = offered(&mut core).expect("there is room");
        take(&mut core, segment);
        tell(&mut core, Message::Paged(Told::Kept { segment, copy }));
        tell(&mut core, Message::Reset);
        let outbox = core.take_outbox();
        assert!(matches!(outbox[..], [pager::Message::Reset]), "{outbox:?}");
    }

    #[test]
    fn nothing_is_evicted_for_a_copy() {
        // The slot takes 24 of 32 tokens.
        let mut core = cache(32);
        back_up(&mut core, 7);
        assert!(offered(&mut core).is_some());
        let mut core = cache(32);
        back_up(&mut core, 12);
        assert_eq!(offered(&mut core), None);
        assert_eq!(core.stats().evicted_segments, 0);
        // Room that was there is gone when the pager answers.
        let mut core = cache(32);
        back_up(&mut core, 7);
        let (segment, _) = offered(&mut core).expect("there is room");
        let other = Begin::new(SequenceId(2), [5; 3], 1);
        tell(&mut core, Message::Begin(other));
        assert_eq!(take(&mut core, segment), []);
        let withdraws = [pager::Message::Withdraw { copy: CopyId(9) }];
        assert_eq!(
            format!("{:?}", core.take_outbox()),
            format!("{withdraws:?}")
        );
    }

    #[test]
    fn what_the_slot_has_given_up_is_not_copied() {
        let gone: [fn() -> Message; 3] = [
            || Message::Discard { sequence: LIVE },
            || Message::Close {
                sequence: LIVE,
                computed: 10,
                generated: vec![2; 2],
            },
            || Message::Remove {
                sequence: LIVE,
                computed: 10,
                generated: vec![2; 2],
                removed: 9..10,
            },
        ];
        for message in gone {
            let mut core = cache(96);
            back_up(&mut core, 10);
            let (segment, _) = offered(&mut core).expect("there is room");
            tell(&mut core, message());
            core.take_outbox();
            assert_eq!(take(&mut core, segment), [], "{:?}", message());
            let outbox = core.take_outbox();
            let [pager::Message::Withdraw { .. }] = outbox[..] else {
                panic!("the pager waits for an answer: {outbox:?}");
            };
        }
        // Others come in the place of what was removed.
        let mut core = cache(96);
        back_up(&mut core, 10);
        let (segment, _) = offered(&mut core).expect("there is room");
        let removed = Message::Remove {
            sequence: LIVE,
            computed: 10,
            generated: vec![2; 2],
            removed: 8..10,
        };
        tell(&mut core, removed);
        take(&mut core, segment);
        core.take_outbox();
        back_up(&mut core, 12);
        let (segment, tokens) = offered(&mut core).expect("there is room");
        assert_eq!(tokens, 0..12);
        assert_eq!(copy_out(&take(&mut core, segment)), 0..12);
    }

    #[test]
    fn what_is_shared_and_in_no_copy_is_offered_as_it_is() {
        let mut core = cache(96);
        let share = Message::Share {
            sequence: LIVE,
            computed: 9,
            generated: vec![2; 2],
            at: 8,
        };
        tell(&mut core, share);
        back_up(&mut core, 12);
        let outbox = core.take_outbox();
        let [pager::Message::Offer(shared), pager::Message::Offer(own)] = &outbox[..] else {
            panic!("two are offered: {outbox:?}");
        };
        assert_eq!((shared.tokens.len(), shared.extent.tokens), (8, 8));
        assert_eq!((own.tokens.len(), own.extent.tokens), (12, 4));
        assert_eq!(copy_out(&take(&mut core, own.lease.segment())), 0..4);
    }
}
