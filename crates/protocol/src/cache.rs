//! The messages that the cache receives, and the effects that it returns.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{Edit, Miss, PrefixKey, Salt, only_sequence, pager};
use crate::{PinId, SegmentId, SequenceId, SlotId, TokenId};

/// Sequences that one [`Message::ProbePrefix`] is answered for. Each costs a walk along all of
/// its cached tokens, and requests for slots wait that long.
pub const PROBES_MAX: usize = 16;

/// A message to the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Opens a slot for a sequence.
    OpenSlot(OpenSlot),
    /// Extends the grant of a live sequence, set by [`OpenSlot::tokens_max`] or an earlier
    /// extension. Answered with [`Effect::GrantExtended`] or [`Effect::GrantDenied`]. A grant
    /// is never reduced.
    ExtendGrant {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that its slot may hold. If that is no more than the present grant, the
        /// answer repeats the present grant.
        tokens_max: usize,
    },
    /// Asks how much of some waiting sequences is cached. Answered with one
    /// [`Effect::CachedPrefix`] each, in order. A probe does not count as a use of the nodes,
    /// and the eviction policy does not learn from it.
    ProbePrefix {
        /// The sequences. Only the first [`PROBES_MAX`] are answered.
        sequences: Vec<ProbePrefix>,
    },
    /// A sequence with a [`Effect::Checkpoint`] now has state for this many tokens, at least
    /// as many as the checkpoint named.
    Reached {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens whose state its slot holds.
        computed: usize,
    },
    /// A sequence with an [`Effect::ReportAt`] now has state for this many tokens, at least as
    /// many as that named. It may be in a step that computes more.
    Computed {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens whose state its slot holds.
        computed: usize,
    },
    /// Shares the computed tokens of a sequence up to `at`, where a fork starts. The sequence
    /// continues.
    Share {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens whose state its slot holds.
        computed: usize,
        /// Tokens after those that the cache knows. The cache knows [`OpenSlot::tokens`], or
        /// after a truncation those that remained of them and were reported since.
        generated: Vec<TokenId>,
        /// Number of its tokens to share.
        at: usize,
    },
    /// Copies the computed tokens of a live sequence to host memory, as far as they are in no
    /// copy. The sequence continues meanwhile. A sequence that is not live has already ended;
    /// that is no error. Without a pager nothing happens.
    BackUp {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens whose state its slot holds; it may have computed more since.
        computed: usize,
        /// Tokens after those that the cache knows. The cache knows [`OpenSlot::tokens`], or
        /// after a truncation those that remained of them and were reported since.
        generated: Vec<TokenId>,
    },
    /// Removes tokens from a slot; the tokens after them move up. It is a truncation if none
    /// follow, else a shift.
    Remove {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens whose state its slot holds.
        computed: usize,
        /// Tokens after those that the cache knows. The cache knows [`OpenSlot::tokens`], or
        /// after a truncation those that remained of them and were reported since.
        generated: Vec<TokenId>,
        /// The range of its tokens to remove.
        removed: Range<usize>,
    },
    /// Ends a sequence and passes its slot on to another one.
    Rewind(Rewind),
    /// Ends a sequence and publishes its computed tokens. A sequence that is not live has
    /// already ended. That is no error, here and for [`Self::ExtendGrant`], [`Self::Reached`],
    /// [`Self::Computed`] and [`Self::Discard`].
    Close {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens whose state its slot holds.
        computed: usize,
        /// Tokens after those that the cache knows. The cache knows [`OpenSlot::tokens`], or
        /// after a truncation those that remained of them and were reported since.
        generated: Vec<TokenId>,
    },
    /// Ends a sequence whose tail is unusable.
    Discard {
        /// The sequence.
        sequence: SequenceId,
    },
    /// Pins a cached prefix.
    Pin(Pin),
    /// Removes a pin.
    Unpin {
        /// The pin.
        pin: PinId,
    },
    /// Evicts all nodes that are not held.
    Clear {
        /// The salt to clear; all salts if `None`.
        salt: Option<Salt>,
    },
    /// Offers the pager the nodes without a copy now, also nodes that are held. See
    /// `CacheCore::is_flushing`.
    Flush(Flush),
    /// An event from the pager.
    Paged(pager::PagerEvent),
    /// The device has carried out the edits before an [`Effect::Fence`].
    FencePassed {
        /// The number of the fence.
        number: u64,
    },
    /// The device has lost these segments: the edits that were to make them failed.
    Lost {
        /// The segments.
        segments: Vec<SegmentId>,
    },
    /// The device has lost all state.
    Reset,
}

