//! Copies of live sequences, in case the device is lost.
//!
//! A lost device loses all state that it held. State in a copy is loaded back, and only the
//! rest is recomputed. Offloading for lack of memory does not suffice, as it never copies live
//! tails. Their tokens are therefore copied as they are computed, one part at a time. Each
//! part is offered to the pager as a segment that is not in the trie. The sequence continues
//! meanwhile; its tail stays in one piece, which is fastest to decode on.
//!
//! When a sequence ends, its backups are discarded. Its nodes in the trie are offloaded ahead
//! of need like all others.
//!
//! A backup takes device memory until it is in host memory. It is made only if memory is free,
//! and evicts nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::trie::{NodeKey, OffloadState};
use super::{CacheCore, Effect};
use crate::lease::LeaseCount;
use crate::protocol::pager::{self, OffloadCandidate};
use crate::protocol::{Edit, SegmentSize};
use crate::{CopyId, SegmentId, SequenceId, SlotId, TokenId};

/// Maximum number of parts being copied at once. It is small, since each takes device memory.
const BACKUPS_MAX: usize = 4;

/// Parts of live tails on their way to host memory.
#[derive(Debug, Default)]
pub(super) struct Backups {
    /// Parts to be offered, in this order; at most one of each slot.
    due: VecDeque<Backup>,
    /// Nodes on the paths of live slots that have no copy.
    paths: VecDeque<NodeKey>,
    /// Parts offered and not answered for, by the segment id that stands for each.
    in_flight: BTreeMap<SegmentId, Backup>,
}

/// A part of a live tail.
#[derive(Debug)]
struct Backup {
    sequence: SequenceId,
    slot: SlotId,
    /// The sequence's tokens up to the end of the part.
    tokens: Arc<[TokenId]>,
    /// The offset at which the part starts.
    from: usize,
    /// Device bytes of its copy; 0 until the copy is made.
    bytes: usize,
    /// Whether the slot no longer holds these tokens.
    is_void: bool,
}

impl Backups {
    /// Device bytes of parts that were copied there and are not in host memory yet.
    pub(super) fn bytes(&self) -> usize {
        self.in_flight.values().map(|backup| backup.bytes).sum()
    }

    /// The parts of a sequence's tail.
    fn of(&mut self, sequence: SequenceId) -> impl Iterator<Item = &mut Backup> {
        let all = self.due.iter_mut().chain(self.in_flight.values_mut());
        all.filter(move |backup| backup.sequence == sequence)
    }

    pub(super) fn is_under_way(&self, segment: SegmentId) -> bool {
        self.in_flight.contains_key(&segment)
    }
}

impl Backup {
    fn len(&self) -> usize {
        self.tokens.len() - self.from
    }
}

