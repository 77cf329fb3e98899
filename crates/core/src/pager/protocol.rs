//! What the pager is told, and what follows.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::SaltDigest;
use crate::lease::Lease;
use crate::pager::Label;
use crate::protocol::SegmentSize;
use crate::{CopyId, SegmentId, SequenceId, TokenId};

/// What the pager is told.
#[derive(Debug)]
pub enum Message {
    /// A segment on the device may have to go soon. Answered with [`PagerEvent::Offloaded`],
    /// [`PagerEvent::Export`] or [`PagerEvent::Rejected`].
    OffloadCandidate(OffloadCandidate),
    /// A sequence begins: what of its tokens is there beside the device? Answered with
    /// [`PagerEvent::Hit`], [`PagerEvent::Retry`] or [`PagerEvent::Miss`].
    Lookup(Lookup),
    /// What was found for the sequence is to come; there is room for it. Answered with
    /// [`PagerEvent::Loaded`] or [`PagerEvent::Retry`].
    Load {
        /// The sequence.
        sequence: SequenceId,
    },
    /// What was found for the sequence is of no use any more. Always answered with
    /// [`PagerEvent::Cancelled`], also where it has [loaded](PagerEvent::Loaded) before.
    Cancel {
        /// The sequence.
        sequence: SequenceId,
    },
    /// A segment that was to be handed over will not be. Not answered.
    CancelExport {
        /// The copy that it was to become.
        copy: CopyId,
    },
    /// Parcels that have arrived are of no use. Answered with [`PagerEvent::Cancelled`].
    Discard {
        /// The sequence that they were for.
        sequence: SequenceId,
        /// Their copies.
        copies: Vec<CopyId>,
    },
    /// A sequence will begin: what of its tokens is on the disk is brought to the host
    /// when nothing else is to be done.
    Prefetch {
        /// With whom it shares.
        salt: SaltDigest,
        /// Its tokens.
        tokens: Arc<[TokenId]>,
        /// How many of them are on the device.
        resident: usize,
    },
    /// All copies are given up that nobody is waiting for.
    Clear {
        /// Of this salt only, if any.
        salt: Option<SaltDigest>,
    },
    /// These copies are given up, unless somebody is waiting for them: the live sequences that
    /// they are of are over. Not answered, but for [`PagerEvent::Lost`].
    GiveUp {
        /// The copies; those that are not there are gone already.
        copies: Vec<CopyId>,
    },
    /// The device has lost everything: what was to be handed over by it will not come.
    Reset,
    /// A copy thread has done a job.
    Done(Done),
    /// Time has passed.
    TimePassed,
}

/// A segment that may have to go soon.
#[derive(Debug)]
pub struct OffloadCandidate {
    /// The segment. It is not evicted while the lease lives.
    pub lease: Lease,
    /// With whom it is shared.
    pub salt: SaltDigest,
    /// Its sequence's tokens, from the first one to its end.
    pub tokens: Arc<[TokenId]>,
    /// Its size.
    pub segment_size: SegmentSize,
    /// How dearly it is kept; what has the lowest priority goes first.
    pub priority: u8,
}

/// A sequence that begins.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The sequence.
    pub sequence: SequenceId,
    /// With whom it shares.
    pub salt: SaltDigest,
    /// Those of its tokens that may come out of the cache.
    pub tokens: Arc<[TokenId]>,
    /// The sizes of the segments on the device that it would begin with.
    pub resident: Vec<SegmentSize>,
    /// Tokens that the trie knows: more, where the model cannot resume after them.
    pub seen_tokens: usize,
    /// How long it takes to compute a token of it, as far as is known.
    pub token_time: Option<Duration>,
}

/// A part of what a sequence wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// The copy.
    pub copy: CopyId,
    /// Where its range begins.
    pub start: usize,
    /// Its size.
    pub segment_size: SegmentSize,
    /// Tokens from the sequence's first one to the last that this serves.
    pub end: usize,
}

