//! The slots of live sequences.
//!
//! [`Slots`] keeps the sums of their bytes and the order of their prompts in step with the
//! slots. A [`CacheSlot`] changes what concerns itself only.
//!
//! | file | contents |
//! |---|---|
//! | `slot.rs` | one live sequence's state on the device |
//! | `grant.rs` | the tokens that a slot may hold, and the bytes reserved for them |
//! | `restore_points.rs` | the offsets at which a slot is sealed without another sequence waiting |
//! | `in_progress.rs` | the live prompts with the longest shared prefix |

mod grant;
mod in_progress;
mod restore_points;
mod slot;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use super::restore_policy::Point;
use super::trie::{LiveBlocks, NodeKey, Trie};
use super::{OpenSlot, PrefixKey, Salt};
use in_progress::InProgressPrompts;
use motet_protocol::ModelSpec;
use motet_protocol::{SequenceId, SlotId, TokenId};
use motet_sync::injected::{self, Bug};

pub(super) use grant::Grant;
pub(super) use restore_points::RestorePoints;
pub(super) use slot::{CacheSlot, SlotStart};

/// The slots of live sequences.
#[derive(Debug, Default)]
pub(super) struct Slots {
    live: BTreeMap<SequenceId, CacheSlot>,
    /// Sequences whose slots were lost with their path, until the scheduler closes or discards
    /// them.
    lost: BTreeSet<SequenceId>,
    prompts: InProgressPrompts,
    /// Slots opened so far.
    opened: u64,
    reserved_bytes: usize,
    /// Bytes of segments that belong to the path of one slot only and not to the trie.
    own_bytes: usize,
}

/// A sequence that other requests may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) sequence: SequenceId,
    /// The offset that it must reach.
    pub(super) at: usize,
}

impl Slots {
    pub(super) fn get(&self, sequence: SequenceId) -> Option<&CacheSlot> {
        self.live.get(&sequence)
    }

    pub(super) fn get_mut(&mut self, sequence: SequenceId) -> Option<&mut CacheSlot> {
        self.live.get_mut(&sequence)
    }

    pub(super) fn contains(&self, sequence: SequenceId) -> bool {
        self.live.contains_key(&sequence)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The ends of the paths, which the slots hold.
    pub(super) fn ends(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.live.values().map(CacheSlot::end)
    }

    /// Bytes that live tails may grow to.
    pub(super) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Bytes of segments that belong to the path of one slot only and not to the trie.
    pub(super) fn own_bytes(&self) -> usize {
        self.own_bytes
    }

    /// Whether a live slot uses this salt.
    pub(super) fn uses_salt(&self, salt: &Salt) -> bool {
        self.live.values().any(|slot| slot.key().salt == *salt)
    }

    /// Whether the sequence lost its slot and has not been closed since.
    pub(super) fn is_lost(&self, sequence: SequenceId) -> bool {
        self.lost.contains(&sequence)
    }

    /// Opens a slot, whose bytes count as reserved from now on.
    pub(super) fn open(&mut self, start: SlotStart) -> &CacheSlot {
        self.opened += 1;
        let sequence = start.request.sequence;
        let slot = CacheSlot::new(SlotId(self.opened), start);
        self.reserved_bytes += slot.reserved_bytes();
        self.prompts.insert(slot.key(), slot.tokens(), sequence);
        self.live.insert(sequence, slot);
        &self.live[&sequence]
    }

    /// Frees a sequence's slot, if it has one, and releases its path.
    pub(super) fn close(&mut self, sequence: SequenceId, trie: &mut Trie) -> Option<CacheSlot> {
        let mut slot = self.live.remove(&sequence)?;
        self.prompts.remove(slot.key(), sequence);
        self.reserved_bytes -= slot.reserved_bytes();
        self.own_bytes -= slot.own_bytes();
        if !injected::is_injected(Bug::LostRelease) {
            slot.leave(trie);
        }
        Some(slot)
    }

    /// Records that a sequence lost its slot.
    pub(super) fn lose(&mut self, sequence: SequenceId) {
        self.lost.insert(sequence);
    }

    /// Forgets that a sequence lost its slot.
    pub(super) fn forget_lost(&mut self, sequence: SequenceId) {
        self.lost.remove(&sequence);
    }

    /// Passes a slot on to another sequence of these tokens, of which `computed` have their
    /// state in the slot. `None` if there is no such slot.
    pub(super) fn pass_on(
        &mut self,
        from: SequenceId,
        to: SequenceId,
        tokens: Arc<[TokenId]>,
        computed: usize,
        retention: u8,
    ) -> Option<&CacheSlot> {
        let mut slot = self.live.remove(&from)?;
        self.prompts.remove(slot.key(), from);
        slot.continue_as(tokens, computed, retention);
        self.prompts.insert(slot.key(), slot.tokens(), to);
        self.live.insert(to, slot);
        self.live.get(&to)
    }

    /// Records how many tokens of a sequence are computed, if it has a slot.
    pub(super) fn set_computed(&mut self, sequence: SequenceId, computed: usize) {
        if let Some(slot) = self.live.get_mut(&sequence) {
            slot.set_computed(computed);
        }
    }

    /// Holds the blocks of a sequence's computed prompt, if it has a slot. Returns the number of
    /// tokens at which it is to report next.
    pub(super) fn hold_blocks(&mut self, sequence: SequenceId, trie: &mut Trie) -> Option<usize> {
        self.live.get_mut(&sequence)?.hold_blocks(trie)
    }

    /// The blocks that the slots hold.
    pub(super) fn blocks(&self) -> impl Iterator<Item = LiveBlocks<'_>> {
        self.live.values().map(CacheSlot::blocks)
    }