impl CacheCore {
    /// Schedules the computed tokens of a live sequence that are in no copy.
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
            let is_offloading = self.trie.node(node).offload_state() != OffloadState::NotOffloaded;
            if !is_offloading && !backups.paths.contains(&node) {
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

    /// Offers the pager the parts and path nodes that are due, a few at a time.
    pub(super) fn offload_backups(&mut self) {
        while !self.is_offload_held_back()
            && let Some(paging) = &mut self.paging
            && let Some(node) = paging.backups.paths.pop_front()
        {
            if self.trie.contains(node)
                && self.trie.node(node).offload_state() == OffloadState::NotOffloaded
            {
                self.offload(node);
            }
        }
        while !self.is_offload_held_back()
            && let Some(paging) = &mut self.paging
            && paging.backups.in_flight.len() < BACKUPS_MAX
            && let Some(backup) = paging.backups.due.pop_front()
        {
            self.offload_backup(backup);
        }
    }

    fn offload_backup(&mut self, backup: Backup) {
        if !self.is_there(&backup) || self.copied_bytes(&backup) > self.free_bytes() {
            return self.not_backed_up(&backup);
        }
        let segment = self.next_segment();
        let lease = LeaseCount::new(segment).lease();
        let slot = &self.slots[&backup.sequence];
        let candidate = OffloadCandidate {
            lease: lease.expect("a new segment is not evicted yet"),
            salt: slot.salt.digest(),
            tokens: Arc::clone(&backup.tokens),
            segment_size: SegmentSize::whole(backup.len()),
            priority: slot.priority,
        };
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.backups.in_flight.insert(segment, backup);
        self.send_to_pager(pager::Message::OffloadCandidate(candidate));
    }

    /// The pager has accepted a part. The device copies it if it has memory for the copy.
    pub(super) fn export_backup(
        &mut self,
        segment: SegmentId,
        copy: CopyId,
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let mut backup = paging.backups.in_flight.remove(&segment);
        let backup = backup.as_mut().expect("the backup is in flight");
        let bytes = self.copied_bytes(backup);
        if !self.is_there(backup) || bytes > self.free_bytes() {
            self.not_backed_up(backup);
            return self.send_to_pager(pager::Message::CancelExport { copy });
        }
        let path_tokens = self.slots[&backup.sequence].path_tokens;
        effects.push(Effect::Edit(Edit::CopyOut {
            slot: backup.slot,
            tokens: backup.from - path_tokens..backup.tokens.len() - path_tokens,
            copy,
        }));
        let exporting = Backup {
            tokens: Arc::clone(&backup.tokens),
            bytes,
            ..*backup
        };
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.backups.in_flight.insert(segment, exporting);
    }

    /// Handles the pager's final answer: the part is in this copy, or in none.
    pub(super) fn backup_ended(&mut self, segment: SegmentId, offloaded: Option<CopyId>) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let backup = paging.backups.in_flight.remove(&segment);
        let backup = backup.expect("the backup is in flight");
        // A copy that existed before was not made for this part.
        let was_made = backup.bytes > 0;
        let slot = self.slots.get_mut(&backup.sequence);
        let slot = slot.filter(|slot| slot.id == backup.slot);
        match (offloaded, slot) {
            (None, _) => self.not_backed_up(&backup),
            (Some(copy), Some(slot)) if was_made => slot.backups.push(copy),
            (Some(copy), None) if was_made => self.give_up_backups(vec![copy]),
            (Some(_), _) => {}
        }
    }

    /// Discards the backups of a finished sequence. The part published in the trie is
    /// offloaded like all other nodes. Copies that already serve a node stay.
    pub(super) fn give_up_backups(&mut self, mut copies: Vec<CopyId>) {
        let Some(paging) = &self.paging else {
            return;
        };
        copies.retain(|copy| {
            let nodes = paging.nodes_of.get(copy);
            !nodes.is_some_and(|nodes| nodes.iter().any(|node| self.trie.contains(*node)))
        });
        if !copies.is_empty() {
            self.send_to_pager(pager::Message::GiveUp { copies });
        }
    }

    /// Invalidates backups of tokens that a slot drops, from offset `from` on. Other tokens
    /// may take their place.
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

    /// Passes the parts of a slot's tail on to the sequence that takes over the slot.
    pub(super) fn rename_backups(&mut self, from: SequenceId, to: SequenceId) {
        if let Some(paging) = &mut self.paging {
            paging
                .backups
                .of(from)
                .for_each(|backup| backup.sequence = to);
        }
    }

    /// Whether the part still belongs to the tail of its slot.
    fn is_there(&self, backup: &Backup) -> bool {
        let slot = self.slots.get(&backup.sequence);
        let is_its = slot.filter(|slot| slot.id == backup.slot && !slot.is_sealed_in_place);
        !backup.is_void && is_its.is_some_and(|slot| slot.path_tokens <= backup.from)
    }

    /// Records that the part is in no copy. The next part starts with it.
    fn not_backed_up(&mut self, backup: &Backup) {
        let slot = self.slots.get_mut(&backup.sequence);
        if let Some(slot) = slot.filter(|slot| slot.id == backup.slot) {
            slot.backed_up = slot.backed_up.min(backup.from);
        }
    }

