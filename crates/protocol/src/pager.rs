//! The messages, events, jobs and effects of the pager.

use std::sync::Arc;
use std::time::Duration;

use super::{KeyDigest, Label, SaltDigest, SegmentSize};
use crate::lease::Lease;
use crate::{CopyId, SegmentId, SequenceId, TokenId};

/// A message to the pager.
#[derive(Debug)]
pub enum Message {
    /// A segment on the device may be evicted soon. Answered with [`PagerEvent::Offloaded`],
    /// [`PagerEvent::Export`] or [`PagerEvent::Rejected`].
    OffloadCandidate(OffloadCandidate),
    /// Asks for copies that continue the tokens of a sequence on the device. Answered with
    /// [`PagerEvent::Hit`], [`PagerEvent::Retry`] or [`PagerEvent::Miss`].
    Lookup(Lookup),
    /// Loads the copies found for the sequence; the cache has reserved memory for them.
    /// Answered with [`PagerEvent::Loaded`] or [`PagerEvent::Retry`].
    Load {
        /// The sequence.
        sequence: SequenceId,
    },
    /// Cancels the lookup or load of the sequence. Always answered with
    /// [`PagerEvent::Cancelled`], even if its copies have [loaded](PagerEvent::Loaded) before.
    Cancel {
        /// The sequence.
        sequence: SequenceId,
    },
    /// Cancels the export of a segment. Not answered.
    CancelExport {
        /// The copy that the segment was to become.
        copy: CopyId,
    },
    /// Discards detached states that have been loaded. Answered with [`PagerEvent::Cancelled`].
    Discard {
        /// The sequence that they were loaded for.
        sequence: SequenceId,
        /// Their copies.
        copies: Vec<CopyId>,
    },
    /// A sequence will start soon: copies of its tokens are read from the disk to host memory
    /// when there is no other work.
    Prefetch {
        /// Key of the sequence.
        key: KeyDigest,
        /// Tokens of the sequence.
        tokens: Arc<[TokenId]>,
        /// Number of its first tokens that are on the device.
        resident: usize,
    },
    /// Evicts all copies, those in use as soon as they are free.
    Clear {
        /// If given, only copies with this salt.
        salt: Option<SaltDigest>,
    },
    /// Evicts these copies, those in use as soon as they are free: the sequences that they
    /// belong to have ended. Not answered, apart from [`PagerEvent::Lost`].
    GiveUp {
        /// The copies; those that no longer exist are ignored.
        copies: Vec<CopyId>,
    },
    /// Other processes may need the state of these tokens: their copies are sent to the remote
    /// tier when there is no other work. Not answered.
    Share {
        /// Key of the tokens.
        key: KeyDigest,
        /// Tokens of a sequence, from the first one on.
        tokens: Arc<[TokenId]>,
    },
    /// Whether the cache follows where copies are: [`PagerEvent::Placed`]. Not answered: events from before
    /// it may come after it, and name copies that were evicted while nothing was followed.
    Follow {
        /// Whether it does.
        follows: bool,
    },
    /// The device has lost all state: pending exports will not come.
    Reset,
    /// A copy worker has ended a job.
    Done(Done),
    /// The remote tier has answered [`Effect::Ask`].
    Asked(Asked),
    /// Time has passed; see `PagerCore::wakes_at`.
    TimePassed,
}

/// A segment on the device that may be evicted soon.
#[derive(Debug)]
pub struct OffloadCandidate {
    /// Lease on the segment. The segment is not evicted while the lease lives.
    pub lease: Lease,
    /// Key of the segment.
    pub key: KeyDigest,
    /// Tokens of the sequence, from the first one to the end of the segment.
    pub tokens: Arc<[TokenId]>,
    /// Size of the copied segment.
    pub segment_size: SegmentSize,
    /// Retention; copies with the lowest retention are evicted first.
    pub retention: u8,
}

