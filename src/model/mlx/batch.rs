//! A step's spans, packed.

use std::ops::Range;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::MlxModel;
use super::segment::MlxSegment;
use super::shape::Shape;
use crate::TokenId;
use crate::model::{Segment, Span, Tail, Want};

/// The rows of all spans one after another, and what each span sees.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) tokens: Vec<TokenId>,
    pub(super) spans: Vec<SpanRows>,
    /// Sealed segments that some span sees, each once.
    pub(super) segments: Vec<Rc<MlxSegment>>,
    /// Rows whose logits are wanted, ascending.
    pub(super) wanted: Vec<u32>,
}

/// One span's place in a batch.
#[derive(Debug)]
pub(super) struct SpanRows {
    pub(super) rows: Range<usize>,
    /// Position of its first row.
    pub(super) start: usize,
    /// Segments that it sees, in the order of its path.
    pub(super) path: Vec<Seen>,
    /// Tokens of the tail that come before its rows in the tail's buffers.
    pub(super) held: usize,
}

/// A segment as a span sees it.
#[derive(Debug)]
pub(super) struct Seen {
    /// Index among the batch's segments.
    pub(super) segment: usize,
    /// Positions of the tokens whose state it keeps.
    pub(super) positions: Range<usize>,
}

impl Batch {
    pub(super) fn new(shape: &Shape, spans: &[Span<'_, MlxModel>]) -> Self {
        let mut batch = Self {
            tokens: Vec::new(),
            spans: Vec::with_capacity(spans.len()),
            segments: Vec::new(),
            wanted: Vec::new(),
        };
        let mut places = FxHashMap::default();
        for span in spans {
            batch.push(shape, span, &mut places);
        }
        batch
    }

    /// Rows in all spans together.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The position of every row.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        let spans = self.spans.iter();
        spans.flat_map(|span| span.start..span.start + span.rows.len())
    }

    fn push(
        &mut self,
        shape: &Shape,
        span: &Span<'_, MlxModel>,
        places: &mut FxHashMap<*const MlxSegment, usize>,
    ) {
        let path_tokens: usize = span.path.iter().map(|segment| segment.tokens()).sum();
        let start = path_tokens + span.tail.tokens();
        let rows = self.rows()..self.rows() + span.tokens.len();
        match span.want {
            Want::Nothing => {}
            Want::Token(_) => self.wanted.push(rows.end as u32 - 1),
            Want::Logits => self.wanted.extend(rows.start as u32..rows.end as u32),
        }
        self.tokens.extend_from_slice(span.tokens);
        let path = self.path(shape.first_seen(start), span.path, places);
        self.spans.push(SpanRows {
            rows,
            start,
            path,
            held: span.tail.staying(shape, span.tokens.len()),
        });
    }

    /// The segments of `path` that keep a position from `first_seen` on.
    fn path(
        &mut self,
        first_seen: usize,
        path: &[Rc<MlxSegment>],
        places: &mut FxHashMap<*const MlxSegment, usize>,
    ) -> Vec<Seen> {
        let mut end = 0;
        let mut seen = Vec::with_capacity(path.len());
        for segment in path {
            end += segment.tokens();
            if segment.kept() == 0 || end <= first_seen {
                continue;
            }
            let segments = &mut self.segments;
            seen.push(Seen {
                segment: *places.entry(Rc::as_ptr(segment)).or_insert_with(|| {
                    segments.push(Rc::clone(segment));
                    segments.len() - 1
                }),
                positions: end - segment.kept()..end,
            });
        }
        seen
    }
}

impl SpanRows {
    /// Position of the first token in the tail's buffers.
    pub(super) fn tail_start(&self) -> usize {
        self.start - self.held
    }
}
