//! What the cache is told, and what follows.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::miss::Miss;
use super::salt::Salt;
use crate::protocol::Edit;
use crate::recovery::the_only;
use crate::{PinId, SegmentId, SequenceId, SlotId, TokenId, pager};

/// Sequences that one [`Message::Look`] is answered for: each costs a walk along all of
/// its tokens that are cached, and whoever asks for a slot waits that long.
pub const LOOKS_MAX: usize = 16;

/// What the scheduler tells the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A sequence wants a slot.
    Begin(Begin),
    /// A live sequence is to hold more tokens than it was granted, by
    /// [`Begin::tokens_max`] or since: answered with [`Effect::Grown`] or
    /// [`Effect::NoGrowth`]. What it has been granted stays granted.
    Grow {
        /// The sequence.
        sequence: SequenceId,
        /// How many tokens its slot is to hold at most. Where that is no more than what
        /// it was granted, the answer is what it was granted.
        tokens_max: usize,
    },
    /// How much of what is still to begin is cached? Answered with one
    /// [`Effect::Resident`] each, in order. Nothing changes by being looked at: it is no
    /// use of what is cached, and nobody learns from it.
    Look {
        /// The sequences; of more than [`LOOKS_MAX`], the first are answered for.
        sequences: Vec<Look>,
    },
    /// A sequence that was given a [`Effect::Checkpoint`] has state for this many
    /// tokens now, at least as many as were asked for.
    Reached {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of which its slot holds the state.
        computed: usize,
    },
    /// What a sequence has computed is to be shared from now on, up to `at`: a fork
    /// begins there. The sequence goes on.
    Share {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of which its slot holds the state.
        computed: usize,
        /// Tokens after those that the cache knows: those of [`Begin::tokens`], or what
        /// a truncation has left of them and what followed.
        generated: Vec<TokenId>,
        /// How many of its tokens.
        at: usize,
    },
    /// A live sequence has computed so much that it is to be copied to host memory, as far as
    /// it is in no copy. It goes on meanwhile. One that is not live is over already, which is
    /// no error; and without a pager nothing happens.
    BackUp {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of which its slot holds the state, whatever it has computed since.
        computed: usize,
        /// Tokens after those that the cache knows: those of [`Begin::tokens`], or what
        /// a truncation has left of them and what followed.
        generated: Vec<TokenId>,
    },
    /// Tokens are taken out of a slot, and those that follow move up: a truncation
    /// where none follow, else a shift.
    Remove {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of which its slot holds the state.
        computed: usize,
        /// Tokens after those that the cache knows: those of [`Begin::tokens`], or what
        /// a truncation has left of them and what followed.
        generated: Vec<TokenId>,
        /// Which of its tokens.
        removed: Range<usize>,
    },
    /// A sequence is over, and another goes on in its slot.
    Rewind(Rewind),
    /// A sequence is over; what it computed may serve others. One that is not live is
    /// over already: that is no error, and neither is it for [`Self::Grow`],
    /// [`Self::Reached`] and [`Self::Discard`].
    Close {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of which its slot holds the state.
        computed: usize,
        /// Tokens after those that the cache knows: those of [`Begin::tokens`], or what
        /// a truncation has left of them and what followed.
        generated: Vec<TokenId>,
    },
    /// A sequence is over, and its tail is unusable.
    Discard {
        /// The sequence.
        sequence: SequenceId,
    },
    /// A cached prefix is to be kept.
    Pin(Pin),
    /// A pin is over.
    Unpin {
        /// The pin.
        pin: PinId,
    },
    /// Everything that nobody uses is evicted.
    Clear {
        /// Of this salt only, if any.
        salt: Option<Salt>,
    },
    /// What is cached and in no copy is offered to the pager now, also what is held: see
    /// [`CacheCore::is_flushing`](super::CacheCore::is_flushing).
    Flush(Flush),
    /// The pager has news.
    Paged(pager::Told),
    /// The device has carried out what it was to before [`Effect::Clears`].
    Cleared {
        /// Which of them.
        number: u64,
    },
    /// The device has lost these segments: edits have failed that were to make them.
    Lost {
        /// The segments.
        segments: Vec<SegmentId>,
    },
    /// The device has lost everything.
    Reset,
}

/// A sequence that goes on in the slot of one that is over. Where the slot is not there any
/// more, or cannot be cut there, the answer is [`Effect::Lost`], and what was computed may serve
/// others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// The sequence that is over.
    pub from: SequenceId,
    /// Tokens of which its slot holds the state.
    pub computed: usize,
    /// Its tokens after those that the cache knows.
    pub generated: Vec<TokenId>,
    /// The one that goes on.
    pub to: SequenceId,
    /// The slot.
    pub slot: SlotId,
    /// How many tokens of the slot stay; what was computed after them is given up.
    pub kept: usize,
    /// Its tokens so far: more than stay, and no more than the slot was granted.
    pub tokens: Arc<[TokenId]>,
    /// How dearly its tokens are kept.
    pub priority: u8,
}

/// A sequence that wants a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The sequence.
    pub sequence: SequenceId,
    /// With whom it shares.
    pub salt: Salt,
    /// Its tokens so far; at least one.
    pub tokens: Arc<[TokenId]>,
    /// How many tokens its slot is granted: it holds no more unless a [`Message::Grow`]
    /// is granted. All of `tokens`, as a rule, and some to go on with; what of them lies
    /// beyond the grant is neither looked for in the cache nor restorable.
    pub tokens_max: usize,
    /// Set when its slot will be shifted: the tokens at the beginning that then stay,
    /// fewer than it is granted here.
    pub keep: Option<usize>,
    /// Offsets at which it is to be restorable, besides those that the cache chooses.
    pub restore_points: Vec<usize>,
    /// How dearly its tokens are kept; what has the lowest priority goes first.
    pub priority: u8,
    /// How long it takes to compute a token of it, as far as is known: what is in no
    /// copy, or slower to bring, is computed.
    pub token_time: Option<Duration>,
    /// Whether it begins with nothing, whatever is cached of it. All that it holds is one
    /// tail then, which takes less of the device than a path of segments, each of whole
    /// blocks, and a tail.
    pub afresh: bool,
}

