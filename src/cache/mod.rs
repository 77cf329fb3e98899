//! The cache: which tokens are cached where, and who may use them.
//!
//! [`CacheCore`] is a plain state machine. It owns the prefix [`trie`] and the
//! slots of all live sequences, deals in ids, token ranges and byte counts, and
//! answers each [`Message`] with [`Effect`]s: news for the scheduler, and edits
//! that the device carries out, in order, before its next step.
//!
//! | file | what happens there |
//! |---|---|
//! | `begin.rs` | a sequence starts: longest usable prefix, or whom to wait for |
//! | `publish.rs` | tails become segments: for one who waits, and at the end |
//! | `room.rs` | the byte budget: reservations and eviction |
//! | [`trie`] | the compressed prefix trie |
//!
//! **Sharing.** A sequence's state stays in its private tail, where decoding is
//! fastest, until somebody else wants it. A newcomer that shares more with the
//! prompt of a live sequence (its *leader*) than the trie holds waits for the
//! leader to get that far; then that part of the leader's tail is sealed and
//! serves both. So equal prompts are computed once, and a prompt that nobody
//! shares is never copied.
//!
//! **Room.** A slot reserves at its start what its tail may grow to, so a running
//! sequence never runs out; a newcomer that does not fit evicts what nobody uses,
//! least recently used first, and otherwise waits for a sequence to end.

mod begin;
mod publish;
mod room;
pub mod trie;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::CacheConfig;
use crate::device::Edit;
use crate::model::ModelSpec;
use crate::shared::lease::Lease;
use crate::{SegmentId, SequenceId, SlotId, TokenId};
use trie::{NodeKey, Trie};

/// What the scheduler tells the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A sequence wants a slot.
    Begin(Begin),
    /// A sequence that was given a [`Effect::Checkpoint`] has state for this many
    /// tokens now, at least as many as were asked for.
    Reached {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of which its slot holds the state.
        computed: usize,
    },
    /// A sequence is over; what it computed may serve others.
    Close {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of which its slot holds the state.
        computed: usize,
        /// Tokens that were generated after those of [`Begin::tokens`].
        generated: Vec<TokenId>,
    },
    /// A sequence is over, and its tail is unusable.
    Discard {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The device has lost everything.
    Reset,
}

/// A sequence that wants a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its tokens so far; at least one.
    pub tokens: Arc<[TokenId]>,
    /// How many tokens it may add at most.
    pub output_tokens_max: usize,
}

/// What follows from a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The sequence has a slot whose path holds its first `cached_tokens` tokens.
    Begun {
        /// The sequence.
        sequence: SequenceId,
        /// Its slot.
        slot: SlotId,
        /// Tokens that need not be computed; less than all.
        cached_tokens: usize,
    },
    /// The sequence does not fit now; begin it again when another has ended.
    NoRoom {
        /// The sequence.
        sequence: SequenceId,
    },
    /// Tell me with [`Message::Reached`] when `sequence` has state for `at` tokens,
    /// and end a prefill chunk there.
    Checkpoint {
        /// The sequence that computes what another waits for.
        sequence: SequenceId,
        /// Tokens.
        at: usize,
    },
    /// To be carried out by the device before its next step, in order.
    Edit(Edit),
}

/// Sums that anyone may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes of sealed segments.
    pub sealed_bytes: usize,
    /// Bytes that live tails may grow to.
    pub reserved_bytes: usize,
    /// Tokens in the trie.
    pub cached_tokens: usize,
    /// Segments in the trie.
    pub segments: usize,
    /// Segments evicted so far.
    pub evicted_segments: u64,
}

/// The cache's state machine. See the module's documentation.
#[derive(Debug)]
pub struct CacheCore {
    spec: ModelSpec,
    config: CacheConfig,
    trie: Trie,
    slots: BTreeMap<SequenceId, Slot>,
    waiting: Vec<Waiting>,
    slots_made: u64,
    segments_made: u64,
    sealed_bytes: usize,
    reserved_bytes: usize,
    evicted_segments: u64,
}

/// A live sequence's place on the device.
#[derive(Debug)]
struct Slot {
    id: SlotId,
    tokens: Arc<[TokenId]>,
    output_tokens_max: usize,
    path: Vec<PathNode>,
    path_tokens: usize,
    reserved_bytes: usize,
}

