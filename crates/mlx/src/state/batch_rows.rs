//! The rows of a step, and what each of its spans sees of cached state.

use std::ops::Range;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::groups::{KvShape, LayerGroups};
use super::layer_state::State;
use super::segment::{KvPart, MlxSegment};
use super::tail::MlxTail;
use motet_model::{Model, Segment, Span, Tail};

/// The rows of all spans of a step, one span after another.
#[derive(Debug)]
pub(crate) struct BatchRows {
    pub(crate) spans: Vec<SpanRows>,
    /// The view of each group with keys and values.
    pub(crate) kv: Vec<KvBatch>,
}

/// One span's rows in a batch.
#[derive(Debug)]
pub(crate) struct SpanRows {
    pub(crate) rows: Range<usize>,
    /// Position of the span's first row.
    pub(crate) start: usize,
}

/// A batch's view of one group with keys and values.
#[derive(Debug)]
pub(crate) struct KvBatch {
    group: usize,
    pub(crate) spans: Vec<KvSpan>,
    /// Sealed segments that some span sees, each once.
    pub(crate) segments: Vec<Rc<MlxSegment>>,
}

/// One span's rows, and what they see in one group.
#[derive(Debug)]
pub(crate) struct KvSpan {
    pub(crate) rows: Range<usize>,
    /// Position of the span's first row.
    pub(crate) start: usize,
    /// Segments that the span sees, in the order of its path.
    pub(crate) path: Vec<Seen>,
    /// Tokens of the tail that come before the span's rows in the tail's buffers.
    pub(crate) held: usize,
}

/// A segment as a span sees it.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Index among the group's segments.
    pub(crate) segment: usize,
    /// Positions of the tokens whose state the segment retains.
    pub(crate) positions: Range<usize>,
}

impl BatchRows {
    pub(crate) fn new<M>(groups: &LayerGroups, spans: &[Span<'_, M>]) -> Self
    where
        M: Model<Segment = MlxSegment, Tail = MlxTail>,
    {
        let mut count = 0;
        let span_rows = spans.iter().map(|span| {
            let path_tokens: usize = span.path.iter().map(|segment| segment.tokens()).sum();
            let first = count;
            count += span.tokens.count();
            SpanRows {
                rows: first..count,
                start: path_tokens + span.tail.tokens(),
            }
        });
        let span_rows: Vec<SpanRows> = span_rows.collect();
        let groups = groups.kv.iter().enumerate();
        let kv = groups.map(|(group, shape)| KvBatch::new(group, shape, spans, &span_rows));
        Self {
            kv: kv.collect(),
            spans: span_rows,
        }
    }

    /// Rows in all spans together.
    pub(crate) fn count(&self) -> usize {
        self.spans.last().map_or(0, |span| span.rows.end)
    }

    /// The position of every row.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        let spans = self.spans.iter();
        spans.flat_map(|span| span.start..span.start + span.rows.len())
    }
}

impl KvBatch {
    fn new<M>(group: usize, shape: &KvShape, spans: &[Span<'_, M>], rows: &[SpanRows]) -> Self
    where
        M: Model<Segment = MlxSegment, Tail = MlxTail>,
    {
        let mut batch = Self {
            group,
            spans: Vec::with_capacity(spans.len()),
            segments: Vec::new(),
        };
        let mut index_map = FxHashMap::default();
        for (span, SpanRows { rows, start }) in spans.iter().zip(rows) {
            let path = batch.path(shape.first_seen(*start), span.path, &mut index_map);
            batch.spans.push(KvSpan {
                rows: rows.clone(),
                start: *start,
                path,
                held: span.tail.kv(group).staying(span.tokens.count()),
            });
        }
        batch
    }

    /// The segments' state of one of the group's layers, in the order of the segments.
    pub(crate) fn states(&self, index: usize) -> impl Iterator<Item = &State> {
        let parts = self.segments.iter().map(|segment| segment.kv(self.group));
        parts.map(move |part| part.layer(index))
    }

    /// Each span's rows, and the tokens that its tail holds before them.
    pub(crate) fn writes(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let spans = self.spans.iter();
        spans.map(|span| (span.rows.clone(), span.held))
    }

    /// Cached tokens that some span sees before this step. Those of a segment count once.
    pub(crate) fn cached_tokens(&self) -> usize {
        let parts = self.segments.iter().map(|segment| segment.kv(self.group));
        let tails = self.spans.iter().map(|span| span.held);
        parts.map(KvPart::retained).chain(tails).sum()
    }

    /// The segments of `path` that retain a position from `first_seen` on.
    fn path(
        &mut self,
        first_seen: usize,
        path: &[Rc<MlxSegment>],
        index_map: &mut FxHashMap<*const MlxSegment, usize>,
    ) -> Vec<Seen> {
        let mut end = 0;
        let mut seen = Vec::with_capacity(path.len());
        for segment in path {
            end += segment.tokens();
            let retained = segment.kv(self.group).retained();
            if retained == 0 || end <= first_seen {
                continue;
            }
            let segments = &mut self.segments;
            seen.push(Seen {
                segment: *index_map.entry(Rc::as_ptr(segment)).or_insert_with(|| {
                    segments.push(Rc::clone(segment));
                    segments.len() - 1
                }),
                positions: end - retained..end,
            });
        }
        seen
    }
}

impl KvSpan {
    /// Position of the first token in the tail's buffers.
    pub(crate) fn tail_start(&self) -> usize {
        self.start - self.held
    }
}
