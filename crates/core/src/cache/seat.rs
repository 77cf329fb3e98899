//! A slot is made: its path, its reservation, and where it is to be restorable.

use std::sync::Arc;

use super::begin::Usable;
use super::eviction::{Class, Ticket};
use super::trie::NodeKey;
use super::{Begin, CacheCore, Effect, Miss, RestorePoint, Slot};
use crate::config::SlotChoice;
use crate::protocol::Edit;
use crate::{SequenceId, SlotId, TokenId};

/// Where a slot is made.
struct Place {
    /// The end of its path, which is held already.
    end: NodeKey,
    /// Tokens that the trie knows.
    seen_tokens: usize,
    reserved_bytes: usize,
    /// Why its path is no longer.
    miss: Option<Miss>,
}

impl CacheCore {
    /// Opens a slot on what is usable, if its tail has room to grow. `copied_tokens` are those
    /// of which there are copies that were not brought.
    pub(super) fn open(
        &mut self,
        newcomer: Begin,
        usable: Usable,
        copied_tokens: usize,
        effects: &mut Vec<Effect>,
    ) {
        let root = self.trie.root_or_new(&newcomer.salt);
        let mut end = usable.end.unwrap_or(root);
        self.trie.hold(end);
        if let Some((node, at)) = usable.partial
            && let Some(upper) = self.split(node, at, effects)
        {
            self.trie.move_hold(end, upper);
            end = upper;
        }
        let mut reserved_bytes = self.reservation(end, newcomer.tokens_max, newcomer.keep);
        let mut fits = self.make_room(reserved_bytes, effects);
        if !fits && self.slots.is_empty() {
            // Alone on the device it must fit: then without what is cached.
            self.trie.move_hold(end, root);
            end = root;
            reserved_bytes = self.reservation(end, newcomer.tokens_max, newcomer.keep);
            fits = self.make_room(reserved_bytes, effects);
        }
        if !fits && self.something_leaves() {
            self.trie.release(end);
            self.postpone(newcomer, effects);
            return;
        }
        if !fits {
            self.trie.release(end);
            effects.push(Effect::NoRoom {
                sequence: newcomer.sequence,
            });
            return;
        }
        let miss = self.miss(&newcomer, &usable, self.trie.node(end).end(), copied_tokens);
        self.forsake_others(end, &newcomer);
        let place = Place {
            end,
            seen_tokens: usable.seen,
            reserved_bytes,
            miss,
        };
        self.seat(newcomer, place, effects);
    }

    /// Makes the slot.
    fn seat(&mut self, newcomer: Begin, place: Place, effects: &mut Vec<Effect>) {
        let Place {
            end,
            seen_tokens,
            reserved_bytes,
            miss,
        } = place;
        assert!(self.resumes_at(end), "a slot starts where it can resume");
        self.slots_made += 1;
        self.reserved_bytes += reserved_bytes;
        let id = SlotId(self.slots_made);
        let (sequence, path_tokens) = (newcomer.sequence, self.trie.node(end).end());
        let (class, ticket) = self.note_use(&newcomer, end);
        let restore_points = self.restore_points(&newcomer, path_tokens, seen_tokens);
        effects.push(Effect::Edit(Edit::Open {
            slot: id,
            path: self.trie.segments(end),
            room: newcomer.tokens_max - path_tokens,
        }));
        effects.push(Effect::Begun {
            sequence,
            slot: id,
            cached_tokens: path_tokens,
            miss,
        });
        effects.extend(restore_points.iter().map(|point| Effect::Checkpoint {
            sequence,
            at: point.at,
        }));
        self.live.insert(&newcomer.salt, &newcomer.tokens, sequence);
        let slot = Slot {
            id,
            salt: newcomer.salt,
            tokens: newcomer.tokens,
            tokens_max: newcomer.tokens_max,
            keep: newcomer.keep,
            restore_points,
            priority: newcomer.priority,
            class,
            ticket,
            end,
            path_tokens,
            computed: path_tokens,
            reserved_bytes,
            has_own_segments: false,
            is_retired: false,
            own_bytes: 0,
            exact_tokens: usize::MAX,
            backed_up: path_tokens,
            backups: Vec::new(),
        };
        self.slots.insert(sequence, slot);
    }

    /// Notes that the newcomer uses a path, in the trie, with the policy of eviction,
    /// and in the sums.
    fn note_use(&mut self, newcomer: &Begin, end: NodeKey) -> (Class, Ticket) {
        if newcomer.salt.is_private() {
            return <(Class, Ticket)>::default();
        }
        self.asked_tokens += newcomer.tokens.len() as u64;
        self.hit_tokens += self.trie.node(end).end() as u64;
        // Its last token is computed in any case.
        let asked = &newcomer.tokens[..newcomer.tokens.len() - 1];
        let (class, ticket) = self.trie.asked(&newcomer.salt, end, asked);
        self.trie.use_path(end, class);
        if !newcomer.restore_points.is_empty() {
            for node in self.trie.path(end) {
                let at = self.trie.node(node).end();
                if newcomer.restore_points.contains(&at) {
                    self.trie.keep_restorable(node);
                }
            }
        }
        (class, ticket)
    }

    /// Where the sequence is to be sealed for its own sake: where its caller asks;
    /// and, if the model cannot resume anywhere, in regular intervals, where its
    /// prompt branches off from one that the trie knows, and before its last token.
    fn restore_points(
        &self,
        newcomer: &Begin,
        path_tokens: usize,
        seen: usize,
    ) -> Vec<RestorePoint> {
        let asked = |at: &usize| RestorePoint {
            at: *at,
            asked: true,
        };
        if newcomer.salt.is_private() {
            return Vec::new();
        }
        let mut all: Vec<RestorePoint> = newcomer.restore_points.iter().map(asked).collect();
        if !self.spec.resumes_anywhere() {
            let interval = self.config.restore_interval_tokens.max(1);
            let regular = (1..).map(|n| n * interval);
            let regular = regular.take_while(|at| *at < newcomer.tokens.len());
            let branch = path_tokens + self.config.share_tokens_min <= seen;
            // A caller who knows where its next prompt will differ has said so.
            let last = newcomer.restore_points.is_empty();
            let chosen = regular
                .chain(branch.then_some(seen))
                .chain(last.then_some(newcomer.tokens.len() - 1));
            all.extend(chosen.map(|at| RestorePoint { at, asked: false }));
        }
        // A prompt lies within its first grant; of one that does not, what comes after is
        // sealed when it ends, or when another waits for it.
        let most = newcomer.tokens.len().min(newcomer.tokens_max);
        all.retain(|point| path_tokens < point.at && point.at <= most);
        // Of two at one offset, the one that was asked for.
        all.sort_by_key(|point| (point.at, std::cmp::Reverse(point.asked)));
        all.dedup_by_key(|point| point.at);
        all
    }

    /// With [`SlotChoice::Longest`], a newcomer takes over the conversation that it
    /// continues: what it does not continue is the first to go.
    fn forsake_others(&mut self, end: NodeKey, newcomer: &Begin) {
        let shared = self.trie.node(end).end();
        if self.config.slot_choice == SlotChoice::Longest && shared > 0 {
            let next = newcomer.tokens.get(shared);
            self.trie.forsake(end, next.copied());
        }
    }

    /// Seals the sequence where it wanted to be sealed, as far as it has got.
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
    /// Learns of tokens that were generated after those it knows.
    pub(super) fn extended(&self, generated: &[TokenId]) -> Arc<[TokenId]> {
        match generated {
            [] => Arc::clone(&self.tokens),
            _ => self.tokens.iter().chain(generated).copied().collect(),
        }
    }
}
