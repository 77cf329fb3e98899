//! Edits of the state on the device.

use std::ops::Range;

use crate::{CopyId, SegmentId, SlotId};

/// An edit of the state on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Opens a new slot on a path of sealed segments, with an empty tail.
    Open {
        /// The slot.
        slot: SlotId,
        /// Its path, from the first token on.
        path: Vec<SegmentId>,
        /// Tokens that its tail is expected to grow to.
        expected_tokens: usize,
    },
    /// Seals the first tokens of a slot's tail into a segment at the end of its path.
    Seal {
        /// The slot.
        slot: SlotId,
        /// Number of tokens.
        tokens: usize,
        /// Name of the new segment.
        segment: SegmentId,
    },
    /// Replaces the first tokens of a slot's tail by sealed segments that hold the same tokens,
    /// at the end of its path.
    ShareExisting {
        /// The slot.
        slot: SlotId,
        /// Number of tokens.
        tokens: usize,
        /// The segments, in order.
        path: Vec<SegmentId>,
    },
    /// Splits a segment into two, in every path that contains it.
    Split {
        /// The segment, which no longer exists afterwards.
        segment: SegmentId,
        /// Tokens in the upper part.
        at: usize,
        /// Name of the upper part.
        upper: SegmentId,
        /// Name of the lower part.
        lower: SegmentId,
    },
    /// Merges two segments into one, in every path where `lower` follows `upper`.
    Merge {
        /// The upper part, which no longer exists afterwards.
        upper: SegmentId,
        /// The lower part, which no longer exists afterwards.
        lower: SegmentId,
        /// Name of the merged segment.
        segment: SegmentId,
    },
    /// Replaces a segment by another with the same tokens, in every path that contains it.
    Replace {
        /// The segment, which no longer exists afterwards.
        segment: SegmentId,
        /// The other segment, which holds at least the same state.
        by: SegmentId,
    },
    /// Replaces a segment by one of the same tokens without the state that a sequence would need
    /// to resume at its end, in every path that contains it. See `Model::strip`.
    Strip {
        /// The segment, which no longer exists afterwards.
        segment: SegmentId,
        /// A segment that follows it on a path and stays.
        below: SegmentId,
        /// Name of the new segment.
        stripped: SegmentId,
    },
    /// Removes tokens from a slot; the tokens after them move up. See `Model::remove`.
    Remove {
        /// The slot.
        slot: SlotId,
        /// Number of segments at the start of its path that stay. The state of the others moves
        /// to the tail.
        retained: usize,
        /// The tokens to remove, as offsets in the slot.
        removed: Range<usize>,
    },
    /// Closes the slot and seals a range of its tail in place: the segment keeps the tail's
    /// memory.
    SealInPlace {
        /// The slot.
        slot: SlotId,
        /// The tokens, as offsets in its tail.
        tokens: Range<usize>,
        /// Name of the new segment.
        segment: SegmentId,
    },
    /// Closes the slot and drops its tail.
    Close {
        /// The slot.
        slot: SlotId,
    },
    /// Drops the segment; paths that contain it keep it until they close.
    Drop {
        /// The segment.
        segment: SegmentId,
    },
    /// Exports the segment's state to the transfer queue. The segment stays.
    Export {
        /// The segment.
        segment: SegmentId,
        /// Name of the exported state.
        copy: CopyId,
    },
    /// Exports a copy of a range of a slot's tail to the transfer queue. The tail stays.
    CopyOut {
        /// The slot.
        slot: SlotId,
        /// The tokens, as offsets in its tail; all were computed by finished steps.
        tokens: Range<usize>,
        /// Name of the exported state.
        copy: CopyId,
    },
    /// Imports a detached state from the transfer queue.
    Import {
        /// Name of the detached state.
        copy: CopyId,
        /// Range of its tokens to import; the others are discarded.
        range: Range<usize>,
        /// Name of the new segment.
        segment: SegmentId,
    },
}
