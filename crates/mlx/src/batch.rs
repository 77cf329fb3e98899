//! A step's spans, packed.

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use rustc_hash::FxHashMap;

use super::MlxModel;
use super::groups::{KvShape, LayerGroups};
use super::ops::concatenate;
use super::prompt_logprobs::Target;
use super::segment::{KvPart, MlxSegment};
use super::state::State;
use motet_model::{Segment, Span, Tail, TokenSource};
use motet_protocol::OutputKind;
use motet_protocol::TokenId;

/// The rows of all spans one after another, and what each span sees.
#[derive(Debug)]
pub(super) struct Batch {
    /// Tokens of all rows. A row whose token was sampled by the previous step has its token on
    /// the device only.
    tokens: Vec<TokenId>,
    sampled_rows: Option<SampledRows>,
    pub(super) spans: Vec<SpanRows>,
    /// The view of each group with keys and values.
    pub(super) kv: Vec<KvBatch>,
    /// Rows whose logits are needed, ascending.
    pub(super) output_rows: Vec<u32>,
    /// Rows that give the log probability of a known token, ascending; none is an output row.
    pub(super) scored_rows: Vec<u32>,
    /// Their tokens.
    pub(super) targets: Vec<Target>,
    /// Rows whose hidden states are needed, ascending; none is an output row.
    pub(super) hidden_rows: Vec<u32>,
}

/// Rows whose tokens the previous step samples.
#[derive(Debug)]
struct SampledRows {
    /// The tokens that it samples, `[samples]`.
    sampled: Array,
    /// Each row, with the index of its token in `sampled`.
    index_map: Vec<(usize, usize)>,
}

/// One span's rows in a batch.
#[derive(Debug)]
pub(super) struct SpanRows {
    pub(super) rows: Range<usize>,
    /// Position of the span's first row.
    pub(super) start: usize,
}

/// A batch's view of one group with keys and values.
#[derive(Debug)]
pub(super) struct KvBatch {
    group: usize,
    pub(super) spans: Vec<KvSpan>,
    /// Sealed segments that some span sees, each once.
    pub(super) segments: Vec<Rc<MlxSegment>>,
}

/// One span's rows, and what they see in one group.
#[derive(Debug)]
pub(super) struct KvSpan {
    pub(super) rows: Range<usize>,
    /// Position of the span's first row.
    pub(super) start: usize,
    /// Segments that the span sees, in the order of its path.
    pub(super) path: Vec<Seen>,
    /// Tokens of the tail that come before the span's rows in the tail's buffers.
    pub(super) held: usize,
}

/// A segment as a span sees it.
#[derive(Debug)]
pub(super) struct Seen {
    /// Index among the group's segments.
    pub(super) segment: usize,
    /// Positions of the tokens whose state the segment retains.
    pub(super) positions: Range<usize>,
}

impl Batch {
    pub(super) fn new(groups: &LayerGroups, spans: &[Span<'_, MlxModel>]) -> Self {
        let mut batch = Self {
            tokens: Vec::new(),
            sampled_rows: None,
            spans: Vec::with_capacity(spans.len()),
            kv: Vec::with_capacity(groups.kv.len()),
            output_rows: Vec::new(),
            scored_rows: Vec::new(),
            targets: Vec::new(),
            hidden_rows: Vec::new(),
        };
        for span in spans {
            batch.push(span);
        }
        for (group, shape) in groups.kv.iter().enumerate() {
            let kv = KvBatch::new(group, shape, spans, &batch.spans);
            batch.kv.push(kv);
        }
        batch
    }

    /// Rows in all spans together.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// All rows that need a result of the last layer: output rows, then scored rows, then hidden
    /// rows.
    pub(super) fn last_rows(&self) -> Vec<u32> {
        let rows = [&self.output_rows[..], &self.scored_rows, &self.hidden_rows];
        rows.concat()
    }

    /// The token of every row, `[rows]`.
    pub(super) fn token_array(&self) -> Result<Array, Exception> {
        let rows = self.rows();
        let known = Array::from_slice(&self.tokens, &[rows as i32]);
        let Some(SampledRows { sampled, index_map }) = &self.sampled_rows else {
            return Ok(known);
        };
        let mut indices: Vec<u32> = (0..rows as u32).collect();
        for (row, sampled_index) in index_map {
            indices[*row] = (rows + sampled_index) as u32;
        }
        let all = concatenate(vec![known, sampled.clone()], 0)?;
        take_axis(all, Array::from_slice(&indices, &[rows as i32]), 0)
    }

    /// The position of every row.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        let spans = self.spans.iter();
        spans.flat_map(|span| span.start..span.start + span.rows.len())
    }

    fn push(&mut self, span: &Span<'_, MlxModel>) {
        let path_tokens: usize = span.path.iter().map(|segment| segment.tokens()).sum();
        let start = path_tokens + span.tail.tokens();
        let rows = self.rows()..self.rows() + span.tokens.count();
        let first = rows.start as u32;
        match &span.output_kind {
            OutputKind::Nothing => {}
            OutputKind::Token(_) => self.output_rows.push(rows.end as u32 - 1),
            OutputKind::Logits => self.output_rows.extend(first..rows.end as u32),
            OutputKind::PromptLogprobs(scored) => {
                let first = first + scored.first as u32;
                let end = first + scored.targets.len() as u32;
                self.scored_rows.extend(first..end);
                let targets = scored.targets.iter();
                self.targets
                    .extend(targets.map(|token| (*token, scored.top)));
                if scored.token.is_some() {
                    self.output_rows.push(rows.end as u32 - 1);
                }
            }
            OutputKind::HiddenSum(hidden) => {
                let in_batch = first + hidden.start as u32..first + hidden.end as u32;
                self.hidden_rows.extend(in_batch);
            }
        }
        match span.tokens {
            TokenSource::Known(tokens) => self.tokens.extend_from_slice(tokens),
            TokenSource::Sampled(in_flight, source_span) => {
                self.tokens.push(0);
                let (sampled, sampled_index) = in_flight.token(source_span);
                let sampled_rows = self.sampled_rows.get_or_insert_with(|| SampledRows {
                    sampled: sampled.clone(),
                    index_map: Vec::new(),
                });
                sampled_rows.index_map.push((rows.start, sampled_index));
            }
        }
        self.spans.push(SpanRows { rows, start });
    }
}

impl KvBatch {
    fn new(group: usize, shape: &KvShape, spans: &[Span<'_, MlxModel>], rows: &[SpanRows]) -> Self {
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
    pub(super) fn states(&self, index: usize) -> impl Iterator<Item = &State> {
        let parts = self.segments.iter().map(|segment| segment.kv(self.group));
        parts.map(move |part| part.layer(index))
    }

    /// Cached tokens that some span sees before this step. Those of a segment count once.
    pub(super) fn cached_tokens(&self) -> usize {
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
    pub(super) fn tail_start(&self) -> usize {
        self.start - self.held
    }
}
