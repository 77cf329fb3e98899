//! The errors of the cache.

use std::ops::Range;

use motet_protocol::{PinId, SequenceId};

/// A message that makes no sense or cannot be met. The cache is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The sequence is not live.
    #[error("{0} is not live: it has no slot yet, or has finished")]
    UnknownSequence(SequenceId),
    /// The sequence is live already.
    #[error("{0} is already live")]
    AlreadyOpen(SequenceId),
    /// A sequence or a pin without tokens.
    #[error("there are no tokens; expected at least one")]
    NoTokens,
    /// A fork past the computed tokens of its source.
    #[error("cannot fork {sequence} after {at} tokens: it has state for {computed}")]
    PastComputed {
        /// The source.
        sequence: SequenceId,
        /// The requested offset of the fork.
        at: usize,
        /// Tokens whose state it has.
        computed: usize,
    },
    /// The range to remove is empty or goes past the computed tokens.
    #[error(
        "cannot remove tokens {removed:?} of {sequence}: expected at least one, of the {computed} that it has state for"
    )]
    OutsideSequence {
        /// The sequence.
        sequence: SequenceId,
        /// The range to remove.
        removed: Range<usize>,
        /// Tokens whose state it has.
        computed: usize,
    },
    /// The model's state cannot be cut and moved there. The sequence must start over with the
    /// tokens that stay.
    #[error(
        "this model's state cannot be cut and moved: open a new slot with the tokens that stay"
    )]
    CannotMove,
    /// The tokens to keep do not fit into the context.
    #[error("`keep` is {keep}; expected less than the context of {context_tokens} tokens")]
    KeepTooLarge {
        /// Tokens to keep.
        keep: usize,
        /// Tokens that a slot holds at most, from its grant.
        context_tokens: usize,
    },
    /// Only a part of the prefix to be pinned is cached.
    #[error(
        "only {cached_tokens} of {tokens} tokens to be pinned are cached; warm the prefix first"
    )]
    NotCached {
        /// Tokens to pin.
        tokens: usize,
        /// The cached tokens among them.
        cached_tokens: usize,
    },
    /// Pins would hold more than their budget.
    #[error("pins would hold {bytes} bytes; `cache.pinned_bytes_max` is {bytes_max}")]
    PinTooLarge {
        /// Bytes that all pins would hold.
        bytes: usize,
        /// The budget in bytes.
        bytes_max: usize,
    },
    /// No such pin exists, or it has expired.
    #[error("{0} is unknown, or has expired")]
    UnknownPin(PinId),
    /// A pin with this id exists.
    #[error("{0} already exists")]
    PinnedTwice(PinId),
    /// The device has no memory for this now.
    #[error("the device has no memory for {bytes} bytes now")]
    OutOfMemory {
        /// Bytes that were needed.
        bytes: usize,
    },
    /// The cache has failed and is empty.
    #[error("the cache has failed and is being rebuilt empty")]
    Lost,
}