/// A sequence that has not begun, of which somebody wants to know how much is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The sequence, of which the cache need not have heard.
    pub sequence: SequenceId,
    /// With whom it will share.
    pub salt: Salt,
    /// Its tokens so far.
    pub tokens: Arc<[TokenId]>,
}

/// How much is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// About so many bytes of segments, and one segment at least: those first that are kept
    /// most dearly, and of these what was used last.
    pub bytes_max: usize,
    /// Whether what the pager had no room for is offered again.
    pub retries: bool,
}

/// A cached prefix that is to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The pin.
    pub pin: PinId,
    /// Under which salt the prefix is cached.
    pub salt: Salt,
    /// The prefix, all of it cached; at least one token.
    pub tokens: Arc<[TokenId]>,
    /// For how long; for good, if none.
    pub time_to_live: Option<Duration>,
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
        /// Why there are no more of them, where there might have been.
        miss: Option<Miss>,
    },
    /// The sequence begins when another has computed what both share.
    Waits {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that it will not have to compute then.
        tokens: usize,
    },
    /// The sequence does not fit now; begin it again when another has ended.
    NoRoom {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The slot of the sequence may hold this many tokens from now on, and room for them
    /// is reserved.
    Grown {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens, at least as many as it asked for.
        tokens_max: usize,
    },
    /// There is no room for the slot to grow, not even without what nobody holds. It
    /// keeps what it was granted, and nothing was evicted.
    NoGrowth {
        /// The sequence.
        sequence: SequenceId,
    },
    /// So much of a sequence is cached.
    Resident {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that need not be computed if it began now; less than all. Fewer may
        /// serve it where there is no room to cut a segment, or for what is cached
        /// beside its own slot.
        tokens: usize,
    },
    /// Tell me with [`Message::Reached`] when `sequence` has state for `at` tokens,
    /// and end a prefill chunk there.
    Checkpoint {
        /// The sequence that computes what another waits for.
        sequence: SequenceId,
        /// Tokens.
        at: usize,
    },
    /// Part of the path of the sequence's slot was lost, and the slot is closed. What is said
    /// of the sequence is left alone until it is closed or discarded.
    Lost {
        /// The sequence.
        sequence: SequenceId,
        /// The slot.
        slot: SlotId,
    },
    /// To be carried out by the device before its next step, in order.
    Edit(Edit),
    /// Tell me with [`Message::Cleared`] when the edits before this are carried out: then
    /// there is the memory that they give back.
    Clears {
        /// Which of them, counted from the first.
        number: u64,
    },
}

impl Message {
    /// Whether it is about what is kept, and about no sequence: what callers may ask.
    #[must_use]
    pub fn is_upkeep(&self) -> bool {
        matches!(
            self,
            Self::Pin(_) | Self::Unpin { .. } | Self::Clear { .. } | Self::Flush(_)
        )
    }
}

impl Message {
    /// The sequence that it is about, if it is about one and no other: whom to suspect when
    /// the cache panics at it.
    #[must_use]
    pub fn concerns(&self) -> Option<SequenceId> {
        match self {
            Self::Begin(begin) => Some(begin.sequence),
            Self::Grow { sequence, .. }
            | Self::Reached { sequence, .. }
            | Self::Share { sequence, .. }
            | Self::BackUp { sequence, .. }
            | Self::Rewind(Rewind { to: sequence, .. })
            | Self::Remove { sequence, .. }
            | Self::Close { sequence, .. }
            | Self::Discard { sequence } => Some(*sequence),
            Self::Look { sequences } => the_only(sequences.iter().map(|look| Some(look.sequence))),
            Self::Paged(told) => told.concerns(),
            Self::Pin(_)
            | Self::Unpin { .. }
            | Self::Clear { .. }
            | Self::Flush(_)
            | Self::Cleared { .. }
            | Self::Lost { .. }
            | Self::Reset => None,
        }
    }
}

impl Effect {
    /// The sequence that it is about, if about one.
    pub(crate) fn concerns(&self) -> Option<SequenceId> {
        match self {
            Self::Begun { sequence, .. }
            | Self::Waits { sequence, .. }
            | Self::NoRoom { sequence }
            | Self::Grown { sequence, .. }
            | Self::NoGrowth { sequence }
            | Self::Resident { sequence, .. }
            | Self::Checkpoint { sequence, .. }
            | Self::Lost { sequence, .. } => Some(*sequence),
            Self::Edit(_) | Self::Clears { .. } => None,
        }
    }
}

impl Begin {
    /// A sequence of these tokens that may add `output_tokens_max`, with nothing
    /// special about it.
    #[must_use]
    pub fn new(
        sequence: SequenceId,
        tokens: impl Into<Arc<[TokenId]>>,
        output_tokens_max: usize,
    ) -> Self {
        let tokens = tokens.into();
        Self {
            sequence,
            salt: Salt::default(),
            tokens_max: tokens.len().saturating_add(output_tokens_max),
            tokens,
            keep: None,
            restore_points: Vec::new(),
            priority: 0,
            token_time: None,
            afresh: false,
        }
    }
}
