//! The cache: which tokens are cached where, and who may use them.
//!
//! [`CacheCore`] is a plain state machine. It owns the prefix [`trie`] and the
//! slots of all live sequences, deals in ids, token ranges and byte counts, and
//! answers each [`Message`] with [`Effect`]s: news for the scheduler, and edits
//! that the device carries out, in order, before its next step. A message that
//! cannot be met is a [`CacheError`] and changes nothing.
//!
//! | file | what happens there |
//! |---|---|
//! | `begin.rs` | a sequence starts: longest usable prefix, or whom to wait for; how much that would be |
//! | `seat.rs` | a slot is made: path, reservation, restore points |
//! | `publish.rs` | tails become segments: for one who waits, at restore points, at the end |
//! | `rewind.rs` | another sequence goes on in a slot |
//! | `grow.rs` | a slot is granted more tokens than it began with |
//! | `slots.rs` | tokens are taken out of a slot: truncation and shift |
//! | `keep.rs` | pins, clearing, merging |
//! | `lost.rs` | what the device has lost by edits that failed |
//! | `miss.rs` | why less of a prompt was reused than might have been |
//! | `room.rs` | the byte budget: reservations and eviction |
//! | `page.rs`, `fetch.rs` | what leaves the device in good time, what comes back for a newcomer |
//! | `backup.rs` | what is copied of those that live, in case that the device is lost |
//! | [`trie`] | the compressed prefix trie |
//! | [`eviction`] | who goes first when room is needed |
//! | [`shift`] | how much a full context gives up |
//! | `live.rs`, `check.rs` | whose prompt is like mine; what must always be true |
//! | `inspect.rs`, `overview.rs`, `beside.rs` | the tree as data: all of a salt's; what counts, in bounded time; copies below it |
//!
//! **Sharing.** A sequence's state stays in its private tail, where decoding is
//! fastest, until somebody else wants it. A newcomer that shares more with the
//! prompt of a live sequence (its *leader*) than the trie holds waits for the
//! leader to get that far; then that part of the leader's tail is sealed and
//! serves both. So equal prompts are computed once, and a prompt that nobody
//! shares is never copied. Where models cannot resume after any token, tails are
//! also sealed at restore points.
//!
//! **Room.** A slot reserves what its tail may grow to with the tokens that it was
//! granted, at its start and since, so a sequence never runs out within its grant. A
//! newcomer that does not fit, and a slot that is to grow, evict what nobody holds, in
//! the order of the [policy](eviction). If that is not enough, the newcomer waits for a
//! sequence to end, and the slot stays as it was.

mod backup;
mod begin;
mod beside;
mod check;
mod error;
pub mod eviction;
mod fetch;
mod grow;
mod inspect;
mod keep;
mod live;
mod lost;
mod message;
mod miss;
mod overview;
mod page;
mod publish;
mod retire;
mod rewind;
mod room;
mod salt;
mod seat;
pub mod shift;
mod slots;
pub mod trie;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::config::CacheConfig;
use crate::protocol::{Edit, ModelSpec};
use crate::{CopyId, PinId, SegmentId, SequenceId, SlotId, TokenId};
use eviction::{Class, Ticket};
use live::LivePrompts;
use miss::Evictions;
use motet_sync::planted::{self, Bug};
use page::{Paging, Patience};
use trie::{NodeKey, Trie};

pub use error::CacheError;
pub use inspect::{NodeView, TreeView};
pub use message::{Begin, Effect, Flush, LOOKS_MAX, Look, Message, Pin, Rewind};
pub use miss::{Miss, MissReason};
pub use salt::{Salt, SaltDigest};
pub use trie::{BlockEvent, BlockHash};

/// Sums that anyone may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Bytes of sealed segments.
    pub sealed_bytes: usize,
    /// Of these, bytes that live sequences and pins hold.
    pub protected_bytes: usize,
    /// Bytes that live tails may grow to.
    pub reserved_bytes: usize,
    /// Tokens in the trie.
    pub cached_tokens: usize,
    /// Segments in the trie.
    pub segments: usize,
    /// Segments evicted or cleared so far.
    pub evicted_segments: u64,
    /// Their tokens.
    pub evicted_tokens: u64,
    /// Prompt tokens of all sequences that have begun so far and may reuse.
    pub asked_tokens: u64,
    /// Of these, tokens whose state was in the cache.
    pub hit_tokens: u64,
    /// Pins.
    pub pins: usize,
}

