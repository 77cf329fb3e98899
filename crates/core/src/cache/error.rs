//! What the cache refuses.

use std::ops::Range;

use crate::{PinId, SequenceId};

/// A message that makes no sense or cannot be met. The cache is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The sequence is not live.
    #[error("{0} is not live: it has not begun, or is over")]
    UnknownSequence(SequenceId),
    /// The sequence is live already.
    #[error("{0} is live already")]
    BegunTwice(SequenceId),
    /// A sequence or a pin without tokens.
    #[error("there are no tokens; expected at least one")]
    NoTokens,
    /// A fork beyond what its source has computed.
    #[error("cannot fork {sequence} after {at} tokens: it has state for {computed}")]
    BeyondSource {
        /// The source.
        sequence: SequenceId,
        /// Where the fork was to be.
        at: usize,
        /// Tokens of which the source has the state.
        computed: usize,
    },
    /// Tokens that the sequence does not have are to be removed.
    #[error(
        "cannot remove tokens {removed:?} of {sequence}: expected at least one, of the {computed} that it has state for"
    )]
    OutsideSequence {
        /// The sequence.
        sequence: SequenceId,
        /// Which tokens.
        removed: Range<usize>,
        /// Tokens of which it has the state.
        computed: usize,
    },
    /// The model's state cannot be moved; the sequence must begin anew.
    #[error("this model's state cannot be cut and moved: begin anew with the tokens that stay")]
    CannotMove,
    /// More is to be kept than the context holds.
    #[error("`keep` is {keep}; expected less than the context of {context_tokens} tokens")]
    KeepTooLarge {
        /// Tokens to keep.
        keep: usize,
        /// Tokens that a slot holds at most.
        context_tokens: usize,
    },
    /// Not all of a prefix that is to be pinned is cached.
    #[error(
        "only {cached_tokens} of {tokens} tokens to be pinned are cached; warm the prefix first"
    )]
    NotCached {
        /// Tokens to pin.
        tokens: usize,
        /// Of these, cached.
        cached_tokens: usize,
    },
    /// Pins would hold more than they may.
    #[error("pins would hold {bytes} bytes; `cache.pinned_bytes_max` is {bytes_max}")]
    PinTooLarge {
        /// What all pins would hold.
        bytes: usize,
        /// What they may.
        bytes_max: usize,
    },
    /// There is no such pin, or no longer.
    #[error("{0} is unknown, or has expired")]
    UnknownPin(PinId),
    /// A pin of that name exists.
    #[error("{0} exists already")]
    PinnedTwice(PinId),
    /// There is no room on the device now.
    #[error("no room for {bytes} bytes on the device now")]
    NoRoom {
        /// What was needed.
        bytes: usize,
    },
    /// The cache has failed, and is empty.
    #[error("the cache has failed, and begins anew")]
    Lost,
}
