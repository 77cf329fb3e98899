//! Creates a slot: its path, its reservation and its restore points.

use std::sync::Arc;

use super::open_slot::Usable;
use super::trie::NodeKey;
use super::{CacheCore, Effect, Miss, OpenSlot, RestorePoint, Slot};
use crate::config::SlotChoice;
use crate::eviction::{Class, SequenceMark};
use crate::protocol::Edit;
use crate::{SequenceId, SlotId, TokenId};

/// The place of a new slot.
struct SlotPlan {
    /// The end of its path, already held.
    end: NodeKey,
    /// Tokens that the trie holds.
    seen_tokens: usize,
    reserved_bytes: usize,
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
        let root = self.trie.root_or_new(&request.salt);
        let mut end = usable.end.unwrap_or(root);
        self.trie.hold(end);
        if let Some((node, at)) = usable.partial
            && let Some(upper) = self.split(node, at, effects)
        {
            self.trie.move_hold(end, upper);
            end = upper;
        }
        let mut reserved_bytes = self.reservation(end, request.tokens_max, request.keep);
        let mut fits = self.evict_to_fit(reserved_bytes, effects);
        if !fits && self.slots.is_empty() {
            // A sequence that is alone on the device must fit, if necessary without the cached
            // prefix.
            self.trie.move_hold(end, root);
            end = root;
            reserved_bytes = self.reservation(end, request.tokens_max, request.keep);
            fits = self.evict_to_fit(reserved_bytes, effects);
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
            reserved_bytes,
            miss,
        };
        self.create_slot(request, slot_plan, effects);
    }

    /// Creates the slot and its effects.
    fn create_slot(&mut self, request: OpenSlot, slot_plan: SlotPlan, effects: &mut Vec<Effect>) {
        let SlotPlan {
            end,
            seen_tokens,
            reserved_bytes,
            miss,
        } = slot_plan;
        assert!(self.resumes_at(end), "a slot starts where it can resume");
        self.slots_made += 1;
        self.reserved_bytes += reserved_bytes;
        let id = SlotId(self.slots_made);
        let (sequence, path_tokens) = (request.sequence, self.trie.node(end).end());
        let (class, sequence_mark) = self.note_use(&request, end);
        let restore_points = self.restore_points(&request, path_tokens, seen_tokens);
        effects.push(Effect::Edit(Edit::Open {
            slot: id,
            path: self.trie.segments(end),
            expected_tokens: request.tokens_max - path_tokens,
        }));
        effects.push(Effect::SlotOpened {
            sequence,
            slot: id,
            cached_tokens: path_tokens,
            miss,
        });
        effects.extend(restore_points.iter().map(|point| Effect::Checkpoint {
            sequence,
            at: point.at,
        }));
        self.in_progress
            .insert(&request.salt, &request.tokens, sequence);
        let slot = Slot {
            id,
            salt: request.salt,
            tokens: request.tokens,
            tokens_max: request.tokens_max,
            keep: request.keep,
            restore_points,
            priority: request.priority,
            class,
            sequence_mark,
            end,
            path_tokens,
            computed: path_tokens,
            reserved_bytes,
            has_own_segments: false,
            is_sealed_in_place: false,
            own_bytes: 0,
            exact_tokens: usize::MAX,
            backed_up: path_tokens,
            backups: Vec::new(),
        };
        self.slots.insert(sequence, slot);
    }

    /// Records in the trie, the eviction policy and the totals that the sequence uses a path.
    fn note_use(&mut self, request: &OpenSlot, end: NodeKey) -> (Class, SequenceMark) {
        if request.salt.is_private() {
            return <(Class, SequenceMark)>::default();
        }
        self.asked_tokens += request.tokens.len() as u64;
        self.hit_tokens += self.trie.node(end).end() as u64;
        // The last token is computed in any case.
        let asked = &request.tokens[..request.tokens.len() - 1];
        let (class, sequence_mark) = self.trie.asked(&request.salt, end, asked);
        self.trie.use_path(end, class);
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

    /// The offsets at which the sequence is sealed without another sequence waiting. The
    /// caller may name some. If the model cannot resume anywhere, there are more: at regular
    /// intervals, where the prompt branches off from one in the trie, and before its last
    /// token.
    fn restore_points(
        &self,
        request: &OpenSlot,
        path_tokens: usize,
        seen: usize,
    ) -> Vec<RestorePoint> {
        let asked = |at: &usize| RestorePoint {
            at: *at,
            asked: true,
        };
        if request.salt.is_private() {
            return Vec::new();
        }
        let mut all: Vec<RestorePoint> = request.restore_points.iter().map(asked).collect();
        if !self.spec.resumes_anywhere() {
            let interval = self.config.restore_interval_tokens.max(1);
            let regular = (1..).map(|n| n * interval);
            let regular = regular.take_while(|at| *at < request.tokens.len());
            let branch = path_tokens + self.config.share_tokens_min <= seen;
            // A caller that named restore points knows where its next prompt will differ.
            let last = request.restore_points.is_empty();
            let chosen = regular
                .chain(branch.then_some(seen))
                .chain(last.then_some(request.tokens.len() - 1));
            all.extend(chosen.map(|at| RestorePoint { at, asked: false }));
        }
        // A prompt usually lies within its first grant. Otherwise the tokens past the grant
        // are sealed when the sequence ends, or when another one waits for them.
        let most = request.tokens.len().min(request.tokens_max);
        all.retain(|point| path_tokens < point.at && point.at <= most);
        // If two have the same offset, the one that the caller asked for stays.
        all.sort_by_key(|point| (point.at, std::cmp::Reverse(point.asked)));
        all.dedup_by_key(|point| point.at);
        all
    }

    /// With [`SlotChoice::Longest`], a new sequence takes over the conversation that it
    /// continues. The part that it does not continue becomes the first to be evicted.
    fn demote_others(&mut self, end: NodeKey, request: &OpenSlot) {
        let shared = self.trie.node(end).end();
        if self.config.slot_choice == SlotChoice::Longest && shared > 0 {
            let next = request.tokens.get(shared);
            self.trie.demote(end, next.copied());
        }
    }

    /// Seals the sequence at the restore points that it has reached.
    pub(super) fn seal_restore_points(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.get_mut(&sequence) else {
            return;
        };
        let (due, later) = std::mem::take(&mut slot.restore_points)
            .into_iter()
            .partition(|point| point.at <= computed);
        slot.restore_points = later;
        let due: Vec<RestorePoint> = due;
        for point in due {
            self.seal_for_others(sequence, point.at, computed, effects);
            let Some(slot) = self.slots.get(&sequence) else {
                return;
            };
            if point.asked && slot.path_tokens == point.at {
                self.trie.keep_restorable(slot.end);
            }
        }
    }
}

impl Slot {
    /// The tokens that the slot knows, followed by `generated`.
    pub(super) fn extended(&self, generated: &[TokenId]) -> Arc<[TokenId]> {
        match generated {
            [] => Arc::clone(&self.tokens),
            _ => self.tokens.iter().chain(generated).copied().collect(),
        }
    }
}
