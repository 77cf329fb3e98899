//! The cache: which tokens are cached where, and which sequences may use them.
//!
//! [`CacheCore`] is a plain state machine. It owns the prefix [`trie`] and the slots of all
//! live sequences, and deals in ids, token ranges and byte counts. It answers each [`Message`]
//! with [`Effect`]s: events for the scheduler, and edits that the device carries out, in
//! order, before its next step. A message that cannot be met returns a [`CacheError`] and
//! changes nothing.
//!
//! | file | contents |
//! |---|---|
//! | `open_slot.rs` | a sequence starts: the longest usable prefix, or a leader to wait for; probes of a prefix |
//! | `create_slot.rs` | creates a slot: path and reservation |
//! | `publish.rs` | seals tails of slots that continue: for a waiting sequence, for a fork, at restore points |
//! | `seal_in_place.rs` | seals the tail of a slot that closes |
//! | `rewind.rs` | passes a slot on to another sequence |
//! | `extend_grant.rs` | grants a slot more tokens than it started with |
//! | `restore_policy.rs` | where state is taken that keys and values cannot replace, and how long it is kept: pure functions |
//! | `superseded.rs` | gives up state that a later turn has superseded |
//! | `remove_tokens.rs` | removes tokens from a slot: truncation and shift |
//! | `merge.rs` | merges small nodes |
//! | `live_blocks.rs` | followers of blocks, and the blocks of live prompts |
//! | `copied_blocks.rs` | the blocks in copies, for followers |
//! | `lost_segments.rs` | segments that the device lost because edits failed |
//! | `prefix_mark.rs` | marks of prefixes that were evicted |
//! | `miss.rs` | why a sequence reused less of its prompt than it might have |
//! | `budget.rs` | the byte budget: eviction, and what it does to a node |
//! | `offload.rs`, `load.rs` | offload ahead of need; loads for a sequence that starts |
//! | `pager_events.rs` | the pager's answers, its loss, and what waits for the memory that they release |
//! | `backup.rs` | copies of live sequences, in case the device is lost |
//! | [`shift`] | how many tokens a full context discards |
//! | `error.rs` | messages that the cache cannot carry out |
//! | `integrity.rs` | the invariants |
//! | `tree_view.rs`, `snapshot.rs`, `offloaded_copies.rs` | the trie as data: all of one salt; the most important nodes, in bounded time; copies below them |
//!
//! These files hold what needs several components at once. The components have private state
//! and check their own invariants:
//!
//! | component | contents |
//! |---|---|
//! | [`trie`] | the compressed prefix trie |
//! | `slots/` | the slots of live sequences, with their grants, reservations and prompts |
//! | `waiting.rs` | the requests that wait for a leader |
//! | `pins.rs` | pins, and how one is made |
//! | `paging/` | the exchange with the pager: offloads, loads, backups, deferred requests |
//! | `evictions.rs`, `prefix_hits.rs`, `restores.rs` | totals, and the starts of evicted nodes |
//!
//! **Sharing.** A sequence's state stays in its private tail, where decoding is fastest, until
//! another sequence needs it. A sequence may share more with the prompt of a live sequence
//! (its *leader*) than the trie holds. It then waits until the leader has computed that much;
//! that part of the leader's tail is sealed and serves both. Thus equal prompts are computed
//! once, and a prompt that no other sequence shares is never copied. For models that cannot
//! resume after any token, tails are also sealed at restore points.
//!
//! **Memory.** A slot reserves the bytes that its tail may grow to with the tokens granted so
//! far. A sequence therefore never runs out of memory within its grant. Opening a slot or
//! extending a grant may evict nodes that are not held, in the order of the
//! [policy](crate::eviction). If that is not enough, a new sequence waits for another one to end, and
//! a slot keeps its old grant.

mod backup;
mod budget;
mod copied_blocks;
mod create_slot;
mod error;
mod evictions;
mod extend_grant;
mod integrity;
mod live_blocks;
mod load;
mod lost_segments;
mod merge;
mod miss;
mod offload;
mod offloaded_copies;
mod open_slot;
mod pager_events;
mod paging;
mod pins;
mod prefix_hits;
mod prefix_mark;
mod publish;
mod remove_tokens;
mod restore_policy;
mod restores;
mod rewind;
mod seal_in_place;
pub mod shift;
mod slots;
mod snapshot;
mod superseded;
mod tree_view;
pub mod trie;
mod waiting;

use std::time::Duration;

use crate::config::CacheConfig;
use copied_blocks::CopiedBlocks;
use evictions::Evictions;
use merge::MergeCandidates;
use motet_protocol::SequenceId;
use motet_protocol::{Edit, ModelSpec};
use open_slot::WaitPolicy;
use paging::Paging;
use pins::Pins;
use prefix_hits::PrefixHits;
use restore_policy::RestorePolicy;
use restores::Restores;
use slots::{CacheSlot, Slots};
use trie::Trie;
use waiting::WaitingRequests;

