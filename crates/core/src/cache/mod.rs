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
//! | `create_slot.rs` | creates a slot: path, reservation, restore points |
//! | `publish.rs` | seals tails of slots that continue: for a waiting sequence, for a fork, at restore points |
//! | `rewind.rs` | passes a slot on to another sequence |
//! | `extend_grant.rs` | grants a slot more tokens than it started with |
//! | `remove_tokens.rs` | removes tokens from a slot: truncation and shift |
//! | `pins.rs` | pins, clearing, merging |
//! | `lost_segments.rs` | segments that the device lost because edits failed |
//! | `miss.rs` | why a sequence reused less of its prompt than it might have |
//! | `budget.rs` | the byte budget: reservations and eviction |
//! | `offload.rs`, `load.rs` | offload ahead of need; loads for a sequence that starts |
//! | `backup.rs` | copies of live sequences, in case the device is lost |
//! | [`trie`] | the compressed prefix trie |
//! | [`shift`] | how many tokens a full context discards |
//! | `in_progress.rs`, `integrity.rs` | the live prompts with the longest shared prefix; the invariants |
//! | `tree_view.rs`, `snapshot.rs`, `offloaded_copies.rs` | the trie as data: all of one salt; the most important nodes, in bounded time; copies below them |
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
mod create_slot;
mod error;
mod extend_grant;
mod in_progress;
mod integrity;
mod load;
mod lost_segments;
mod miss;
mod offload;
mod offloaded_copies;
mod open_slot;
mod pins;
mod publish;
mod remove_tokens;
mod rewind;
mod seal_in_place;
pub mod shift;
mod snapshot;
mod tree_view;
pub mod trie;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::config::CacheConfig;
use crate::eviction::{Class, SequenceMark};
use crate::protocol::{Edit, ModelSpec};
use crate::{CopyId, PinId, SegmentId, SequenceId, SlotId, TokenId};
use in_progress::InProgressPrompts;
use miss::Evictions;
use motet_sync::injected::{self, Bug};
use offload::{Paging, WaitPolicy};
use trie::{NodeKey, Trie};

pub use crate::protocol::cache::{
    Effect, Flush, Message, OpenSlot, PROBES_MAX, Pin, ProbePrefix, Rewind,
};
pub use crate::protocol::{Miss, MissReason, Salt, SaltDigest};
pub use error::CacheError;
pub use tree_view::{NodeView, TreeView};
pub use trie::{BlockEvent, BlockHash};

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
}

/// The state machine of the cache. See the module's documentation.
#[derive(Debug)]
pub struct CacheCore {
    spec: ModelSpec,
    config: CacheConfig,
    trie: Trie,
    slots: BTreeMap<SequenceId, Slot>,
    /// Sequences whose slots were lost with their path, until the scheduler closes or discards
    /// them.
    lost: BTreeSet<SequenceId>,
    in_progress: InProgressPrompts,
    waiting: Vec<WaitingRequest>,
    pins: BTreeMap<PinId, Pinned>,
    /// The time at which the next pin expires.
    next_expiry: Option<Duration>,
    /// Nodes that may have one child left and could be merged with it.
    mergeable: VecDeque<NodeKey>,
    /// State of the exchange with the pager, if there is one.
    paging: Option<Paging>,
    /// Effects of a message that then failed. The next call of `handle` returns them.
    pending_effects: Vec<Effect>,
    slots_made: u64,
    segments_made: u64,
    reserved_bytes: usize,
    /// Bytes of segments that belong to the path of one slot only and not to the trie.
    own_bytes: usize,
    evicted_segments: u64,
    evicted_tokens: u64,
    evictions: Evictions,
    asked_tokens: u64,
    hit_tokens: u64,
}

/// A live sequence's state on the device.
#[derive(Debug)]
struct Slot {
    id: SlotId,
    salt: Salt,
    /// The tokens that the cache knows: the prompt, and output only if a message reported it.
    tokens: Arc<[TokenId]>,
    /// Tokens that the slot may hold: those granted at its start or since.
    tokens_max: usize,
    keep: Option<usize>,
    /// Offsets at which the slot is to be sealed without another sequence waiting, ascending.
    restore_points: Vec<RestorePoint>,
    priority: u8,
    /// The class that the eviction policy assigned.
    class: Class,
    sequence_mark: SequenceMark,
    /// The node at which the slot's path ends. The slot holds it.
    end: NodeKey,
    path_tokens: usize,
    /// Tokens whose state the slot holds, as far as the cache knows.
    computed: usize,
    reserved_bytes: usize,
    /// Whether the device has closed the slot and kept its last segment.
    is_sealed_in_place: bool,
    /// Whether the path contains segments that are not in the trie.
    has_own_segments: bool,
    /// Bytes of those segments.
    own_bytes: usize,
    /// Leading tokens whose state is exactly that of the tokens. A shift reduces it. Later
    /// tokens are never published.
    exact_tokens: usize,
    /// Leading tokens that are in copies, or are being copied.
    backed_up: usize,
    /// Copies made of the slot's tail.
    backups: Vec<CopyId>,
}

/// An offset at which a slot is to be sealed without another sequence waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RestorePoint {
    at: usize,
    /// Whether a caller asked for it. Then the node stays restorable.
    asked: bool,
}

/// A request that waits until its leader has computed the shared tokens.
#[derive(Debug)]
struct WaitingRequest {
    request: OpenSlot,
    leader: SequenceId,
    at: usize,
}