    /// Forgets the slots' blocks, which are not followed any more.
    pub(super) fn forget_blocks(&mut self) {
        self.live.values_mut().for_each(CacheSlot::forget_blocks);
    }

    /// The live sequences.
    pub(super) fn sequences(&self) -> impl Iterator<Item = SequenceId> + '_ {
        self.live.keys().copied()
    }

    /// The restore points that a sequence has reached, if it has a slot. Each is returned once.
    pub(super) fn take_reached(&mut self, sequence: SequenceId, computed: usize) -> Vec<Point> {
        let slot = self.live.get_mut(&sequence);
        slot.map_or_else(Vec::new, |slot| slot.take_reached_points(computed))
    }

    /// Ends the known tokens of a slot at offset `start`, where tokens are removed.
    pub(super) fn forget_tokens(
        &mut self,
        sequence: SequenceId,
        generated: &[TokenId],
        start: usize,
        shifts: bool,
        trie: &mut Trie,
    ) {
        let slot = self.live.get_mut(&sequence).expect("the slot is live");
        self.prompts.remove(slot.key(), sequence);
        slot.forget_from(start, generated, shifts, trie);
        self.prompts.insert(slot.key(), slot.tokens(), sequence);
    }

    /// Sets the end of a slot's path. The caller has checked that its reservation fits.
    pub(super) fn move_end(
        &mut self,
        sequence: SequenceId,
        end: NodeKey,
        more_own_bytes: usize,
        trie: &mut Trie,
        spec: &ModelSpec,
    ) {
        self.own_bytes += more_own_bytes;
        self.change(sequence, |slot| {
            slot.move_end(end, more_own_bytes, trie, spec);
        });
    }

    /// Extends a slot's grant. The caller has checked that its reservation fits.
    pub(super) fn extend_grant(
        &mut self,
        sequence: SequenceId,
        tokens_max: usize,
        trie: &Trie,
        spec: &ModelSpec,
    ) {
        self.change(sequence, |slot| slot.extend_grant(tokens_max, trie, spec));
    }

    /// Reduces a slot's grant to nothing, as the slot will not grow any more.
    pub(super) fn end_grant(&mut self, sequence: SequenceId, trie: &Trie, spec: &ModelSpec) {
        self.change(sequence, |slot| slot.end_grant(trie, spec));
    }

    /// The sequences whose paths lead through one of these nodes.
    pub(super) fn through(&self, nodes: &[NodeKey], trie: &Trie) -> Vec<SequenceId> {
        let live = self.live.iter();
        let through = live.filter(|(_, slot)| trie.leads_through(slot.end(), nodes));
        through.map(|(sequence, _)| *sequence).collect()
    }

    /// The live sequences that share a prefix with `tokens`, and its length, longest first.
    pub(super) fn nearest(
        &self,
        key: &PrefixKey,
        tokens: &[TokenId],
    ) -> impl Iterator<Item = (SequenceId, usize)> + '_ {
        self.prompts.nearest(key, tokens)
    }

    /// The live sequence to wait for, if one shares at least `least` and at most `most` tokens
    /// of the request. Tokens that it has already sealed do not count, as they are in the
    /// trie. If the model cannot resume anywhere, tokens that it is already past do not count
    /// either.
    pub(super) fn leader(
        &self,
        request: &OpenSlot,
        least: usize,
        most: usize,
        resumes_anywhere: bool,
    ) -> Option<Leader> {
        if most < least {
            return None;
        }
        let nearest = self.prompts.nearest(&request.key, &request.tokens);
        let candidates = nearest.take_while(|(_, shared)| *shared >= least);
        candidates
            .map(|(sequence, shared)| Leader {
                sequence,
                at: self.live[&sequence].leads_to(shared.min(most)),
            })
            .find(|Leader { sequence, at }| {
                let slot = &self.live[sequence];
                let past = slot.has_reached(*at) && !resumes_anywhere;
                *at >= least && *at > slot.path_tokens() && !past
            })
    }

    /// No slots, as the device is empty. Ids continue, so that none is used twice.
    pub(super) fn after_reset(&self) -> Self {
        Self {
            opened: self.opened,
            ..Self::default()
        }
    }

    /// Panics unless the slots, the sums of their bytes and the order of their prompts agree.
    pub(super) fn check_integrity(&self, trie: &Trie, spec: &ModelSpec) {
        for slot in self.live.values() {
            slot.check_integrity(trie, spec);
        }
        let reserved: usize = self.live.values().map(CacheSlot::reserved_bytes).sum();
        assert_eq!(reserved, self.reserved_bytes, "reservations add up");
        let own: usize = self.live.values().map(CacheSlot::own_bytes).sum();
        assert_eq!(own, self.own_bytes, "the slots' own bytes add up");
        assert_eq!(
            self.prompts.len(),
            self.live.len(),
            "each live prompt is listed once"
        );
        self.prompts.check_integrity();
    }

    /// Changes a slot, and keeps the sum of the reservations in step.
    fn change(&mut self, sequence: SequenceId, change: impl FnOnce(&mut CacheSlot)) {
        let slot = self.live.get_mut(&sequence).expect("the slot is live");
        self.reserved_bytes -= slot.reserved_bytes();
        change(slot);
        self.reserved_bytes += slot.reserved_bytes();
    }
}

impl Index<SequenceId> for Slots {
    type Output = CacheSlot;

    /// # Panics
    ///
    /// If the sequence has no slot.
    fn index(&self, sequence: SequenceId) -> &CacheSlot {
        &self.live[&sequence]
    }
}
