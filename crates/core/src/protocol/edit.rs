//! Changes to what the device holds.

use std::ops::Range;

use crate::{CopyId, SegmentId, SlotId};

/// A change to what the device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A new slot on a path of sealed segments, with an empty tail.
    Open {
        /// The slot.
        slot: SlotId,
        /// Its path, from the first token on.
        path: Vec<SegmentId>,
        /// Tokens that its tail is expected to grow to.
        expected_tokens: usize,
    },
    /// The first tokens of a slot's tail become a segment at the end of its path.
    Seal {
        /// The slot.
        slot: SlotId,
        /// How many tokens.
        tokens: usize,
        /// The segment's name.
        segment: SegmentId,
    },
    /// The first tokens of a slot's tail are given up for sealed segments that hold the
    /// same, at the end of its path.
    ShareExisting {
        /// The slot.
        slot: SlotId,
        /// How many tokens.
        tokens: usize,
        /// The segments, in order.
        path: Vec<SegmentId>,
    },
    /// A segment becomes two, in every path that it is part of.
    Split {
        /// The segment, which is gone afterwards.
        segment: SegmentId,
        /// Tokens in the upper part.
        at: usize,
        /// The upper part's name.
        upper: SegmentId,
        /// The lower part's name.
        lower: SegmentId,
    },
    /// Two segments become one, in every path that `lower` follows `upper` in.
    Merge {
        /// The upper part, which is gone afterwards.
        upper: SegmentId,
        /// The lower part, which is gone afterwards.
        lower: SegmentId,
        /// The whole's name.
        segment: SegmentId,
    },
    /// A segment gives way to another of the same tokens, in every path that it is part
    /// of.
    Replace {
        /// The segment, which is gone afterwards.
        segment: SegmentId,
        /// The other, which holds all that it does.
        by: SegmentId,
    },
    /// Tokens are taken out of a slot, and what follows them moves in: see
    /// `Model::remove`.
    Remove {
        /// The slot.
        slot: SlotId,
        /// Segments at the start of its path that stay; what the others held is the
        /// tail's from now on.
        retained: usize,
        /// The tokens, as offsets in the slot.
        removed: Range<usize>,
    },
    /// The slot is given up, and some of its tail's tokens become a segment, in the tail's
    /// own memory.
    SealInPlace {
        /// The slot.
        slot: SlotId,
        /// The tokens, as offsets in its tail.
        tokens: Range<usize>,
        /// The segment's name.
        segment: SegmentId,
    },
    /// The slot and its tail are given up.
    Close {
        /// The slot.
        slot: SlotId,
    },
    /// The segment is given up; paths that it is part of keep it until they close.
    Drop {
        /// The segment.
        segment: SegmentId,
    },
    /// The segment's state is handed over at the dock. It stays.
    Export {
        /// The segment.
        segment: SegmentId,
        /// The name under which it is handed over.
        copy: CopyId,
    },
    /// A copy of some of a slot's tail is handed over at the dock. The tail stays.
    CopyOut {
        /// The slot.
        slot: SlotId,
        /// The tokens, as offsets in its tail; all were computed by steps that have landed.
        tokens: Range<usize>,
        /// The name under which it is handed over.
        copy: CopyId,
    },
    /// What waits at the dock is taken in.
    Import {
        /// The name under which it waits.
        copy: CopyId,
        /// Which of its tokens; the others are given up.
        range: Range<usize>,
        /// The segment's name.
        segment: SegmentId,
    },
}