/// A pin and the node that it holds.
#[derive(Debug)]
struct Pinned {
    salt: Salt,
    tokens: Arc<[TokenId]>,
    expires_at: Option<Duration>,
    /// The held node. `None` after the device lost the prefix, until it has been computed
    /// again.
    end: Option<NodeKey>,
}

impl CacheCore {
    /// Returns an empty cache for a model of this shape.
    #[must_use]
    pub fn new(spec: ModelSpec, mut config: CacheConfig) -> Self {
        if config.device_bytes_max == 0 {
            config.device_bytes_max = CacheConfig::DEVICE_BYTES;
        }
        Self {
            trie: Trie::new(config.eviction.policy()),
            spec,
            config,
            slots: BTreeMap::new(),
            lost: BTreeSet::new(),
            in_progress: InProgressPrompts::default(),
            waiting: Vec::new(),
            pins: BTreeMap::new(),
            next_expiry: None,
            mergeable: VecDeque::new(),
            paging: None,
            pending_effects: Vec::new(),
            slots_made: 0,
            segments_made: 0,
            reserved_bytes: 0,
            own_bytes: 0,
            evicted_segments: 0,
            evicted_tokens: 0,
            evictions: Evictions::default(),
            asked_tokens: 0,
            hit_tokens: 0,
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
        self.expire_pins(now);
        let done = self.dispatch(now, message, &mut effects);
        self.offload_cold();
        self.offload_backups();
        match done {
            Ok(()) => Ok(effects),
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
            // Such a message crossed with the event that the slot is lost.
            Message::Share { sequence, .. } | Message::Remove { sequence, .. }
                if self.lost.contains(&sequence) => {}
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
                self.close(sequence, effects);
                self.hold_lost_pins(effects);
                self.merge_one(effects);
            }
            Message::Discard { sequence } => self.close(sequence, effects),
            Message::Pin(pin) => self.pin(now, pin, effects)?,
            Message::Unpin { pin } => self.unpin(pin)?,
            Message::Clear { salt } => self.clear(salt.as_ref(), effects),
            Message::Flush(flush) => self.flush(flush),
            Message::Paged(pager_event) => self.pager_event(pager_event, effects),
            Message::FencePassed { number } => self.fence_passed(number),
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
            sealed_bytes: self.trie.bytes() + self.own_bytes,
            protected_bytes: self.trie.protected_bytes() + self.own_bytes,
            reserved_bytes: self.reserved_bytes,
            cached_tokens: self.trie.tokens(),
            segments: self.trie.len(),
            evicted_segments: self.evicted_segments,
            evicted_tokens: self.evicted_tokens,
            asked_tokens: self.asked_tokens,
            hit_tokens: self.hit_tokens,
            pins: self.pins.len(),
        }
    }

    /// Forgets a sequence: its slot, or its place among the waiting requests. Requests that
    /// waited for it start over.
    fn close(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        self.waiting.retain(|w| w.request.sequence != sequence);
        self.lost.remove(&sequence);
        self.stop_paging(sequence);
        self.close_slot(sequence, effects);
        self.reopen_followers(sequence, effects);
    }

    /// Frees a sequence's slot, if it has one.
    fn close_slot(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        if let Some(slot) = self.slots.remove(&sequence) {
            self.in_progress.remove(&slot.salt, sequence);
            self.reserved_bytes -= slot.reserved_bytes;
            self.own_bytes -= slot.own_bytes;
            if !injected::is_injected(Bug::LostRelease) {
                self.trie.leave(slot.sequence_mark, slot.end);
            }
            self.give_up_backups(slot.backups);
            if !slot.is_sealed_in_place {
                effects.push(Effect::Edit(Edit::Close { slot: slot.id }));
            }
            self.forget_private(&slot.salt, effects);
        }
    }

    /// Starts over the requests that waited for a finished sequence.
    fn reopen_followers(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        for orphan in self.take_waiting(|w| w.leader == sequence) {
            self.open_slot(orphan.request, WaitPolicy::ALL, effects);
        }
    }

    /// Evicts everything under a private salt once no slot uses that salt.
    fn forget_private(&mut self, salt: &Salt, effects: &mut Vec<Effect>) {
        let is_in_use = || self.slots.values().any(|slot| slot.salt == *salt);
        if salt.is_private()
            && !is_in_use()
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
        let mut pins = std::mem::take(&mut self.pins);
        for pin in pins.values_mut() {
            pin.end = None;
        }
        let paging = self.reset_paging();
        let mut trie = fresh.trie;
        trie.follow_like(&self.trie);
        if paging.is_some() {
            trie.track_not_offloaded();
        }
        *self = Self {
            trie,
            pins,
            paging,
            next_expiry: self.next_expiry,
            slots_made: self.slots_made,
            segments_made: self.segments_made,
            evicted_segments: self.evicted_segments,
            asked_tokens: self.asked_tokens,
            hit_tokens: self.hit_tokens,
            ..fresh
        };
    }

    /// Starts tracking which blocks are stored and removed. Returns the present blocks as
    /// events; the first event says that there are none.
    pub fn follow_blocks(&mut self) -> Vec<BlockEvent> {
        self.trie.follow(self.config.block_tokens);
        self.trie.all_blocks()
    }

    /// Stops tracking which blocks are stored and removed.
    pub fn unfollow_blocks(&mut self) {
        self.trie.unfollow();
    }

    /// Returns the block events since the last call, in order; none unless blocks are
    /// followed.
    pub fn take_block_events(&mut self) -> Vec<BlockEvent> {
        self.trie.take_block_events()
    }

    fn next_segment(&mut self) -> SegmentId {
        self.segments_made += 1;
        SegmentId(self.segments_made)
    }
}