/// A lookup for a sequence that opens a slot.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The sequence.
    pub sequence: SequenceId,
    /// Key of the sequence.
    pub key: KeyDigest,
    /// The tokens that may come from the cache.
    pub tokens: Arc<[TokenId]>,
    /// Sizes of the segments on the device that hold the first of its tokens. The model may be
    /// unable to resume after the last of them.
    pub resident: Vec<SegmentSize>,
    /// Tokens that the trie knows: more than the resident ones if it knows a part of another
    /// segment that the model cannot resume after.
    pub seen_tokens: usize,
    /// Time to compute one token of the sequence, if known.
    pub token_time: Option<Duration>,
}

/// A copy that serves a range of a sequence's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// The copy.
    pub copy: CopyId,
    /// Offset of its first token.
    pub start: usize,
    /// Size of the copied segment.
    pub segment_size: SegmentSize,
    /// Tokens from the sequence's first one to the last that this copy serves.
    pub end: usize,
}

impl CopyRange {
    /// The size of the part that starts at offset `at` of the sequence.
    #[must_use]
    pub fn size_from(&self, at: usize) -> SegmentSize {
        let whole = self.segment_size;
        let until = self.end - self.start;
        let upper = if until < whole.tokens {
            whole.cut(until).0
        } else {
            whole
        };
        match at - self.start {
            0 => upper,
            from => upper.cut(from).1,
        }
    }
}

/// Where a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlace {
    /// The copy.
    pub copy: CopyId,
    /// Whether host memory holds it.
    pub in_host: bool,
    /// Whether the disk holds it.
    pub on_disk: bool,
}

/// An event that the pager sends to the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PagerEvent {
    /// The segment has a copy.
    Offloaded {
        /// The segment.
        segment: SegmentId,
        /// The copy.
        copy: CopyId,
    },
    /// A copy is in no tier any more.
    Lost {
        /// The copy.
        copy: CopyId,
    },
    /// The tiers that hold copies now. It comes while the cache [follows](Message::Follow)
    /// copies, after changes or uses, and after the other events about them.
    Placed {
        /// The copies that were changed or used.
        places: Vec<CopyPlace>,
    },
    /// The segment must be exported under this name.
    Export {
        /// The segment.
        segment: SegmentId,
        /// The copy's name.
        copy: CopyId,
    },
    /// The segment gets no copy now.
    Rejected {
        /// The segment.
        segment: SegmentId,
    },
    /// Copies exist for the sequence; they come when the cache asks to load them.
    Hit {
        /// The sequence.
        sequence: SequenceId,
        /// In order; each starts no later than the one before it ends.
        copy_ranges: Vec<CopyRange>,
    },
    /// No copy exists for the sequence, or computing its tokens is faster.
    Miss {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens from the sequence's first one to the last that a copy holds; 0 without
        /// copies.
        copied_tokens: usize,
    },
    /// The sequence must look up again: another sequence has loaded a copy that it needs, or a
    /// copy could not be loaded.
    Retry {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The copies for the sequence are ready for import by the device.
    Loaded {
        /// The sequence.
        sequence: SequenceId,
        /// The copies; each has a detached state in the transfer queue.
        copies: Vec<CopyId>,
    },
    /// No state loaded for the sequence is left on the device side.
    Cancelled {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The pager knows that the device has lost all state: earlier events no longer apply.
    Reset,
    /// The pager has stopped.
    Gone,
}

impl PagerEvent {
    /// The sequence that the event concerns, if any.
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
            | Self::Placed { .. }
            | Self::Export { .. }
            | Self::Rejected { .. }
            | Self::Reset
            | Self::Gone => None,
        }
    }

    /// The lookup of `sequence` has to be made again.
    #[must_use]
    pub fn retry(sequence: SequenceId) -> Self {
        Self::Retry { sequence }
    }

    /// The pager has no copy for `sequence`.
    #[must_use]
    pub fn miss(sequence: SequenceId) -> Self {
        Self::Miss {
            sequence,
            copied_tokens: 0,
        }
    }

    /// The lookup of `sequence` was cancelled.
    #[must_use]
    pub fn cancelled(sequence: SequenceId) -> Self {
        Self::Cancelled { sequence }
    }
}