pub use error::CacheError;
pub use motet_protocol::cache::{
    Effect, Flush, Message, OpenSlot, PROBES_MAX, Pin, ProbePrefix, Rewind,
};
pub use motet_protocol::{Miss, MissReason, PrefixKey, Salt, SaltDigest};
pub use restores::RestoreStats;
pub use tree_view::{NodeView, TreeView};
pub use trie::{BlockEvent, BlockHash, BlockTier};

/// Totals of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Bytes of sealed segments.
    pub sealed_bytes: usize,
    /// Part of `sealed_bytes` that live sequences and pins hold.
    pub protected_bytes: usize,
    /// Bytes that live tails may grow to.
    pub reserved_bytes: usize,
    /// Tokens in the trie.
    pub cached_tokens: usize,
    /// Segments in the trie.
    pub segments: usize,
    /// Segments evicted, cleared or lost so far.
    pub evicted_segments: u64,
    /// Tokens of those segments.
    pub evicted_tokens: u64,
    /// Prompt tokens of all sequences that have opened a slot so far, private salts excluded.
    pub asked_tokens: u64,
    /// Part of `asked_tokens` whose state was in the cache.
    pub hit_tokens: u64,
    /// Pins.
    pub pins: usize,
    /// Restore points; `None` if the model can resume after any token.
    pub restore: Option<RestoreStats>,
}

/// The state machine of the cache. See the module's documentation.
#[derive(Debug)]
pub struct CacheCore {
    spec: ModelSpec,
    config: CacheConfig,
    trie: Trie,
    slots: Slots,
    waiting: WaitingRequests,
    pins: Pins,
    mergeable: MergeCandidates,
    /// The exchange with the pager, if there is one.
    paging: Option<Paging>,
    copied_blocks: CopiedBlocks,
    evictions: Evictions,
    prefix_hits: PrefixHits,
    /// `None` if the model can resume after any token.
    restore_policy: Option<RestorePolicy>,
    restores: Restores,
    /// Effects of a message that then failed. The next call of `handle` returns them.
    pending_effects: Vec<Effect>,
    segments_made: u64,
}

impl CacheCore {
    /// Returns an empty cache for a model of this shape.
    #[must_use]
    pub fn new(spec: ModelSpec, mut config: CacheConfig) -> Self {
        if config.device_bytes_max == 0 {
            config.device_bytes_max = CacheConfig::DEVICE_BYTES;
        }
        let mut trie = Trie::new(config.eviction.policy());
        trie.count_snapshots(&spec);
        Self {
            restore_policy: RestorePolicy::new(&spec, &config),
            restores: Restores::default(),
            trie,
            spec,
            config,
            slots: Slots::default(),
            waiting: WaitingRequests::default(),
            pins: Pins::default(),
            mergeable: MergeCandidates::default(),
            paging: None,
            copied_blocks: CopiedBlocks::default(),
            evictions: Evictions::default(),
            prefix_hits: PrefixHits::default(),
            pending_effects: Vec::new(),
            segments_made: 0,
        }
    }

    /// Handles one message and returns the effects, in order. `now` is the time since a fixed
    /// moment; it never goes back.
    ///
    /// # Errors
    ///
    /// [`CacheError`] when the message makes no sense or cannot be met. The cache is then
    /// unchanged.
    pub fn handle(&mut self, now: Duration, message: Message) -> Result<Vec<Effect>, CacheError> {
        let mut effects = std::mem::take(&mut self.pending_effects);
        self.pins.expire(now, &mut self.trie);
        let concerned = message.concerns();
        let done = self.dispatch(now, message, &mut effects);
        self.offload_cold();
        self.offload_backups();
        match done {
            Ok(()) => {
                self.hold_live_blocks(concerned, &mut effects);
                Ok(effects)
            }
            Err(error) => {
                self.pending_effects = effects;
                Err(error)
            }
        }
    }

