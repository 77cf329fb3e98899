//! The keys that each run of rows sees, for attention that is composed of products.
//!
//! Rows are cut into *row blocks*: runs of one span's rows that attend together. A decoding
//! span is one row block of one row. A prefill chunk is cut into many: the keys that a run can
//! see end with its own last row, so shorter runs compute fewer scores that are masked
//! afterwards.

use std::ops::Range;

use mlx_rs::Array;
use rustc_hash::FxHashMap;

use super::Shape;
use crate::state::batch_rows::{KvBatch, KvSpan};

/// Score offset of a key that a query may not see.
const UNSEEN: f32 = -1e30;

/// A step's rows, cut into row blocks.
#[derive(Debug)]
pub(super) struct RowBlocks {
    pub(super) all: Vec<RowBlock>,
    /// For each of the batch's segments, the row blocks that see it, in the order of the rows.
    pub(super) readers: Vec<Vec<Reader>>,
}

/// Rows of one span that attend together.
#[derive(Debug)]
pub(super) struct RowBlock {
    pub(super) span: usize,
    pub(super) rows: Range<usize>,
    /// The keys of the span's own tail that it sees, from the buffer's start.
    pub(super) keys: Range<usize>,
    /// Added to the scores of those keys; `[rows * queries per key, keys]`.
    pub(super) mask: Option<Array>,
}

/// One row block that sees a segment.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) row_block: usize,
    /// As in [`RowBlock::mask`].
    pub(super) mask: Option<Array>,
}

impl RowBlocks {
    /// Cuts the batch's spans into row blocks of at most `rows_max` rows.
    pub(super) fn new(shape: &Shape, batch: &KvBatch, rows_max: usize) -> Self {
        let mut row_blocks = Self {
            all: Vec::new(),
            readers: batch.segments.iter().map(|_| Vec::new()).collect(),
        };
        let mut masks = Masks::new(shape);
        for (index, span) in batch.spans.iter().enumerate() {
            for from in (0..span.rows.len()).step_by(rows_max) {
                let to = span.rows.len().min(from.saturating_add(rows_max));
                row_blocks.push(index, span, from..to, &mut masks);
            }
        }
        row_blocks
    }

    fn push(&mut self, index: usize, span: &KvSpan, part: Range<usize>, masks: &mut Masks) {
        let positions = span.start + part.start..span.start + part.end;
        let first_seen = masks.shape.first_seen(positions.start);
        for seen in &span.path {
            if seen.positions.end > first_seen {
                self.readers[seen.segment].push(Reader {
                    row_block: self.all.len(),
                    mask: masks.between(&positions, &seen.positions),
                });
            }
        }
        let tail_start = span.tail_start();
        let seen = tail_start.max(first_seen)..positions.end;
        self.all.push(RowBlock {
            span: index,
            rows: span.rows.start + part.start..span.rows.start + part.end,
            mask: masks.between(&positions, &seen),
            keys: seen.start - tail_start..seen.end - tail_start,
        });
    }
}

/// Masks of one step. Equal masks are created once.
struct Masks<'a> {
    shape: &'a Shape,
    /// Keyed by rows, keys, and how far the first row is past the first key.
    made: FxHashMap<(usize, usize, usize), Array>,
}

impl<'a> Masks<'a> {
    fn new(shape: &'a Shape) -> Self {
        Self {
            shape,
            made: FxHashMap::default(),
        }
    }

    /// The mask that hides keys at positions `keys` from rows at positions `rows`. None where
    /// every row sees every key.
    fn between(&mut self, rows: &Range<usize>, keys: &Range<usize>) -> Option<Array> {
        let all_past = keys.end <= rows.start + 1;
        let all_near = self.shape.first_seen(rows.end - 1) <= keys.start;
        if all_past && all_near {
            return None;
        }
        let mask_key = (rows.len(), keys.len(), rows.start - keys.start);
        let shape = self.shape;
        let mask = self
            .made
            .entry(mask_key)
            .or_insert_with(|| mask(shape, rows.clone(), keys.clone()));
        Some(mask.clone())
    }
}

fn mask(shape: &Shape, rows: Range<usize>, keys: Range<usize>) -> Array {
    let heads = shape.queries_per_key() as usize;
    let dims = [(rows.len() * heads) as i32, keys.len() as i32];
    let mut mask = Vec::with_capacity(rows.len() * heads * keys.len());
    for row in rows {
        let seen = shape.first_seen(row)..row + 1;
        for _ in 0..heads {
            mask.extend(
                keys.clone()
                    .map(|key| if seen.contains(&key) { 0.0 } else { UNSEEN }),
            );
        }
    }
    Array::from_slice(&mask, &dims)
}
