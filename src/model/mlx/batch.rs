//! What a step's spans ask of every layer, worked out once.
//!
//! Rows are cut into *pieces*: runs of one span's rows that attend together. A
//! decoding span is one piece of one row. A prefill chunk is many: what a run of
//! rows can see ends with its own last row, and the shorter the runs, the less is
//! computed only to be masked.

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::Array;
use rustc_hash::FxHashMap;

use super::segment::MlxSegment;
use super::shape::Shape;
use super::tail::MlxTail;
use crate::TokenId;
use crate::model::{Segment, Span, Tail, Want};

use super::MlxModel;

/// Added to the score of a key that a query may not see.
const UNSEEN: f32 = -1e30;

/// A step's spans, packed.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) tokens: Vec<TokenId>,
    pub(super) positions: Vec<usize>,
    /// Rows of each span.
    pub(super) spans: Vec<Range<usize>>,
    pub(super) pieces: Vec<Piece>,
    /// Sealed segments that some row sees, each once.
    pub(super) segments: Vec<Shared>,
    /// Rows whose logits are wanted, ascending.
    pub(super) wanted: Vec<u32>,
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

/// A segment and the pieces that see it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) segment: Rc<MlxSegment>,
    pub(super) readers: Vec<Reader>,
}

/// One piece that sees a segment.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) piece: usize,
    /// As in [`Piece::mask`].
    pub(super) mask: Option<Array>,
}

impl Batch {
    /// Packs the spans. `rows_max` is the most rows of a piece.
    pub(super) fn new(shape: &Shape, spans: &[Span<'_, MlxModel>], rows_max: usize) -> Self {
        let mut batch = Self {
            tokens: Vec::new(),
            positions: Vec::new(),
            spans: Vec::with_capacity(spans.len()),
            pieces: Vec::new(),
            segments: Vec::new(),
            wanted: Vec::new(),
        };
        let mut masks = Masks::new(shape);
        let mut places = FxHashMap::default();
        for span in spans {
            batch.push(shape, span, rows_max, &mut masks, &mut places);
        }
        batch
    }

    fn push(
        &mut self,
        shape: &Shape,
        span: &Span<'_, MlxModel>,
        rows_max: usize,
        masks: &mut Masks,
        places: &mut FxHashMap<*const MlxSegment, usize>,
    ) {
        let path_tokens: usize = span.path.iter().map(|segment| segment.tokens()).sum();
        let start = path_tokens + span.tail.tokens();
        let first_row = self.tokens.len();
        let added = span.tokens.len();
        self.tokens.extend_from_slice(span.tokens);
        self.positions.extend(start..start + added);
        self.spans.push(first_row..first_row + added);
        match span.want {
            Want::Nothing => {}
            Want::Token(_) => self.wanted.push((first_row + added - 1) as u32),
            Want::Logits => self
                .wanted
                .extend(first_row as u32..(first_row + added) as u32),
        }
        for from in (0..added).step_by(rows_max) {
            let to = added.min(from + rows_max);
            let positions = start + from..start + to;
            let piece = self.pieces.len();
            self.read_path(shape, span.path, piece, &positions, masks, places);
            let (keys, mask) = tail_view(shape, span.tail, &positions, start, added, masks);
            self.pieces.push(Piece {
                span: self.spans.len() - 1,
                rows: first_row + from..first_row + to,
                keys,
                mask,
            });
        }
    }

    /// Notes which segments of `path` the rows at `positions` see.
    fn read_path(
        &mut self,
        shape: &Shape,
        path: &[Rc<MlxSegment>],
        piece: usize,
        positions: &Range<usize>,
        masks: &mut Masks,
        places: &mut FxHashMap<*const MlxSegment, usize>,
    ) {
        let mut end = 0;
        for segment in path {
            end += segment.tokens();
            let held = end - segment.kept()..end;
            if held.is_empty() || held.end <= first_seen(shape, positions.start) {
                continue;
            }
            let place = *places.entry(Rc::as_ptr(segment)).or_insert_with(|| {
                self.segments.push(Shared {
                    segment: Rc::clone(segment),
                    readers: Vec::new(),
                });
                self.segments.len() - 1
            });
            let mask = masks.between(positions, &held);
            self.segments[place].readers.push(Reader { piece, mask });
        }
    }

    /// Rows in all spans together.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }
}

/// What rows at `positions` see of their tail: keys, counted from the buffer's
/// start after the step's rows were written, and a mask where they differ in it.
fn tail_view(
    shape: &Shape,
    tail: &MlxTail,
    positions: &Range<usize>,
    start: usize,
    added: usize,
    masks: &mut Masks,
) -> (Range<usize>, Option<Array>) {
    let buffer_start = start - tail.staying(shape, added);
    let seen = buffer_start.max(first_seen(shape, positions.start))..positions.end;
    let mask = masks.between(positions, &seen);
    (seen.start - buffer_start..seen.end - buffer_start, mask)
}

/// The first position that a row at `position` sees.
fn first_seen(shape: &Shape, position: usize) -> usize {
    shape
        .window
        .map_or(0, |window| (position + 1).saturating_sub(window))
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
        let all_near = first_seen(self.shape, rows.end - 1) <= keys.start;
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
        let seen = first_seen(shape, row)..row + 1;
        for _ in 0..heads {
            mask.extend(keys.clone().map(|key| match seen.contains(&key) {
                true => 0.0,
                false => UNSEEN,
            }));
        }
    }
    Array::from_slice(&mask, &dims)
}
