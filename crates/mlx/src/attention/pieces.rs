//! What each run of rows sees, for attention that is composed of products.
//!
//! Rows are cut into *pieces*: runs of one span's rows that attend together. A
//! decoding span is one piece of one row. A prefill chunk is many: what a run of
//! rows can see ends with its own last row, and the shorter the runs, the less is
//! computed only to be masked.

use std::ops::Range;

use mlx_rs::Array;
use rustc_hash::FxHashMap;

use crate::batch::{Batch, SpanRows};
use crate::shape::Shape;

/// Added to the score of a key that a query may not see.
const UNSEEN: f32 = -1e30;

/// A step's rows, cut into pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) all: Vec<Piece>,
    /// For each of the batch's segments, the pieces that see it, in their order.
    pub(super) readers: Vec<Vec<Reader>>,
}

/// Rows of one span that attend together.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) span: usize,
    pub(super) rows: Range<usize>,
    /// What it sees of its own tail, from the buffer's start.
    pub(super) keys: Range<usize>,
    /// Added to the scores of those keys; `[rows * queries per key, keys]`.
    pub(super) mask: Option<Array>,
}

/// One piece that sees a segment.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) piece: usize,
    /// As in [`Piece::mask`].
    pub(super) mask: Option<Array>,
}

impl Pieces {
    /// Cuts the batch's spans into pieces of at most `rows_max` rows.
    pub(super) fn new(shape: &Shape, batch: &Batch, rows_max: usize) -> Self {
        let mut pieces = Self {
            all: Vec::new(),
            readers: batch.segments.iter().map(|_| Vec::new()).collect(),
        };
        let mut masks = Masks::new(shape);
        for (index, span) in batch.spans.iter().enumerate() {
            for from in (0..span.rows.len()).step_by(rows_max) {
                let to = span.rows.len().min(from.saturating_add(rows_max));
                pieces.push(index, span, from..to, &mut masks);
            }
        }
        pieces
    }

    fn push(&mut self, index: usize, span: &SpanRows, part: Range<usize>, masks: &mut Masks) {
        let positions = span.start + part.start..span.start + part.end;
        let first_seen = masks.shape.first_seen(positions.start);
        for seen in &span.path {
            if seen.positions.end > first_seen {
                self.readers[seen.segment].push(Reader {
                    piece: self.all.len(),
                    mask: masks.between(&positions, &seen.positions),
                });
            }
        }
        let tail_start = span.tail_start();
        let seen = tail_start.max(first_seen)..positions.end;
        self.all.push(Piece {
            span: index,
            rows: span.rows.start + part.start..span.rows.start + part.end,
            mask: masks.between(&positions, &seen),
            keys: seen.start - tail_start..seen.end - tail_start,
        });
    }
}

/// Masks of one step; equal ones are made once.
struct Masks<'a> {
    shape: &'a Shape,
    /// By rows, keys, and how far the first row is past the first key.
    made: FxHashMap<(usize, usize, usize), Array>,
}

impl<'a> Masks<'a> {
    fn new(shape: &'a Shape) -> Self {
        Self {
            shape,
            made: FxHashMap::default(),
        }
    }

    /// What hides keys at positions `keys` from rows at positions `rows`; none
    /// where every row sees every key.
    fn between(&mut self, rows: &Range<usize>, keys: &Range<usize>) -> Option<Array> {
        let all_past = keys.end <= rows.start + 1;
        let all_near = self.shape.first_seen(rows.end - 1) <= keys.start;
        if all_past && all_near {
            return None;
        }
        let place = (rows.len(), keys.len(), rows.start - keys.start);
        let shape = self.shape;
        let mask = self
            .made
            .entry(place)
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
            mask.extend(keys.clone().map(|key| match seen.contains(&key) {
                true => 0.0,
                false => UNSEEN,
            }));
        }
    }
    Array::from_slice(&mask, &dims)
}