    fn dispatch(
        &mut self,
        now: Duration,
        message: Message,
        effects: &mut Vec<Effect>,
    ) -> Result<(), CacheError> {
        match message {
            Message::OpenSlot(open_slot) => {
                self.check_open_slot(&open_slot)?;
                self.open_slot(open_slot, WaitPolicy::ALL, effects);
            }
            Message::ExtendGrant {
                sequence,
                tokens_max,
            } => self.extend_grant(sequence, tokens_max, effects),
            Message::ProbePrefix { sequences } => self.probe(&sequences, effects),
            Message::Reached { sequence, computed } => {
                self.reached(sequence, computed, effects);
            }
            Message::Computed { sequence, computed } => self.slots.set_computed(sequence, computed),
            // Such a message crossed with the event that the slot is lost.
            Message::Share { sequence, .. } | Message::Remove { sequence, .. }
                if self.slots.is_lost(sequence) => {}
            Message::Share {
                sequence,
                computed,
                generated,
                at,
            } => self.share(sequence, computed, &generated, at, effects)?,
            Message::Rewind(rewind) => self.rewind(rewind, effects),
            Message::BackUp {
                sequence,
                computed,
                generated,
            } => self.back_up(sequence, computed, &generated),
            Message::Remove {
                sequence,
                computed,
                generated,
                removed,
            } => self.remove(sequence, computed, &generated, removed, effects)?,
            Message::Close {
                sequence,
                computed,
                generated,
            } => {
                self.seal_in_place(sequence, computed, &generated, effects);
                let end = self.slots.get(sequence).map(CacheSlot::end);
                if let Some(end) = end {
                    self.share_path(end);
                }
                self.close(sequence, effects);
                self.hold_lost_pins(effects);
                self.find_mergeable(end);
                self.merge_one(effects);
            }
            Message::Discard { sequence } => self.close(sequence, effects),
            Message::Pin(pin) => self.pin(now, pin, effects)?,
            Message::Unpin { pin } => self.pins.remove(pin, &mut self.trie)?,
            Message::Clear { salt } => self.clear(salt.as_ref(), effects),
            Message::Flush(flush) => self.flush(flush),
            Message::Paged(pager_event) => self.pager_event(pager_event, effects),
            Message::FencePassed { number } => {
                if let Some(paging) = &mut self.paging {
                    paging.fence_passed(number);
                }
            }
            Message::Lost { segments } => self.lose_segments(&segments, effects),
            Message::Reset => {
                // Earlier edits are of no use to an empty device.
                effects.clear();
                self.reset();
            }
        }
        Ok(())
    }

    /// Returns the totals of the cache.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            sealed_bytes: self.trie.bytes() + self.slots.own_bytes(),
            protected_bytes: self.trie.protected_bytes() + self.slots.own_bytes(),
            reserved_bytes: self.slots.reserved_bytes(),
            cached_tokens: self.trie.tokens(),
            segments: self.trie.len(),
            evicted_segments: self.evictions.segments(),
            evicted_tokens: self.evictions.tokens(),
            asked_tokens: self.prefix_hits.asked_tokens(),
            hit_tokens: self.prefix_hits.hit_tokens(),
            pins: self.pins.len(),
            restore: self
                .restore_policy
                .map(|_| self.restores.stats(self.trie.snapshots())),
        }
    }

    /// Forgets a sequence: its slot, or its place among the waiting requests. Requests that
    /// waited for it start over.
    fn close(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        self.waiting.forget(sequence);
        self.slots.forget_lost(sequence);
        if let Some(paging) = &mut self.paging {
            paging.forget(sequence, &mut self.trie);
        }
        self.close_slot(sequence, effects);
        self.reopen_followers(sequence, effects);
    }

    /// Frees a sequence's slot, if it has one.
    fn close_slot(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        if let Some(mut slot) = self.slots.close(sequence, &mut self.trie) {
            self.give_up_backups(slot.take_backups());
            if !slot.is_sealed_in_place() {
                effects.push(Effect::Edit(Edit::Close { slot: slot.id() }));
            }
            self.forget_private(&slot.key().salt, effects);
        }
    }

    /// Starts over the requests that waited for a finished sequence.
    fn reopen_followers(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        for orphan in self.waiting.take_of(sequence) {
            self.open_slot(orphan, WaitPolicy::ALL, effects);
        }
    }

    /// Evicts everything under a private salt once no slot uses that salt.
    fn forget_private(&mut self, salt: &Salt, effects: &mut Vec<Effect>) {
        if salt.is_private()
            && !self.slots.uses_salt(salt)
            && let Some(root) = self.trie.root(salt)
        {
            for gone in self.trie.clear(root) {
                self.gone(gone, effects);
            }
        }
    }

    /// Empties the cache, as the device has lost its state. The scheduler opens the slots of
    /// live sequences again. Ids continue, so that none is ever used twice. Pins hold their
    /// prefixes again once these have been recomputed. A core that has panicked is not
    /// inspected any further.
    pub fn reset(&mut self) {
        let fresh = Self::new(self.spec.clone(), self.config.clone());
        let paging = self.paging.take().map(Paging::after_reset);
        let mut trie = fresh.trie;
        trie.follow_like(&self.trie);
        if paging.is_some() {
            trie.track_not_offloaded();
        }
        *self = Self {
            trie,
            slots: self.slots.after_reset(),
            pins: std::mem::take(&mut self.pins).after_reset(),
            paging,
            copied_blocks: std::mem::take(&mut self.copied_blocks).after_reset(),
            evictions: self.evictions.after_reset(),
            prefix_hits: self.prefix_hits,
            restores: self.restores,
            segments_made: self.segments_made,
            ..fresh
        };
    }
}