    fn copied_bytes(&self, backup: &Backup) -> usize {
        self.spec.segment_bytes(SegmentSize::whole(backup.len()))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::time::Duration;

    use super::*;
    use crate::cache::{Message, OpenSlot};
    use crate::config::{CacheConfig, PagerConfig};
    use crate::protocol::pager::PagerEvent;
    use crate::protocol::{LayerKind, ModelSpec};

    const LIVE: SequenceId = SequenceId(1);

    fn spec() -> ModelSpec {
        ModelSpec {
            tail_block_tokens: 4,
            ..ModelSpec::with_layer_kinds(&[LayerKind::Full])
        }
    }

    /// A cache with memory for `tokens` tokens. It has a live sequence of 8 tokens with a
    /// grant of 24.
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
        send(
            &mut core,
            Message::OpenSlot(OpenSlot::new(LIVE, [1; 8], 16)),
        );
        assert!(core.take_outbox().is_empty());
        core
    }

    fn send(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message is valid")
    }

    fn back_up(core: &mut CacheCore, computed: usize) {
        let message = Message::BackUp {
            sequence: LIVE,
            computed,
            generated: vec![2; computed.saturating_sub(7)],
        };
        assert_eq!(send(core, message), [], "a backup has no effects at first");
    }

    /// The segment that the pager is offered, and the range of the sequence's tokens in it.
    fn offload_candidate(core: &mut CacheCore) -> Option<(SegmentId, Range<usize>)> {
        let outbox = core.take_outbox();
        let [pager::Message::OffloadCandidate(candidate)] = &outbox[..] else {
            assert!(outbox.is_empty(), "{outbox:?}");
            return None;
        };
        let end = candidate.tokens.len();
        assert!(candidate.tokens.iter().take(8).all(|token| *token == 1));
        assert!(candidate.tokens.iter().skip(8).all(|token| *token == 2));
        Some((
            candidate.lease.segment(),
            end - candidate.segment_size.tokens..end,
        ))
    }

    fn take(core: &mut CacheCore, segment: SegmentId) -> Vec<Effect> {
        let copy = CopyId(9);
        send(core, Message::Paged(PagerEvent::Export { segment, copy }))
    }

    fn copy_out(effects: &[Effect]) -> Range<usize> {
        match effects {
            [Effect::Edit(Edit::CopyOut { tokens, .. })] => tokens.clone(),
            other => panic!("expected one copy of a tail, found {other:?}"),
        }
    }

    #[test]
    fn each_token_is_copied_once() {
        let mut core = cache(96);
        back_up(&mut core, 10);
        let (segment, tokens) = offload_candidate(&mut core).expect("a part is offered");
        assert_eq!(tokens, 0..10);
        let free = core.free_bytes();
        assert_eq!(copy_out(&take(&mut core, segment)), 0..10);
        let bytes = spec().segment_bytes(SegmentSize::whole(10));
        assert_eq!(free - core.free_bytes(), bytes, "the copy counts as used");
        // Tokens computed meanwhile are offered at once.
        back_up(&mut core, 14);
        let (next, tokens) = offload_candidate(&mut core).expect("a part is offered");
        assert_eq!(tokens, 10..14);
        let offloaded = |segment| {
            Message::Paged(PagerEvent::Offloaded {
                segment,
                copy: CopyId(9),
            })
        };
        send(&mut core, offloaded(segment));
        assert_eq!(core.free_bytes(), free, "it is in host memory");
        // A rejected part is offered again, together with the tokens computed since.
        send(
            &mut core,
            Message::Paged(PagerEvent::Rejected { segment: next }),
        );
        back_up(&mut core, 20);
        let (_, tokens) = offload_candidate(&mut core).expect("a part is offered");
        assert_eq!(tokens, 10..20);
    }