/// A sequence that continues in the slot of a finished one. If the slot no longer exists, or
/// cannot be cut at that offset, the answer is [`Effect::Lost`], and the computed tokens are
/// published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// The finished sequence.
    pub from: SequenceId,
    /// Tokens whose state its slot holds.
    pub computed: usize,
    /// Its tokens after those that the cache knows.
    pub generated: Vec<TokenId>,
    /// The sequence that continues.
    pub to: SequenceId,
    /// The slot.
    pub slot: SlotId,
    /// Tokens of the slot that stay. Later tokens are dropped.
    pub retained_tokens: usize,
    /// The tokens of `to` so far: more than `retained_tokens`, and no more than the slot's
    /// grant.
    pub tokens: Arc<[TokenId]>,
    /// Retention of its tokens.
    pub retention: u8,
}

/// A request for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSlot {
    /// The sequence.
    pub sequence: SequenceId,
    /// The key under which it shares.
    pub key: PrefixKey,
    /// Its tokens so far; at least one.
    pub tokens: Arc<[TokenId]>,
    /// Tokens granted to its slot. The slot holds no more unless a [`Message::ExtendGrant`]
    /// succeeds. Usually that is all of `tokens` and some more to decode. Tokens past the
    /// grant are neither looked up in the cache nor restorable.
    pub tokens_max: usize,
    /// Set when its slot will be shifted: the leading tokens that then stay, fewer than
    /// `tokens_max`.
    pub keep: Option<usize>,
    /// Offsets at which it is to be restorable, in addition to those that the cache chooses.
    pub restore_points: Vec<usize>,
    /// Where the conversation so far ends in `tokens`, and the tokens follow that ask for an
    /// answer; `None` if unknown. It is restorable there until a later turn starts behind it.
    pub turn_end: Option<usize>,
    /// Retention of its tokens. The lowest retention is evicted first.
    pub retention: u8,
    /// The time to compute one of its tokens, if known. Tokens that are in no copy, or that
    /// are slower to load, are computed.
    pub token_time: Option<Duration>,
    /// Whether it starts without cached tokens. It then holds a single tail, which takes less
    /// device memory than a path of segments, each of whole blocks, and a tail.
    pub ignore_cache: bool,
    /// Most cached tokens that it may start with, because rows of later tokens are wanted; `None`
    /// is no other bound than that its last token is computed.
    pub reuse_max: Option<usize>,
}

/// A sequence without a slot whose cached prefix is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePrefix {
    /// The sequence; the cache need not know it.
    pub sequence: SequenceId,
    /// The key under which it will share.
    pub key: PrefixKey,
    /// Its tokens so far.
    pub tokens: Arc<[TokenId]>,
}

/// The extent of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Bytes of segments to flush, approximately; at least one segment is flushed. Nodes with
    /// the highest retention go first, and among those the most recently used.
    pub bytes_max: usize,
    /// Whether nodes that the pager rejected are offered again.
    pub retries: bool,
}

/// A cached prefix that is to stay cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The pin.
    pub pin: PinId,
    /// The key under which the prefix is cached.
    pub key: PrefixKey,
    /// The prefix. All of it must be cached; at least one token.
    pub tokens: Arc<[TokenId]>,
    /// How long the pin lasts; without limit if `None`.
    pub time_to_live: Option<Duration>,
}

/// Most tokens of a continuation.
pub const CONTINUATION_TOKENS_MAX: usize = 512;

