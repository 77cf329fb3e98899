//! What attention has to compute in a step, cut into items of similar cost.
//!
//! A plan depends on the shapes of a step only, so one plan serves all layers of
//! a kind.

use std::ops::Range;

use super::super::simd::InstructionSet;
use super::shape::{Attention, Heads, PartRange, SpanRange, angles};
use super::{Cache, CacheMut};

/// The work of one step in each layer of a kind.
#[derive(Debug)]
pub struct AttendPlan {
    pub(super) attention: Attention,
    pub(super) spans: Vec<Span>,
    pub(super) groups: Vec<Group>,
    /// The most expensive first.
    pub(super) items: Vec<Item>,
    pub(super) rows: usize,
    /// Cosines, then sines, of each row.
    pub(super) angles: Vec<f32>,
    pub(super) set: InstructionSet,
    /// Where each segment lies, and how many tokens it must hold.
    segments: Vec<PartRange>,
    partials: usize,
    /// Rough cost of all items, in multiply-adds of one query head with one key.
    pub(super) cost: usize,
}

#[derive(Debug)]
pub(super) struct Span {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) tail_tokens: usize,
    /// The groups that its rows belong to, and which of their rows is its first.
    pub(super) groups: Vec<(usize, usize)>,
}

/// Rows that see the same parts.
#[derive(Debug)]
pub(super) struct Group {
    /// Row of the step, and position, of each stacked row.
    pub(super) rows: Vec<(usize, usize)>,
    pub(super) parts: Vec<Part>,
    /// Ranges of keys, counted through all parts, that items are made for.
    pub(super) chunks: Vec<Range<usize>>,
    /// No other group works for its rows and there is one chunk: items write
    /// their results to the output.
    pub(super) direct: bool,
    /// Index of its first partial result.
    partial: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) source: Source,
    pub(super) start: usize,
    pub(super) tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Segment(usize),
    /// The tail of a span, the step's rows included.
    Tail(usize),
}

/// A block of queries over a range of keys, in one kv head.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) group: usize,
    pub(super) kv_head: usize,
    pub(super) chunk: usize,
    /// Stacked queries: query `row * (query heads / kv heads) + head`.
    pub(super) queries: Range<usize>,
}

/// Keys that are scored before their values are weighed: what fits into the first
/// level of cache with the rest.
pub(super) const BLOCK: usize = 64;

/// Queries of one item at most, in tiles of two vectors.
const TILES_MAX: usize = 4;

/// Items for each thread: enough to even out, few enough to merge cheaply.
const ITEMS_PER_THREAD: usize = 6;

/// Least cost of an item, so that handing it over does not count.
const COST_MIN: usize = 4096;

/// What reading a key and its value costs beside the work for each query.
const KEY_COST: usize = 8;

impl AttendPlan {
    /// Plans a step.
    ///
    /// # Panics
    ///
    /// When the heads are not [supported](Heads::supported), a span has no rows, a
    /// part no tokens, or a window is 0 wide.
    #[must_use]
    pub fn new(attention: Attention, spans: &[SpanRange]) -> AttendPlan {
        let threads = super::Pool::global().threads();
        AttendPlan::for_machine(attention, spans, InstructionSet::best(), threads)
    }

    /// Plans a step for a certain machine.
    pub(super) fn for_machine(
        attention: Attention,
        spans: &[SpanRange],
        set: InstructionSet,
        threads: usize,
    ) -> AttendPlan {
        assert!(attention.heads.supported(), "{:?}", attention.heads);
        assert!(
            attention.window != Some(0),
            "a window admits the row itself"
        );
        assert!(2 * attention.rotary.inverse_frequencies.len() <= attention.heads.dim);
        assert!(spans.iter().all(|span| span.rows > 0), "a span has rows");
        let mut plan = AttendPlan {
            angles: angles(&attention.rotary, spans),
            spans: Vec::with_capacity(spans.len()),
            groups: Vec::new(),
            items: Vec::new(),
            rows: 0,
            set,
            segments: Vec::new(),
            partials: 0,
            cost: 0,
            attention,
        };
        plan.add_spans(spans);
        plan.add_groups(spans);
        plan.add_items(threads);
        plan
    }