/// The cache's state machine. See the module's documentation.
#[derive(Debug)]
pub struct CacheCore {
    spec: ModelSpec,
    config: CacheConfig,
    trie: Trie,
    slots: BTreeMap<SequenceId, Slot>,
    /// Sequences whose slots were lost with their path, until the scheduler has heard of it.
    lost: BTreeSet<SequenceId>,
    live: LivePrompts,
    waiting: Vec<Waiting>,
    pins: BTreeMap<PinId, Pinned>,
    /// When the next pin expires.
    next_expiry: Option<Duration>,
    /// Nodes that were left with one child.
    mergeable: VecDeque<NodeKey>,
    /// Dealings with the pager, if there is one.
    paging: Option<Paging>,
    /// What came of a message that then could not be met: said with the next.
    unsaid: Vec<Effect>,
    slots_made: u64,
    segments_made: u64,
    reserved_bytes: usize,
    /// Bytes of segments that are part of one slot's path only.
    own_bytes: usize,
    evicted_segments: u64,
    evicted_tokens: u64,
    evictions: Evictions,
    asked_tokens: u64,
    hit_tokens: u64,
}

/// A live sequence's place on the device.
#[derive(Debug)]
struct Slot {
    id: SlotId,
    salt: Salt,
    /// The tokens known to the cache: the prompt, unless it has been told of more.
    tokens: Arc<[TokenId]>,
    /// Tokens that it may hold: what it began with, or what it was granted since.
    tokens_max: usize,
    keep: Option<usize>,
    /// Where the sequence is to be sealed for its own sake, ascending.
    restore_points: Vec<RestorePoint>,
    priority: u8,
    /// What the policy of eviction makes of it.
    class: Class,
    ticket: Ticket,
    /// The node at which its path ends. The slot holds it.
    end: NodeKey,
    path_tokens: usize,
    /// Tokens of which it holds the state, as far as the cache was told.
    computed: usize,
    reserved_bytes: usize,
    /// Whether the device has given it up for its last segment.
    is_retired: bool,
    /// Whether segments are part of its path that are not the trie's.
    has_own_segments: bool,
    /// Their bytes.
    own_bytes: usize,
    /// Tokens whose state is exactly that of its tokens; less than all it holds once
    /// it was shifted. What comes after is never published.
    exact_tokens: usize,
    /// Tokens that are in copies, or on their way there.
    backed_up: usize,
    /// Copies that were made of its tail.
    backups: Vec<CopyId>,
}

/// Where a slot is to be sealed for its own sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RestorePoint {
    at: usize,
    /// Whether a caller asked for it: then the node stays restorable.
    asked: bool,
}

/// A newcomer that waits until its leader has computed what both share.
#[derive(Debug)]
struct Waiting {
    newcomer: Begin,
    leader: SequenceId,
    at: usize,
}

/// A pin, and what it holds.
#[derive(Debug)]
struct Pinned {
    salt: Salt,
    tokens: Arc<[TokenId]>,
    expires_at: Option<Duration>,
    /// The node that it holds; none after the device has lost everything, until the
    /// prefix has been computed again.
    end: Option<NodeKey>,
}

impl CacheCore {
    /// An empty cache for a model of this shape.
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
            live: LivePrompts::default(),
            waiting: Vec::new(),
            pins: BTreeMap::new(),
            next_expiry: None,
            mergeable: VecDeque::new(),
            paging: None,
            unsaid: Vec::new(),
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

    /// Takes in one message and says what follows, in order. `now` is the time since
    /// a moment that never changes; it only goes on.
    ///
    /// # Errors
    ///
    /// [`CacheError`] when the message makes no sense or cannot be met. The cache is
    /// as it was before then.
    pub fn handle(&mut self, now: Duration, message: Message) -> Result<Vec<Effect>, CacheError> {
        let mut effects = std::mem::take(&mut self.unsaid);
        self.expire_pins(now);
        let done = self.carry_out(now, message, &mut effects);
        self.offer_cold();
        self.offer_backups();
        match done {
            Ok(()) => Ok(effects),
            Err(error) => {
                self.unsaid = effects;
                Err(error)
            }
        }
    }