/// An effect of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The sequence has a slot whose path holds its first `cached_tokens` tokens.
    SlotOpened {
        /// The sequence.
        sequence: SequenceId,
        /// Its slot.
        slot: SlotId,
        /// Tokens that need not be computed; fewer than all tokens.
        cached_tokens: usize,
        /// Why no more tokens are cached, if more might have been.
        miss: Option<Miss>,
        /// The tokens that an earlier sequence of the same key went on with after all tokens of
        /// this one: at most [`CONTINUATION_TOKENS_MAX`].
        continuation: Arc<[TokenId]>,
    },
    /// The sequence is deferred. It starts when another sequence has computed the shared
    /// tokens, a load has finished, or memory has been released.
    Deferred {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that it will not have to compute then.
        tokens: usize,
    },
    /// The sequence does not fit into memory now. Open its slot again when another sequence
    /// has ended.
    OutOfMemory {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The slot of the sequence may now hold this many tokens, and the bytes for them are
    /// reserved.
    GrantExtended {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens granted, at least as many as requested.
        tokens_max: usize,
    },
    /// The device has no memory to extend the grant, even without the nodes that are not held.
    /// The slot keeps its grant, and nothing was evicted.
    GrantDenied {
        /// The sequence.
        sequence: SequenceId,
    },
    /// How much of a sequence is cached.
    CachedPrefix {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that need not be computed if it started now; fewer than all. The slot may
        /// get fewer if memory is short, for cutting a segment or for the cached path beside
        /// its own tail.
        tokens: usize,
    },
    /// Requests a [`Message::Reached`] when `sequence` has state for `at` to `until` tokens. A
    /// prefill chunk must end there.
    Checkpoint {
        /// The sequence to be sealed there: for a waiting sequence, or at a restore point.
        sequence: SequenceId,
        /// Number of tokens, at least.
        at: usize,
        /// Number of tokens, at most: often the same.
        until: usize,
    },
    /// Requests a [`Message::Computed`] when `sequence` has state for `at` tokens. It replaces
    /// the request before, and holds nothing up. It comes only while blocks are followed.
    ReportAt {
        /// The sequence.
        sequence: SequenceId,
        /// Number of tokens, at least.
        at: usize,
    },
    /// A segment on the path of the sequence's slot was lost, and the slot is closed. The
    /// cache ignores further messages about the sequence until it is closed or discarded.
    Lost {
        /// The sequence.
        sequence: SequenceId,
        /// The slot.
        slot: SlotId,
    },
    /// An edit that the device carries out before its next step, in order.
    Edit(Edit),
    /// Requests a [`Message::FencePassed`] when the device has carried out the edits before
    /// this one. The memory that they free is then available.
    Fence {
        /// The number of the fence, counted from the first.
        number: u64,
    },
}

impl Message {
    /// Whether the message is a cache command (pin, unpin, clear or flush), which callers may
    /// send.
    #[must_use]
    pub fn is_command(&self) -> bool {
        matches!(
            self,
            Self::Pin(_) | Self::Unpin { .. } | Self::Clear { .. } | Self::Flush(_)
        )
    }
}

impl Message {
    /// The sequence that the message concerns, if it concerns exactly one. It is suspected
    /// when the cache panics at the message.
    #[must_use]
    pub fn concerns(&self) -> Option<SequenceId> {
        match self {
            Self::OpenSlot(open_slot) => Some(open_slot.sequence),
            Self::ExtendGrant { sequence, .. }
            | Self::Reached { sequence, .. }
            | Self::Computed { sequence, .. }
            | Self::Share { sequence, .. }
            | Self::BackUp { sequence, .. }
            | Self::Rewind(Rewind { to: sequence, .. })
            | Self::Remove { sequence, .. }
            | Self::Close { sequence, .. }
            | Self::Discard { sequence } => Some(*sequence),
            Self::ProbePrefix { sequences } => {
                only_sequence(sequences.iter().map(|probe| Some(probe.sequence)))
            }
            Self::Paged(pager_event) => pager_event.concerns(),
            Self::Pin(_)
            | Self::Unpin { .. }
            | Self::Clear { .. }
            | Self::Flush(_)
            | Self::FencePassed { .. }
            | Self::Lost { .. }
            | Self::Reset => None,
        }
    }
}

impl Effect {
    /// The sequence that the effect concerns, if any.
    #[must_use]
    pub fn concerns(&self) -> Option<SequenceId> {
        match self {
            Self::SlotOpened { sequence, .. }
            | Self::Deferred { sequence, .. }
            | Self::OutOfMemory { sequence }
            | Self::GrantExtended { sequence, .. }
            | Self::GrantDenied { sequence }
            | Self::CachedPrefix { sequence, .. }
            | Self::Checkpoint { sequence, .. }
            | Self::ReportAt { sequence, .. }
            | Self::Lost { sequence, .. } => Some(*sequence),
            Self::Edit(_) | Self::Fence { .. } => None,
        }
    }
}

impl OpenSlot {
    /// A request for a slot with these tokens and up to `output_tokens_max` more; all other
    /// fields have their defaults.
    #[must_use]
    pub fn new(
        sequence: SequenceId,
        tokens: impl Into<Arc<[TokenId]>>,
        output_tokens_max: usize,
    ) -> Self {
        let tokens = tokens.into();
        Self {
            sequence,
            key: PrefixKey::default(),
            tokens_max: tokens.len().saturating_add(output_tokens_max),
            tokens,
            keep: None,
            restore_points: Vec::new(),
            turn_end: None,
            retention: 0,
            token_time: None,
            ignore_cache: false,
            reuse_max: None,
        }
    }

    /// Returns the tokens that it could start with if all of them were cached. At least one
    /// token is always computed, so that there are logits.
    #[must_use]
    pub fn reusable_tokens(&self) -> &[TokenId] {
        let most = self.tokens.len().saturating_sub(1);
        &self.tokens[..self.reuse_max.unwrap_or(most).min(most)]
    }
}
