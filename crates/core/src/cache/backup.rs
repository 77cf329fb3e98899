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

use std::sync::Arc;

use super::paging::Backup;
use super::{CacheCore, Effect};
use motet_protocol::Edit;
use motet_protocol::lease::LeaseCount;
use motet_protocol::pager::OffloadCandidate;
use motet_protocol::{CopyId, SegmentId, SequenceId, TokenId};

impl CacheCore {
    /// Schedules the computed tokens of a live sequence that are in no copy.
    pub(super) fn back_up(&mut self, sequence: SequenceId, computed: usize, generated: &[TokenId]) {
        let (Some(slot), Some(paging)) = (self.slots.get_mut(sequence), &mut self.paging) else {
            return;
        };
        if slot.key().is_private() {
            return;
        }
        paging.back_up_path(slot.end(), &self.trie);
        if let Some((tokens, from)) = slot.take_not_backed_up(computed, generated) {
            let (id, key) = (slot.id(), slot.key().clone());
            paging.back_up(Backup::new(sequence, id, key, tokens, from));
        }
    }

    /// Offers the pager the parts and path nodes that are due, a few at a time.
    pub(super) fn offload_backups(&mut self) {
        if let Some(paging) = &mut self.paging {
            paging.offload_paths(&mut self.trie);
        }
        while let Some(paging) = &mut self.paging
            && let Some(backup) = paging.next_backup()
        {
            self.offload_backup(backup);
        }
    }

    fn offload_backup(&mut self, backup: Backup) {
        let slot = backup.slot_in(&self.slots);
        let Some(slot) = slot.filter(|_| self.copied_bytes(&backup) <= self.free_bytes()) else {
            return self.not_backed_up(&backup);
        };
        let (key, retention) = (slot.key().digest(), slot.rank().retention);
        let segment = self.next_segment();
        let lease = LeaseCount::new(segment).lease();
        let candidate = OffloadCandidate {
            lease: lease.expect("a new segment is not evicted yet"),
            key,
            tokens: Arc::clone(backup.tokens()),
            segment_size: backup.segment_size(),
            retention,
        };
        self.paging_mut().begin_backup(backup, candidate);
    }

    /// The pager has accepted a part. The device copies it if it has memory for the copy.
    pub(super) fn export_backup(
        &mut self,
        segment: SegmentId,
        backup: Backup,
        copy: CopyId,
        effects: &mut Vec<Effect>,
    ) {
        let bytes = self.copied_bytes(&backup);
        let slot = backup.slot_in(&self.slots);
        let Some(slot) = slot.filter(|_| bytes <= self.free_bytes()) else {
            self.not_backed_up(&backup);
            return self.paging_mut().reject_export(copy);
        };
        effects.push(Effect::Edit(Edit::CopyOut {
            slot: slot.id(),
            tokens: backup.range_after(slot.path_tokens()),
            copy,
        }));
        self.paging_mut().export_backup(segment, backup, bytes);
    }

    /// Handles the pager's final answer: the part is in this copy, or in none.
    pub(super) fn backup_ended(&mut self, backup: &Backup, offloaded: Option<CopyId>) {
        if let Some(copy) = offloaded {
            let range = backup.from()..backup.tokens().len();
            self.note_copied(copy, backup.key(), backup.tokens(), range);
        }
        let slot = backup.slot_mut(&mut self.slots);
        match (offloaded, slot) {
            (None, _) => self.not_backed_up(backup),
            (Some(copy), Some(slot)) if backup.has_copy() => slot.add_backup(copy),
            (Some(copy), None) if backup.has_copy() => self.give_up_backups(vec![copy]),
            (Some(_), _) => {}
        }
    }

    /// Discards the backups of a finished sequence. The part published in the trie is
    /// offloaded like all other nodes. Copies that already serve a node stay.
    pub(super) fn give_up_backups(&mut self, copies: Vec<CopyId>) {
        if let Some(paging) = &mut self.paging {
            paging.give_up_copies(copies, &self.trie);
        }
    }

    /// Invalidates backups of tokens that a slot drops, from offset `from` on. Other tokens
    /// may take their place.
    pub(super) fn void_backups(&mut self, sequence: SequenceId, from: usize) {
        let Some(paging) = &mut self.paging else {
            return;
        };
        paging.void_backups(sequence, from);
        if let Some(slot) = self.slots.get_mut(sequence) {
            slot.not_backed_up(from);
        }
    }

    /// Records that the part is in no copy. The next part starts with it.
    fn not_backed_up(&mut self, backup: &Backup) {
        if let Some(slot) = backup.slot_mut(&mut self.slots) {
            slot.not_backed_up(backup.from());
        }
    }

    fn copied_bytes(&self, backup: &Backup) -> usize {
        self.spec.segment_bytes(backup.segment_size())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::time::Duration;

    use super::*;
    use crate::cache::{Message, OpenSlot};
    use crate::config::{CacheConfig, PagerConfig};
    use motet_protocol::pager;
    use motet_protocol::pager::PagerEvent;
    use motet_protocol::{LayerKind, ModelSpec, SegmentSize};

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