    #[test]
    fn copies_of_a_finished_sequence_are_discarded() {
        let copy = CopyId(9);
        let close = || Message::Close {
            sequence: LIVE,
            computed: 10,
            generated: vec![2; 2],
        };
        let mut core = cache(96);
        back_up(&mut core, 10);
        let (segment, _) = offload_candidate(&mut core).expect("a part is offered");
        take(&mut core, segment);
        send(
            &mut core,
            Message::Paged(PagerEvent::Offloaded { segment, copy }),
        );
        send(&mut core, close());
        let outbox = core.take_outbox();
        let [pager::Message::GiveUp { copies }] = &outbox[..] else {
            panic!("expected its copy to be given up, found {outbox:?}");
        };
        assert_eq!(copies[..], [copy]);
        // The sequence ended before the copy was made; then a case in which an existing copy
        // served.
        for (is_made, given_up) in [(true, 1), (false, 0)] {
            let mut core = cache(96);
            back_up(&mut core, 10);
            let (segment, _) = offload_candidate(&mut core).expect("a part is offered");
            if is_made {
                take(&mut core, segment);
            }
            send(&mut core, close());
            send(
                &mut core,
                Message::Paged(PagerEvent::Offloaded { segment, copy }),
            );
            assert_eq!(core.take_outbox().len(), given_up);
        }
        // A lost device does not end the sequence, which will need its copies.
        let mut core = cache(96);
        back_up(&mut core, 10);
        let (segment, _) = offload_candidate(&mut core).expect("a part is offered");
        take(&mut core, segment);
        send(
            &mut core,
            Message::Paged(PagerEvent::Offloaded { segment, copy }),
        );
        send(&mut core, Message::Reset);
        let outbox = core.take_outbox();
        assert!(matches!(outbox[..], [pager::Message::Reset]), "{outbox:?}");
    }

    #[test]
    fn backup_evicts_nothing() {
        // The slot takes 24 of 32 tokens.
        let mut core = cache(32);
        back_up(&mut core, 7);
        assert!(offload_candidate(&mut core).is_some());
        let mut core = cache(32);
        back_up(&mut core, 12);
        assert_eq!(offload_candidate(&mut core), None);
        assert_eq!(core.stats().evicted_segments, 0);
        // The memory is no longer free when the pager answers.
        let mut core = cache(32);
        back_up(&mut core, 7);
        let (segment, _) = offload_candidate(&mut core).expect("a part is offered");
        let other = OpenSlot::new(SequenceId(2), [5; 3], 1);
        send(&mut core, Message::OpenSlot(other));
        assert_eq!(take(&mut core, segment), []);
        let expected = [pager::Message::CancelExport { copy: CopyId(9) }];
        assert_eq!(format!("{:?}", core.take_outbox()), format!("{expected:?}"));
    }

    #[test]
    fn removed_tokens_are_not_backed_up() {
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
            let (segment, _) = offload_candidate(&mut core).expect("a part is offered");
            send(&mut core, message());
            core.take_outbox();
            assert_eq!(take(&mut core, segment), [], "{:?}", message());
            let outbox = core.take_outbox();
            let [pager::Message::CancelExport { .. }] = outbox[..] else {
                panic!("expected the export to be cancelled, found {outbox:?}");
            };
        }
        // Other tokens take the place of the removed ones.
        let mut core = cache(96);
        back_up(&mut core, 10);
        let (segment, _) = offload_candidate(&mut core).expect("a part is offered");
        let removed = Message::Remove {
            sequence: LIVE,
            computed: 10,
            generated: vec![2; 2],
            removed: 8..10,
        };
        send(&mut core, removed);
        take(&mut core, segment);
        core.take_outbox();
        back_up(&mut core, 12);
        let (segment, tokens) = offload_candidate(&mut core).expect("a part is offered");
        assert_eq!(tokens, 0..12);
        assert_eq!(copy_out(&take(&mut core, segment)), 0..12);
    }

    #[test]
    fn shared_segment_without_copy_is_offloaded_before_the_tail() {
        let mut core = cache(96);
        let share = Message::Share {
            sequence: LIVE,
            computed: 9,
            generated: vec![2; 2],
            at: 8,
        };
        send(&mut core, share);
        back_up(&mut core, 12);
        let outbox = core.take_outbox();
        let [
            pager::Message::OffloadCandidate(shared),
            pager::Message::OffloadCandidate(own),
        ] = &outbox[..]
        else {
            panic!("expected two candidates, found {outbox:?}");
        };
        assert_eq!((shared.tokens.len(), shared.segment_size.tokens), (8, 8));
        assert_eq!((own.tokens.len(), own.segment_size.tokens), (12, 4));
        assert_eq!(copy_out(&take(&mut core, own.lease.segment())), 0..4);
    }
}
