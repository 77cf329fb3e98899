//! What is copied of those that live.
//!
//! A device that is lost takes all with it that it held. What is in a copy comes back, and only
//! the rest is computed again. What leaves the device for want of room is not enough for that:
//! live tails never do. So their tokens are copied as they go, a part at a time, as if each part
//! were a segment: the pager is offered one that stands in no trie. The sequence goes on
//! meanwhile. Its tail stays as it is, in one piece, which is fastest to decode on.
//!
//! A copy that is made on the device takes room there until it is in host memory. It is made
//! only where there is room, and evicts nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::trie::{Keeping, NodeKey};
use super::{CacheCore, Effect};
use crate::device::Edit;
use crate::model::Extent;
use crate::pager::{self, Offer};
use crate::shared::lease::LeaseWord;
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
    pub(super) fn back_up(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        generated: &[TokenId],
    ) {
        let (Some(slot), Some(paging)) = (self.slots.get_mut(&sequence), &mut self.paging) else {
            return;
        };
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

    /// It is in host memory, or will not be.
    pub(super) fn backup_ended(&mut self, segment: SegmentId, is_kept: bool) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let backup = paging.backups.under_way.remove(&segment);
        if let (Some(backup), false) = (backup, is_kept) {
            self.not_backed_up(&backup);
        }
    }

    /// A slot gives up its tokens from there on: others may take their place.
    pub(super) fn void_backups(&mut self, sequence: SequenceId, from: usize) {
        let Some(paging) = &mut self.paging else {
            return;
        };
        let backups = &mut paging.backups;
        let all = backups.due.iter_mut().chain(backups.under_way.values_mut());
        for backup in all.filter(|backup| backup.sequence == sequence) {
            backup.is_void |= backup.tokens.len() > from;
        }
        if let Some(slot) = self.slots.get_mut(&sequence) {
            slot.backed_up = slot.backed_up.min(from);
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
