//! A sequence starts: the longest usable prefix, or whom to wait for.

use std::sync::Arc;

use super::trie::NodeKey;
use super::{Begin, CacheCore, CacheError, Effect, RestorePoint, Salt, Slot, Waiting};
use crate::config::SlotChoice;
use crate::device::Edit;
use crate::model::Extent;
use crate::{SequenceId, SlotId, TokenId};

/// How much of a token list a sequence can start from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usable {
    /// The last node to be used in full.
    pub(super) end: Option<NodeKey>,
    /// Below it, a node of which only the beginning is used, and how much.
    pub(super) partial: Option<(NodeKey, usize)>,
    /// Tokens that need not be computed.
    pub(super) tokens: usize,
    /// Tokens that the trie knows: more, where the model cannot resume after them.
    seen: usize,
}

impl CacheCore {
    /// Whether a sequence of these tokens could start with its first `at` cached.
    #[must_use]
    pub fn can_resume(&self, salt: &Salt, tokens: &[TokenId], at: usize) -> bool {
        at <= tokens.len() && self.usable(salt, &tokens[..at]).tokens == at
    }

    /// Whether the newcomer makes sense.
    pub(super) fn check_begin(&self, newcomer: &Begin) -> Result<(), CacheError> {
        let sequence = newcomer.sequence;
        let waits = |w: &Waiting| w.newcomer.sequence == sequence;
        if self.slots.contains_key(&sequence) || self.waiting.iter().any(waits) {
            return Err(CacheError::BegunTwice(sequence));
        }
        if newcomer.tokens.is_empty() {
            return Err(CacheError::NoTokens);
        }
        match newcomer.keep {
            Some(keep) if keep >= newcomer.tokens_max => Err(CacheError::KeepTooLarge {
                keep,
                context_tokens: newcomer.tokens_max,
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Gives the newcomer a slot, or a leader to wait for (if `may_wait`), or word
    /// that there is no room.
    pub(super) fn begin(&mut self, newcomer: Begin, may_wait: bool, effects: &mut Vec<Effect>) {
        // One token is always left to evaluate, so that there are logits.
        let most = (newcomer.tokens.len() - 1).min(newcomer.tokens_max);
        let usable = self.usable(&newcomer.salt, &newcomer.tokens[..most]);
        if may_wait && let Some((leader, at)) = self.leader(&newcomer, most, usable.tokens) {
            effects.push(Effect::Waits {
                sequence: newcomer.sequence,
                tokens: at,
            });
            effects.push(Effect::Checkpoint {
                sequence: leader,
                at,
            });
            self.waiting.push(Waiting {
                newcomer,
                leader,
                at,
            });
            return;
        }
        self.open(newcomer, usable, effects);
    }

    /// The sequence has computed `computed` tokens: seals what others wait for and
    /// begins those who do, and seals what is to be restorable.
    pub(super) fn reached(
        &mut self,
        leader: SequenceId,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(slot) = self.slots.get_mut(&leader) {
            slot.computed = computed;
        }
        let mut ready = self.take_waiting(|w| w.leader == leader && w.at <= computed);
        // Shortest first, so that the leader's tail is sealed from its front.
        ready.sort_by_key(|w| w.at);
        let mut sealed: Vec<(Begin, bool)> = Vec::new();
        for waiting in ready {
            let done = self.seal_for_others(leader, waiting.at, computed, effects);
            sealed.push((waiting.newcomer, done));
        }
        self.seal_restore_points(leader, computed, effects);
        for (newcomer, done) in sealed {
            // What could not be sealed now will not be sealed by waiting for the same
            // sequence again. One that has gone past is not waited for; so of those who
            // came too late, the first computes what all share.
            let may_wait = done || !self.spec.resumes_anywhere();
            self.begin(newcomer, may_wait, effects);
        }
    }

    /// Takes some of those who wait out of their wait.
    pub(super) fn take_waiting(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, others) = all.into_iter().partition(which);
        self.waiting = others;
        taken
    }

    /// How much of `tokens` a sequence could start from now.
    pub(super) fn usable(&self, salt: &Salt, tokens: &[TokenId]) -> Usable {
        let mut usable = Usable {
            end: None,
            partial: None,
            tokens: 0,
            seen: 0,
        };
        let Some(root) = self.trie.root(salt) else {
            return usable;
        };
        let found = self.trie.find(root, tokens);
        usable.seen = found.tokens_with_partial();
        if self.spec.resumes_anywhere() {
            usable.end = found.path.last().copied();
            usable.partial = found.partial;
            usable.tokens = usable.seen;
            return usable;
        }
        let nodes = found.path.iter();
        let mut extents: Vec<Extent> = nodes.map(|node| self.trie.node(*node).extent()).collect();
        if let Some((node, at)) = found.partial {
            extents.push(self.trie.node(node).extent().cut(at).0);
            if self.spec.can_resume(&extents) {
                usable.partial = found.partial;
                usable.tokens = usable.seen;
            }
            extents.pop();
        }
        // Also where the cut can be had, in case there is no room for it.
        while !self.spec.can_resume(&extents) {
            extents.pop();
        }
        if let Some(last) = extents.len().checked_sub(1) {
            usable.end = Some(found.path[last]);
            usable.tokens = usable.tokens.max(self.trie.node(found.path[last]).end());
        }
        usable
    }

    /// The live sequence to wait for, and until it has computed how much: one that
    /// shares enough more of its prompt than is cached. What it has sealed already
    /// does not count: that is in the trie. Nor does what it has gone past, where its
    /// state cannot be had any more.
    fn leader(&self, newcomer: &Begin, most: usize, cached: usize) -> Option<(SequenceId, usize)> {
        let least = cached + self.config.share_tokens_min.max(1);
        if most < least {
            return None;
        }
        let nearest = self.live.nearest(&newcomer.salt, &newcomer.tokens);
        let candidates = nearest.take_while(|(_, shared)| *shared >= least);
        candidates
            .map(|(leader, shared)| {
                let slot = &self.slots[&leader];
                let at = shared.min(most).min(slot.exact_tokens).min(slot.tokens_max);
                (leader, at)
            })
            .find(|(leader, at)| {
                let slot = &self.slots[leader];
                let past = *at <= slot.computed && !self.spec.resumes_anywhere();
                *at >= least && *at > slot.path_tokens && !past
            })
    }

    /// Opens a slot on what is usable, if its tail has room to grow.
    fn open(&mut self, newcomer: Begin, usable: Usable, effects: &mut Vec<Effect>) {
        let root = self.trie.root_or_new(&newcomer.salt);
        let mut end = usable.end.unwrap_or(root);
        self.trie.hold(end);
        if let Some((node, at)) = usable.partial
            && let Some(upper) = self.split(node, at, effects)
        {
            self.trie.hold(upper);
            self.trie.release(end);
            end = upper;
        }
        let mut reserved_bytes = self.reservation(end, newcomer.tokens_max, newcomer.keep);
        let mut fits = self.make_room(reserved_bytes, effects);
        if !fits && self.slots.is_empty() {
            // Alone on the device it must fit: then without what is cached.
            self.trie.hold(root);
            self.trie.release(end);
            end = root;
            reserved_bytes = self.reservation(end, newcomer.tokens_max, newcomer.keep);
            fits = self.make_room(reserved_bytes, effects);
        }
        if !fits {
            self.trie.release(end);
            effects.push(Effect::NoRoom {
                sequence: newcomer.sequence,
            });
            return;
        }
        self.forsake_others(end, &newcomer);
        self.seat(newcomer, end, usable.seen, reserved_bytes, effects);
    }

    /// Makes the slot, on a path that is held already.
    fn seat(
        &mut self,
        newcomer: Begin,
        end: NodeKey,
        seen: usize,
        reserved_bytes: usize,
        effects: &mut Vec<Effect>,
    ) {
        assert!(self.resumes_at(end), "a slot starts where it can resume");
        self.slots_made += 1;
        let id = SlotId(self.slots_made);
        let path_tokens = self.trie.node(end).end();
        self.reserved_bytes += reserved_bytes;
        self.asked_tokens += newcomer.tokens.len() as u64;
        self.hit_tokens += path_tokens as u64;
        // Its last token is computed in any case.
        let asked = &newcomer.tokens[..newcomer.tokens.len() - 1];
        let root = self.trie.root_or_new(&newcomer.salt);
        let (class, ticket) = self.trie.asked(root, end, asked);
        self.trie.use_path(end, class);
        let path = self.trie.path(end);
        effects.push(Effect::Edit(Edit::Open {
            slot: id,
            path: path
                .iter()
                .map(|node| self.trie.node(*node).word().segment())
                .collect(),
        }));
        effects.push(Effect::Begun {
            sequence: newcomer.sequence,
            slot: id,
            cached_tokens: path_tokens,
        });
        let restore_points = self.restore_points(&newcomer, path_tokens, seen);
        effects.extend(restore_points.iter().map(|point| Effect::Checkpoint {
            sequence: newcomer.sequence,
            at: point.at,
        }));
        for node in path {
            if newcomer
                .restore_points
                .contains(&self.trie.node(node).end())
            {
                self.trie.keep_restorable(node);
            }
        }
        self.live
            .insert(&newcomer.salt, &newcomer.tokens, newcomer.sequence);
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
            own_bytes: 0,
            exact_tokens: usize::MAX,
        };
        self.slots.insert(newcomer.sequence, slot);
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
    fn seal_restore_points(
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