/// What the cache is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PagerEvent {
    /// There is a copy of the segment.
    Offloaded {
        /// The segment.
        segment: SegmentId,
        /// The copy.
        copy: CopyId,
    },
    /// A copy is nowhere any more.
    Lost {
        /// The copy.
        copy: CopyId,
    },
    /// The segment is to be handed over under this name.
    Export {
        /// The segment.
        segment: SegmentId,
        /// The copy's name.
        copy: CopyId,
    },
    /// There will be no copy of the segment now.
    Rejected {
        /// The segment.
        segment: SegmentId,
    },
    /// So much of what the sequence wants is there; it comes when it is fetched.
    Hit {
        /// The sequence.
        sequence: SequenceId,
        /// In order; each begins no later than the one before it ends.
        copy_ranges: Vec<CopyRange>,
    },
    /// There is nothing for the sequence, or it is faster to compute it.
    Miss {
        /// The sequence.
        sequence: SequenceId,
        /// Of its tokens, those that copies hold.
        copied_tokens: usize,
    },
    /// The sequence is to look again: somebody else has fetched what it wants, or what
    /// was found could not be brought.
    Retry {
        /// The sequence.
        sequence: SequenceId,
    },
    /// What was found for the sequence is where the device can take it in.
    Loaded {
        /// The sequence.
        sequence: SequenceId,
        /// The copies, of each of which there is a parcel for it.
        copies: Vec<CopyId>,
    },
    /// Nothing of what was on its way to the sequence is left on the device.
    Cancelled {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The pager has heard that the device has lost everything: what it has said before
    /// is about things that are no more.
    Reset,
    /// The pager is gone.
    Gone,
}

impl PagerEvent {
    /// The sequence that it is about, if about one.
    #[must_use]
    pub fn concerns(&self) -> Option<SequenceId> {
        match self {
            Self::Hit { sequence, .. }
            | Self::Miss { sequence, .. }
            | Self::Retry { sequence }
            | Self::Loaded { sequence, .. }
            | Self::Cancelled { sequence } => Some(*sequence),
            Self::Offloaded { .. }
            | Self::Lost { .. }
            | Self::Export { .. }
            | Self::Rejected { .. }
            | Self::Reset
            | Self::Gone => None,
        }
    }

    pub(super) fn retry(sequence: SequenceId) -> Self {
        Self::Retry { sequence }
    }

    pub(super) fn miss(sequence: SequenceId) -> Self {
        Self::Miss {
            sequence,
            copied_tokens: 0,
        }
    }

    pub(super) fn cancelled(sequence: SequenceId) -> Self {
        Self::Cancelled { sequence }
    }
}

/// What a copy thread is to do.
#[derive(Clone, Debug)]
pub struct Job {
    /// The copy.
    pub copy: CopyId,
    /// What it is.
    pub label: Arc<Label>,
    /// What to do.
    pub task: Task,
}

/// What is done with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// What the device hands over is packed into host memory.
    Pack,
    /// From host memory a parcel is made for the device.
    Unpack,
    /// From the disk to host memory.
    Read,
    /// From host memory to the disk.
    Write,
    /// Its file is removed.
    Remove,
}

/// The end of a job.
#[derive(Clone, Debug)]
pub struct Done {
    /// The copy.
    pub copy: CopyId,
    /// What was to be done.
    pub task: Task,
    /// Why it was not.
    pub result: Result<(), JobError>,
    /// How long it took.
    pub took: Duration,
    /// Bytes of the copy that were moved.
    pub bytes: usize,
}

/// Why a job was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct JobError {
    /// What went wrong.
    pub what: String,
    /// Whether the copy is damaged or gone, and trying again is of no use.
    pub is_lost: bool,
}

/// What follows from a message.
#[derive(Clone, Debug)]
pub enum Effect {
    /// For the cache.
    Notify(PagerEvent),
    /// For a copy thread.
    Do(Job),
    /// A copy's host memory is given back; if it is still to be packed, it is not.
    Forget(CopyId),
    /// All parcels that wait for the device are thrown away.
    DiscardAll,
    /// A parcel of the copy is thrown away.
    Discard(CopyId),
}

/// Which thread does a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyQueue {
    /// Between device and host.
    Memory,
    /// Between host and disk.
    Disk,
}

impl Task {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Pack,
        Self::Unpack,
        Self::Read,
        Self::Write,
        Self::Remove,
    ];

    /// Its name among the labels of metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Unpack => "unpack",
            Self::Read => "read",
            Self::Write => "write",
            Self::Remove => "remove",
        }
    }

    /// Who does it.
    #[must_use]
    pub fn copy_queue(self) -> CopyQueue {
        match self {
            Self::Pack | Self::Unpack => CopyQueue::Memory,
            Self::Read | Self::Write | Self::Remove => CopyQueue::Disk,
        }
    }
}