impl Lookup {
    /// Returns the number of its tokens that whole segments on the device hold.
    #[must_use]
    pub fn resident_tokens(&self) -> usize {
        self.resident
            .iter()
            .map(|segment_size| segment_size.tokens)
            .sum()
    }
}

/// A question to the remote tier: which copies continue the tokens of a sequence?
#[derive(Clone, Debug)]
pub struct Ask {
    /// The sequence.
    pub sequence: SequenceId,
    /// Key of the sequence.
    pub key: KeyDigest,
    /// The tokens that may come from copies.
    pub tokens: Arc<[TokenId]>,
    /// Number of its first tokens that need no copy.
    pub from: usize,
}

/// The remote tier's answer to a question.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The question.
    pub ask: Ask,
    /// Labels of copies, in order: the first starts no later than `ask.from`, and each no later
    /// than the one before it ends. Empty if the tier has none.
    pub result: Result<Vec<Label>, JobError>,
    /// Time to the answer.
    pub took: Duration,
}

/// A job of a copy worker.
#[derive(Clone, Debug)]
pub struct Job {
    /// The copy.
    pub copy: CopyId,
    /// Label of the copy.
    pub label: Arc<Label>,
    /// The task.
    pub task: Task,
    /// For [`Task::Send`]: the labels of the copies that hold the tokens before those of the copy,
    /// in order. The remote tier has them.
    pub path: Vec<Arc<Label>>,
}

/// A movement of a copy between tiers, or the removal of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// Packs the exported segment into host memory.
    Pack,
    /// Unpacks host memory into a detached state for the device.
    Unpack,
    /// Reads the copy from the disk to host memory.
    Read,
    /// Writes the copy from host memory to the disk.
    Write,
    /// Removes the file of the copy.
    Remove,
    /// Reads the copy from the remote tier to host memory.
    Fetch,
    /// Writes the copy from host memory to the remote tier.
    Send,
}

/// A report that a job has ended.
#[derive(Clone, Debug)]
pub struct Done {
    /// The copy.
    pub copy: CopyId,
    /// The task.
    pub task: Task,
    /// Whether it succeeded, or why not.
    pub result: Result<(), JobError>,
    /// Duration of the job.
    pub took: Duration,
    /// Bytes of the copy that were copied.
    pub bytes: usize,
}

/// The error of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct JobError {
    /// Description of the error.
    pub what: String,
    /// Whether the copy is damaged or gone, so that a retry is of no use.
    pub is_lost: bool,
}

/// An effect of a message.
#[derive(Clone, Debug)]
pub enum Effect {
    /// An event for the cache.
    Notify(PagerEvent),
    /// A job for a copy worker.
    Do(Job),
    /// Frees a copy's host memory; cancels its packing if that is still pending.
    Forget(CopyId),
    /// Discards all detached states that wait for the device.
    DiscardAll,
    /// Discards a detached state of the copy.
    Discard(CopyId),
    /// Asks the remote tier. Answered with [`Message::Asked`].
    Ask(Ask),
}

/// The queue that a job goes to; each has a copy worker of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyQueue {
    /// Jobs between device and host.
    Memory,
    /// Jobs between host and disk.
    Disk,
    /// Jobs between host and the remote tier.
    Remote,
}

impl Task {
    /// All tasks.
    pub const ALL: [Self; 7] = [
        Self::Pack,
        Self::Unpack,
        Self::Read,
        Self::Write,
        Self::Remove,
        Self::Fetch,
        Self::Send,
    ];

    /// Value of the metric label of this task.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Unpack => "unpack",
            Self::Read => "read",
            Self::Write => "write",
            Self::Remove => "remove",
            Self::Fetch => "fetch",
            Self::Send => "send",
        }
    }

    /// Returns the queue of the copy worker that does this task.
    #[must_use]
    pub fn copy_queue(self) -> CopyQueue {
        match self {
            Self::Pack | Self::Unpack => CopyQueue::Memory,
            Self::Read | Self::Write | Self::Remove => CopyQueue::Disk,
            Self::Fetch | Self::Send => CopyQueue::Remote,
        }
    }
}