    fn carry_out(
        &mut self,
        now: Duration,
        message: Message,
        effects: &mut Vec<Effect>,
    ) -> Result<(), CacheError> {
        match message {
            Message::Begin(begin) => {
                self.check_begin(&begin)?;
                self.begin(begin, Patience::ALL, effects);
            }
            Message::Grow {
                sequence,
                tokens_max,
            } => self.grow(sequence, tokens_max, effects),
            Message::Look { sequences } => self.look(&sequences, effects),
            Message::Reached { sequence, computed } => {
                self.reached(sequence, computed, effects);
            }
            // They have crossed with the news that its slot is gone.
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
                self.retire(sequence, computed, &generated, effects);
                self.close(sequence, effects);
                self.hold_lost_pins(effects);
                self.merge_one(effects);
            }
            Message::Discard { sequence } => self.close(sequence, effects),
            Message::Pin(pin) => self.pin(now, pin, effects)?,
            Message::Unpin { pin } => self.unpin(pin)?,
            Message::Clear { salt } => self.clear(salt.as_ref(), effects),
            Message::Flush(flush) => self.flush(flush),
            Message::Paged(told) => self.told(told, effects),
            Message::Cleared { number } => self.cleared(number),
            Message::Lost { segments } => self.lose_segments(&segments, effects),
            Message::Reset => {
                // What was to be done before is of no use to an empty device.
                effects.clear();
                self.reset();
            }
        }
        Ok(())
    }

    /// Sums that anyone may look at.
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

    /// Forgets a sequence: its slot, or its place among those who wait. Those who
    /// waited for it begin anew.
    fn close(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        self.waiting.retain(|w| w.newcomer.sequence != sequence);
        self.lost.remove(&sequence);
        self.stop_paging(sequence);
        self.close_slot(sequence, effects);
        self.begin_orphans(sequence, effects);
    }

    /// Gives up a sequence's slot, if it has one.
    fn close_slot(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        if let Some(slot) = self.slots.remove(&sequence) {
            self.live.remove(&slot.salt, sequence);
            self.reserved_bytes -= slot.reserved_bytes;
            self.own_bytes -= slot.own_bytes;
            if !planted::errs(Bug::LostRelease) {
                self.trie.leave(slot.ticket, slot.end);
            }
            self.give_up_backups(slot.backups);
            if !slot.is_retired {
                effects.push(Effect::Edit(Edit::Close { slot: slot.id }));
            }
            self.forget_private(&slot.salt, effects);
        }
    }

    /// Those who waited for a sequence that is over begin anew.
    fn begin_orphans(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        for orphan in self.take_waiting(|w| w.leader == sequence) {
            self.begin(orphan.newcomer, Patience::ALL, effects);
        }
    }

    /// Evicts what is cached under a private salt once no slot has it: nobody may use it.
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

    /// Starts from nothing, as the device does. Live sequences begin again; the
    /// scheduler sees to that. Ids go on, so that none is ever used twice, and pins
    /// hold their prefixes again once these have been computed. Of a core that has
    /// panicked nothing else is looked at.
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
            trie.note_unkept();
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

    /// Notes from now on which blocks come and go, and says which there are: as events, of
    /// which the first is that there are none.
    pub fn follow_blocks(&mut self) -> Vec<BlockEvent> {
        self.trie.follow(self.config.block_tokens);
        self.trie.all_blocks()
    }

    /// Nobody wants to know any more which blocks come and go.
    pub fn unfollow_blocks(&mut self) {
        self.trie.unfollow();
    }

    /// What has changed of the blocks since this was asked last, in order, if somebody
    /// follows them.
    pub fn take_block_events(&mut self) -> Vec<BlockEvent> {
        self.trie.take_block_events()
    }

    fn next_segment(&mut self) -> SegmentId {
        self.segments_made += 1;
        SegmentId(self.segments_made)
    }
}