    /// Segments that the step needs.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Rows of all spans.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The attention that was planned for.
    #[must_use]
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Tokens that segment `index` must hold.
    #[must_use]
    pub fn segment_tokens(&self, index: usize) -> usize {
        self.segments[index].tokens
    }

    /// Tokens that each span's tail must have room for.
    pub fn tail_tokens(&self) -> impl ExactSizeIterator<Item = usize> {
        self.spans.iter().map(|span| span.tail_tokens + span.rows)
    }

    pub(super) fn query_numbers(&self) -> usize {
        self.rows * self.attention.heads.query * self.attention.heads.dim
    }

    /// Numbers in one query's partial result: the largest score, the sum of
    /// weights, the weighed values.
    pub(super) fn partial_len(&self) -> usize {
        self.attention.heads.dim + 2
    }

    pub(super) fn partial_numbers(&self) -> usize {
        self.partials * self.partial_len()
    }

    /// Index of the partial result of a group's query from one chunk of keys.
    pub(super) fn partial(
        &self,
        group: &Group,
        kv_head: usize,
        chunk: usize,
        query: usize,
    ) -> usize {
        let queries = group.rows.len() * self.attention.heads.per_kv();
        group.partial + (kv_head * group.chunks.len() + chunk) * queries + query
    }

    /// Panics unless the lengths fit; see [`attend`](super::attend).
    pub(super) fn check(
        &self,
        packed: &[f32],
        segments: &[Cache<'_>],
        tails: &[CacheMut<'_>],
        output: &[f32],
    ) {
        let Heads { kv, dim, .. } = self.attention.heads;
        assert_eq!(packed.len(), self.rows * self.attention.heads.packed());
        assert_eq!(output.len(), self.query_numbers());
        assert_eq!(segments.len(), self.segments());
        for (segment, &PartRange { tokens, .. }) in segments.iter().zip(&self.segments) {
            let numbers = kv * segment.capacity * dim;
            assert!(
                segment.capacity >= tokens,
                "{} < {tokens}",
                segment.capacity
            );
            assert_eq!([segment.keys.len(), segment.values.len()], [numbers; 2]);
        }
        assert_eq!(tails.len(), self.spans.len());
        for (tail, tokens) in tails.iter().zip(self.tail_tokens()) {
            let numbers = kv * tail.capacity * dim;
            assert!(tail.capacity >= tokens, "{} < {tokens}", tail.capacity);
            assert_eq!([tail.keys.len(), tail.values.len()], [numbers; 2]);
        }
    }

    fn add_spans(&mut self, spans: &[SpanRange]) {
        for span in spans {
            self.spans.push(Span {
                first_row: self.rows,
                rows: span.rows,
                tail_tokens: span.tail.tokens,
                groups: Vec::new(),
            });
            self.rows += span.rows;
        }
    }

    /// Gathers the spans that share each segment. Neighbouring segments of the
    /// same spans, and all that one span has to itself, make one group.
    fn add_groups(&mut self, spans: &[SpanRange]) {
        let mut members: Vec<Vec<usize>> = Vec::new();
        for (index, span) in spans.iter().enumerate() {
            for part in &span.path {
                assert!(part.tokens > 0, "a part has tokens");
                let known = members.len();
                members.resize(known.max(part.segment + 1), Vec::new());
                for segment in known..members.len() {
                    self.segments.push(PartRange {
                        segment,
                        start: 0,
                        tokens: 0,
                    });
                }
                if members[part.segment].is_empty() {
                    self.segments[part.segment] = *part;
                }
                assert_eq!(
                    self.segments[part.segment], *part,
                    "spans share a segment as it is"
                );
                members[part.segment].push(index);
            }
        }
        for (index, span) in spans.iter().enumerate() {
            let mut own = Vec::new();
            let mut shared: Vec<(&[usize], Vec<Part>)> = Vec::new();
            for part in &span.path {
                let sharing = &members[part.segment][..];
                let source = Source::Segment(part.segment);
                let part = Part {
                    source,
                    start: part.start,
                    tokens: part.tokens,
                };
                match shared.last_mut() {
                    _ if sharing.len() == 1 => own.push(part),
                    // The first of those who share it makes the group for all.
                    _ if sharing[0] != index => {}
                    Some((last, parts)) if *last == sharing => parts.push(part),
                    _ => shared.push((sharing, vec![part])),
                }
            }
            for (sharing, parts) in shared {
                self.add_group(spans, sharing, parts);
            }
            let tokens = span.tail.tokens + span.rows;
            own.push(Part {
                source: Source::Tail(index),
                start: span.tail.start,
                tokens,
            });
            self.add_group(spans, &[index], own);
        }
        for span in &self.spans {
            if let [(only, _)] = span.groups[..] {
                // Settled when the chunks are known.
                self.groups[only].direct = true;
            }
        }
    }

    fn add_group(&mut self, spans: &[SpanRange], members: &[usize], parts: Vec<Part>) {
        let group = self.groups.len();
        let mut rows = Vec::new();
        for &member in members {
            let span = &mut self.spans[member];
            span.groups.push((group, rows.len()));
            let position = spans[member].tail.start + span.tail_tokens;
            rows.extend((0..span.rows).map(|row| (span.first_row + row, position + row)));
        }
        self.groups.push(Group {
            rows,
            parts,
            chunks: Vec::new(),
            direct: false,
            partial: 0,
        });
    }

    /// Cuts the groups into items, so that threads can share them evenly.
    fn add_items(&mut self, threads: usize) {
        let per_kv = self.attention.heads.per_kv();
        let kv_heads = self.attention.heads.kv;
        let visible: Vec<Range<usize>> = self
            .groups
            .iter()
            .map(|group| group.visible(self.attention.window))
            .collect();
        let cost = |keys: usize, queries: usize| keys * (queries + KEY_COST);
        let costs = self.groups.iter().zip(&visible);
        self.cost = costs
            .map(|(group, keys)| kv_heads * cost(keys.len(), group.rows.len() * per_kv))
            .sum();
        let target = (self.cost / (threads * ITEMS_PER_THREAD)).max(COST_MIN);
        let tile = 2 * self.set.lanes();
        for (index, group) in self.groups.iter_mut().enumerate() {
            let keys = visible[index].clone();
            let queries = group.rows.len() * per_kv;
            // Smaller blocks of queries before more chunks of keys: those need no merge.
            let tiles = (1..=TILES_MAX)
                .rev()
                .find(|tiles| cost(keys.len(), tiles * tile) <= target);
            let block = tiles.unwrap_or(1) * tile;
            let chunks = if threads == 1 {
                1
            } else {
                let most = keys.len().div_ceil(2 * BLOCK).max(1);
                cost(keys.len(), block.min(queries))
                    .div_ceil(target)
                    .clamp(1, most)
            };
            let length = keys.len().div_ceil(chunks).next_multiple_of(BLOCK);
            group.chunks = keys
                .clone()
                .step_by(length.max(1))
                .map(|from| from..keys.end.min(from + length))
                .collect();
            group.direct &= group.chunks.len() == 1;
            group.partial = self.partials;
            if !group.direct {
                self.partials += kv_heads * group.chunks.len() * queries;
            }
            for kv_head in 0..kv_heads {
                for first in (0..queries).step_by(block) {
                    let queries = first..queries.min(first + block);
                    self.items.extend((0..group.chunks.len()).map(|chunk| Item {
                        group: index,
                        kv_head,
                        chunk,
                        queries: queries.clone(),
                    }));
                }
            }
        }
        let groups = &self.groups;
        self.items.sort_by_key(|item| {
            std::cmp::Reverse(cost(
                groups[item.group].chunks[item.chunk].len(),
                item.queries.len(),
            ))
        });
    }
}

impl Group {
    /// The keys, counted through all parts, that any row sees: what has left
    /// every row's window is at the front.
    fn visible(&self, window: Option<usize>) -> Range<usize> {
        let total = self.parts.iter().map(|part| part.tokens).sum();
        let Some(window) = window else {
            return 0..total;
        };
        let earliest = self
            .rows
            .iter()
            .map(|row| row.1)
            .min()
            .expect("a span has rows");
        let from = (earliest + 1).saturating_sub(window);
        let hidden = self
            .parts
            .iter()
            .map(|part| part.tokens.min(from.saturating_sub(part.start)));
        hidden.sum::<usize>().min(total)..total
    }
}