/// One sealed segment of a slot's path.
#[derive(Debug)]
struct PathNode {
    node: NodeKey,
    lease: Lease,
}

/// A newcomer that waits until its leader has computed what both share.
#[derive(Debug)]
struct Waiting {
    newcomer: Begin,
    leader: SequenceId,
    at: usize,
}

impl CacheCore {
    /// An empty cache for a model of this shape.
    #[must_use]
    pub fn new(spec: ModelSpec, config: CacheConfig) -> Self {
        Self {
            spec,
            config,
            trie: Trie::new(),
            slots: BTreeMap::new(),
            waiting: Vec::new(),
            slots_made: 0,
            segments_made: 0,
            sealed_bytes: 0,
            reserved_bytes: 0,
            evicted_segments: 0,
        }
    }

    /// Takes in one message and says what follows, in order.
    pub fn handle(&mut self, message: Message) -> Vec<Effect> {
        let mut effects = Vec::new();
        match message {
            Message::Begin(begin) => self.begin(begin, true, &mut effects),
            Message::Reached { sequence, computed } => {
                self.reached(sequence, computed, &mut effects);
            }
            Message::Close {
                sequence,
                computed,
                generated,
            } => {
                self.publish(sequence, computed, &generated, &mut effects);
                self.close(sequence, &mut effects);
            }
            Message::Discard { sequence } => self.close(sequence, &mut effects),
            Message::Reset => self.reset(),
        }
        effects
    }

    /// Sums that anyone may look at.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            sealed_bytes: self.sealed_bytes,
            reserved_bytes: self.reserved_bytes,
            cached_tokens: self.trie.tokens(),
            segments: self.trie.len(),
            evicted_segments: self.evicted_segments,
        }
    }

    /// Panics unless the trie, the slots, the leases and the bytes agree.
    pub fn check_integrity(&self) {
        self.trie.check_integrity();
        let reserved: usize = self.slots.values().map(|slot| slot.reserved_bytes).sum();
        assert_eq!(reserved, self.reserved_bytes, "reservations add up");
        assert!(
            self.sealed_bytes + self.reserved_bytes <= self.config.device_bytes_max,
            "the cache keeps within its bytes"
        );
        for slot in self.slots.values() {
            let mut at = 0;
            for step in &slot.path {
                let node = self.trie.node(step.node);
                assert_eq!(
                    node.word().segment(),
                    step.lease.segment(),
                    "a lease is of its node"
                );
                let edge = node.edge();
                assert_eq!(
                    &slot.tokens[at..at + edge.len()],
                    edge,
                    "a path spells its tokens"
                );
                at += edge.len();
            }
            assert_eq!(at, slot.path_tokens, "a path is as long as it says");
        }
        for waiting in &self.waiting {
            assert!(
                self.slots.contains_key(&waiting.leader),
                "a leader is alive"
            );
        }
    }

    /// Forgets a sequence: its slot, or its place among those who wait. Those who
    /// waited for it begin anew.
    fn close(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        self.waiting.retain(|w| w.newcomer.sequence != sequence);
        if let Some(slot) = self.slots.remove(&sequence) {
            self.reserved_bytes -= slot.reserved_bytes;
            if let Some(last) = slot.path.last() {
                self.trie.touch(last.node);
            }
            effects.push(Effect::Edit(Edit::Close { slot: slot.id }));
        }
        let (orphans, others) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|w| w.leader == sequence);
        self.waiting = others;
        let orphans: Vec<Waiting> = orphans;
        for orphan in orphans {
            self.begin(orphan.newcomer, true, effects);
        }
    }

    /// Starts from nothing, as the device does. Live sequences begin again; the
    /// scheduler sees to that. Ids go on, so that none is ever used twice.
    fn reset(&mut self) {
        let fresh = Self::new(self.spec.clone(), self.config.clone());
        *self = Self {
            slots_made: self.slots_made,
            segments_made: self.segments_made,
            evicted_segments: self.evicted_segments,
            ..fresh
        };
    }

    fn next_segment(&mut self) -> SegmentId {
        self.segments_made += 1;
        SegmentId(self.segments_made)
    }
}
