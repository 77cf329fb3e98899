//! A step's spans, packed.

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use rustc_hash::FxHashMap;

use super::MlxModel;
use super::ops::concatenate;
use super::segment::MlxSegment;
use super::shape::Shape;
use motet_core::TokenId;
use motet_core::protocol::Want;
use motet_model::{Feed, Segment, Span, Tail};

/// The rows of all spans one after another, and what each span sees.
#[derive(Debug)]
pub(super) struct Batch {
    /// Tokens of all rows; where a row is fed, its token is on the device only.
    tokens: Vec<TokenId>,
    fed: Option<Fed>,
    pub(super) spans: Vec<SpanRows>,
    /// Sealed segments that some span sees, each once.
    pub(super) segments: Vec<Rc<MlxSegment>>,
    /// Rows whose logits are wanted, ascending.
    pub(super) wanted: Vec<u32>,
}

/// Rows whose tokens the step before draws.
#[derive(Debug)]
struct Fed {
    /// What it draws, `[draws]`.
    drawn: Array,
    /// Rows, and where in `drawn` their tokens are.
    places: Vec<(usize, usize)>,
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
            fed: None,
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

    /// The token of every row, `[rows]`.
    pub(super) fn token_array(&self) -> Result<Array, Exception> {
        let rows = self.rows();
        let known = Array::from_slice(&self.tokens, &[rows as i32]);
        let Some(Fed { drawn, places }) = &self.fed else {
            return Ok(known);
        };
        let mut indices: Vec<u32> = (0..rows as u32).collect();
        for (row, place) in places {
            indices[*row] = (rows + place) as u32;
        }
        let all = concatenate(vec![known, drawn.clone()], 0)?;
        take_axis(all, Array::from_slice(&indices, &[rows as i32]), 0)
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
        let rows = self.rows()..self.rows() + span.tokens.count();
        match span.want {
            Want::Nothing => {}
            Want::Token(_) => self.wanted.push(rows.end as u32 - 1),
            Want::Logits => self.wanted.extend(rows.start as u32..rows.end as u32),
        }
        match span.tokens {
            Feed::Known(tokens) => self.tokens.extend_from_slice(tokens),
            Feed::Drawn(flight, fed_by) => {
                self.tokens.push(0);
                let (drawn, place) = flight.token(fed_by);
                let fed = self.fed.get_or_insert_with(|| Fed {
                    drawn: drawn.clone(),
                    places: Vec::new(),
                });
                fed.places.push((rows.start, place));
            }
        }
        let path = self.path(shape.first_seen(start), span.path, places);
        self.spans.push(SpanRows {
            rows,
            start,
            path,
            held: span.tail.staying(shape, span.tokens.count()),
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
