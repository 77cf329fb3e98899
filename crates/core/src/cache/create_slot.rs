//! Creates a slot: its path and its reservation.

use std::sync::Arc;

use super::open_slot::Usable;
use super::restore_policy::PointKind;
use super::slots::{Grant, RestorePoints, SlotStart};
use super::trie::NodeKey;
use super::{CacheCore, Effect, Miss, OpenSlot};
use crate::config::SlotChoice;
use crate::eviction::{Class, SequenceMark};
use motet_protocol::Edit;
use motet_protocol::SequenceId;
use motet_protocol::cache::CONTINUATION_TOKENS_MAX;

/// The place of a new slot.
struct SlotPlan {
    /// The end of its path, already held.
    end: NodeKey,
    /// Tokens that the trie holds.
    seen_tokens: usize,
    /// Its grant, with the reservation that fits.
    grant: Grant,
    /// Why the path is not longer.
    miss: Option<Miss>,
}

impl CacheCore {
    /// Opens a slot on the usable prefix, if the tail's reservation fits. `copied_tokens` are
    /// tokens in copies that were not loaded.
    pub(super) fn try_open(
        &mut self,
        request: OpenSlot,
        usable: Usable,
        copied_tokens: usize,
        effects: &mut Vec<Effect>,
    ) {
        let root = self.trie.root_or_new(&request.key.salt);
        let mut end = usable.end.unwrap_or(root);
        self.trie.hold(end);
        if let Some((node, at)) = usable.partial
            && let Some(upper) = self.split(node, at, effects)
        {
            self.trie.move_hold(end, upper);
            end = upper;
        }
        let mut grant = Grant::new(request.tokens_max, request.keep);
        let mut fits = self.reserve_for(&mut grant, end, effects);
        if !fits && self.slots.is_empty() {
            // A sequence that is alone on the device must fit, if necessary without the cached
            // prefix.
            self.trie.move_hold(end, root);
            end = root;
            fits = self.reserve_for(&mut grant, end, effects);
        }
        if !fits && self.is_memory_leaving() {
            self.trie.release(end);
            self.defer(request, effects);
            return;
        }
        if !fits {
            self.trie.release(end);
            effects.push(Effect::OutOfMemory {
                sequence: request.sequence,
            });
            return;
        }
        let miss = self.miss(&request, &usable, self.trie.node(end).end(), copied_tokens);
        self.demote_others(end, &request);
        let slot_plan = SlotPlan {
            end,
            seen_tokens: usable.seen,
            grant,
            miss,
        };
        self.create_slot(request, slot_plan, effects);
    }

    /// Evicts until the tail of a new slot fits whose path ends at `end`.
    fn reserve_for(&mut self, grant: &mut Grant, end: NodeKey, effects: &mut Vec<Effect>) -> bool {
        grant.reserve(end, &self.trie, &self.spec);
        self.evict_to_fit(grant.reserved_bytes(), effects)
    }

    /// Creates the slot and its effects.
    fn create_slot(&mut self, request: OpenSlot, slot_plan: SlotPlan, effects: &mut Vec<Effect>) {
        let SlotPlan {
            end,
            seen_tokens,
            grant,
            miss,
        } = slot_plan;
        assert!(self.resumes_at(end), "a slot starts where it can resume");
        let (sequence, path_tokens) = (request.sequence, self.trie.node(end).end());
        let expected_tokens = request.tokens_max - path_tokens;
        let (class, sequence_mark) = self.note_use(&request, end);
        self.give_up_superseded(end, &request, effects);
        if !request.key.is_private() {
            if self.restore_policy.is_some() {
                self.trie.note_resume(end);
            }
            self.restores.count_prompt(path_tokens, seen_tokens);
        }
        let continuation = if seen_tokens + 1 >= request.tokens.len() {
            let rest = &request.tokens[path_tokens..];
            self.trie
                .continuation(end, &request.key, rest, CONTINUATION_TOKENS_MAX)
        } else {
            Arc::default()
        };
        let policy = self.restore_policy.as_ref();
        let restore_points = RestorePoints::of(&request, path_tokens, seen_tokens, policy);
        let slot = self.slots.open(SlotStart {
            request,
            end,
            path_tokens,
            grant,
            restore_points,
            class,
            sequence_mark,
        });
        effects.push(Effect::Edit(Edit::Open {
            slot: slot.id(),
            path: self.trie.segments(end),
            expected_tokens,
        }));
        effects.push(Effect::SlotOpened {
            sequence,
            slot: slot.id(),
            cached_tokens: path_tokens,
            miss,
            continuation,
        });
        effects.extend(
            slot.restore_points()
                .iter()
                .map(|point| Effect::Checkpoint {
                    sequence,
                    at: point.at,
                    until: point.until,
                }),
        );
    }

    /// Records in the trie, the eviction policy and the totals that the sequence uses a path.
    fn note_use(&mut self, request: &OpenSlot, end: NodeKey) -> (Class, SequenceMark) {
        let cached_tokens = self.trie.node(end).end();
        self.prefix_hits
            .add(&request.key.salt, request.tokens.len(), cached_tokens);
        if request.key.is_private() {
            return <(Class, SequenceMark)>::default();
        }
        // The last token is computed in any case.
        let asked = &request.tokens[..request.tokens.len() - 1];
        let (class, sequence_mark) = self.trie.asked(&request.key, end, asked);
        self.trie.use_path(end, class);
        self.share_path(end);
        if !request.restore_points.is_empty() {
            for node in self.trie.path(end) {
                let at = self.trie.node(node).end();
                if request.restore_points.contains(&at) {
                    self.trie.keep_restorable(node);
                }
            }
        }
        (class, sequence_mark)
    }

    /// With [`SlotChoice::Longest`], a new sequence takes over the conversation that it
    /// continues. The part that it does not continue becomes the first to be evicted.
    fn demote_others(&mut self, end: NodeKey, request: &OpenSlot) {
        let shared = self.trie.node(end).end();
        if self.config.slot_choice == SlotChoice::Longest && shared > 0 {
            let next = request.tokens.get(shared);
            self.trie.demote(end, &request.key, next.copied());
        }
    }

    /// Seals the sequence at the restore points that it has reached.
    pub(super) fn seal_restore_points(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) {
        for point in self.slots.take_reached(sequence, computed) {
            let at = computed.min(point.until);
            if self.seal_for_others(sequence, at, computed, effects) {
                self.restores.count_taken();
            }
            let Some(slot) = self.slots.get(sequence) else {
                return;
            };
            if slot.path_tokens() == at {
                match point.kind {
                    PointKind::Named => self.trie.keep_restorable(slot.end()),
                    PointKind::TurnEnd => self.trie.note_turn_end(slot.end()),
                    PointKind::Branch | PointKind::Interval => {}
                }
            }
        }
    }
}
