//! The attention of a step, cut into items of similar cost.
//!
//! A plan depends on the shapes of a step only, so one plan serves all layers of
//! a kind.

use std::ops::Range;

use motet_formats::simd::{InstructionSet, Number};

use super::group::{BLOCK, Group, gather, gather_chunks};
use super::layer_inputs::LayerInputs;
use super::shape::{Attention, Heads, PartRange, SpanRange, angles, position_scales};
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
    /// A factor of each row's queries; empty where it is 1 for all.
    position_scales: Vec<f32>,
    pub(super) set: InstructionSet,
    pub(super) order: Order,
    /// The range of each segment, and how many tokens it must hold.
    segments: Vec<PartRange>,
    partials: usize,
    /// Rough [cost] of all items.
    pub(super) cost: usize,
}

/// The inputs that determine the order of a row's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Everything in the step, in whatever order is the fastest: last bits may differ from step
    /// to step.
    PerStep,
    /// The row's own position alone. Results are the same to the last bit whatever else is in
    /// the step, however the earlier rows were computed, and wherever their keys and values
    /// lie. Shared keys are read once only in whole chunks.
    PerSequence,
}

#[derive(Debug)]
pub(super) struct Span {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) tail_tokens: usize,
    /// The groups that its rows belong to, each with the index of the span's first row in the
    /// group.
    pub(super) groups: Vec<(usize, usize)>,
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

/// Maximum tiles of an item, of two vectors of queries each.
const TILES_MAX: usize = 4;

/// Maximum queries of an item in the [order of a sequence](Order::PerSequence).
const ORDERED_QUERIES_MAX: usize = 32;

/// Items for each thread: enough to even out, few enough to merge cheaply.
const ITEMS_PER_THREAD: usize = 6;

/// Minimum cost of an item, so that the cost of dispatching it is negligible.
const COST_MIN: usize = 4096;

/// Cost of reading a key and its value, in units of the work for one query.
const KEY_COST: usize = 8;

impl AttendPlan {
    /// Plans a step.
    ///
    /// # Panics
    ///
    /// When the heads are not [supported](Heads::supported), a span has no rows, a
    /// part no tokens, a window is 0 wide, or a number of the extras is out of range.
    #[must_use]
    pub fn new(attention: Attention, spans: &[SpanRange], order: Order) -> AttendPlan {
        let threads = super::Pool::global().threads();
        AttendPlan::for_machine(attention, spans, order, InstructionSet::best(), threads)
    }

    /// Plans a step for a given instruction set and number of threads.
    pub(super) fn for_machine(
        attention: Attention,
        spans: &[SpanRange],
        order: Order,
        set: InstructionSet,
        threads: usize,
    ) -> AttendPlan {
        assert!(attention.heads.supported(), "{:?}", attention.heads);
        assert!(
            attention.window != Some(0),
            "a window admits the row itself"
        );
        attention.extras.check();
        assert!(2 * attention.rotary.inverse_frequencies.len() <= attention.heads.dim);
        assert!(spans.iter().all(|span| span.rows > 0), "a span has rows");
        let mut plan = AttendPlan {
            angles: angles(&attention.rotary, spans),
            position_scales: position_scales(&attention.extras, spans),
            spans: Vec::with_capacity(spans.len()),
            groups: Vec::new(),
            items: Vec::new(),
            rows: 0,
            set,
            order,
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

    /// Number of segments that the step needs.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Number of rows in all spans.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The attention of the plan.
    #[must_use]
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Tokens that segment `index` must hold.
    #[must_use]
    pub fn segment_tokens(&self, index: usize) -> usize {
        self.segments[index].tokens
    }

    /// Capacity in tokens that each span's tail must have.
    pub fn tail_tokens(&self) -> impl ExactSizeIterator<Item = usize> {
        self.spans.iter().map(|span| span.tail_tokens + span.rows)
    }

    pub(super) fn query_numbers(&self) -> usize {
        self.rows * self.attention.heads.query * self.attention.heads.dim
    }

    /// Factor of a row's queries.
    pub(super) fn query_factor(&self, row: usize) -> f32 {
        let factor = self.attention.query_factor();
        self.position_scales
            .get(row)
            .map_or(factor, |scale| factor * scale)
    }

    /// Numbers in one query's partial result: the largest score, the sum of weights, the
    /// weighted values.
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
    pub(super) fn check<N: Number>(
        &self,
        layer: LayerInputs<'_>,
        segments: &[Cache<'_, N>],
        tails: &[CacheMut<'_, N>],
        output: &[f32],
    ) {
        let Heads { kv, dim, .. } = self.attention.heads;
        let row_len = N::row_len(dim);
        layer.check(&self.attention, self.rows);
        assert_eq!(output.len(), self.query_numbers());
        assert_eq!(segments.len(), self.segments());
        for (segment, &PartRange { tokens, .. }) in segments.iter().zip(&self.segments) {
            let elements = kv * segment.capacity * row_len;
            assert!(
                segment.capacity >= tokens,
                "{} < {tokens}",
                segment.capacity
            );
            assert_eq!([segment.keys.len(), segment.values.len()], [elements; 2]);
        }
        assert_eq!(tails.len(), self.spans.len());
        for (tail, tokens) in tails.iter().zip(self.tail_tokens()) {
            let elements = kv * tail.capacity * row_len;
            assert!(tail.capacity >= tokens, "{} < {tokens}", tail.capacity);
            assert_eq!([tail.keys.len(), tail.values.len()], [elements; 2]);
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

    fn add_groups(&mut self, spans: &[SpanRange]) {
        let gathered = match self.order {
            Order::PerStep => gather(spans),
            Order::PerSequence => gather_chunks(spans),
        };
        self.segments = gathered.segments;
        for (members, parts) in gathered.groups {
            let group = self.groups.len();
            let mut rows = Vec::new();
            for &member in &members {
                let span = &mut self.spans[member];
                span.groups.push((group, rows.len()));
                let position = spans[member].tail.start + span.tail_tokens;
                rows.extend((0..span.rows).map(|row| (span.first_row + row, position + row)));
            }
            self.groups.push(Group::new(rows, parts));
        }
        for span in &mut self.spans {
            // In sequence order, regardless of which span created each group.
            let start = |&(group, _): &(usize, usize)| self.groups[group].parts[0].start;
            span.groups.sort_by_key(start);
            if let [(only, _)] = span.groups[..] {
                // Provisional: there may still be several chunks.
                self.groups[only].direct = true;
            }
        }
    }

    /// Cuts the groups into items that threads can share evenly.
    fn add_items(&mut self, threads: usize) {
        let per_kv = self.attention.heads.per_kv();
        let kv_heads = self.attention.heads.kv;
        for group in &mut self.groups {
            group.find_visible_keys(self.attention.window);
        }
        let costs = self
            .groups
            .iter()
            .map(|group| kv_heads * cost(group.keys.len(), group.rows.len() * per_kv));
        self.cost = costs.sum();
        let target = (self.cost / (threads * ITEMS_PER_THREAD)).max(COST_MIN);
        let tile = 2 * self.set.lanes();
        for (index, group) in self.groups.iter_mut().enumerate() {
            let queries = group.rows.len() * per_kv;
            let block = match self.order {
                Order::PerStep => cut_evenly(group, queries, tile, target, threads),
                Order::PerSequence => {
                    group.cut_by_position();
                    ORDERED_QUERIES_MAX
                }
            };
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
            let keys = groups[item.group].chunks[item.chunk].len();
            std::cmp::Reverse(cost(keys, item.queries.len()))
        });
    }
}

/// Cuts a group's keys so that no item costs much more than `target`. Returns the maximum
/// queries of an item.
fn cut_evenly(
    group: &mut Group,
    queries: usize,
    tile: usize,
    target: usize,
    threads: usize,
) -> usize {
    let keys = group.keys.len();
    // Smaller blocks of queries come before more chunks of keys, because they need no merge.
    let fits = |tiles: &usize| cost(keys, tiles * tile) <= target;
    let block = (1..=TILES_MAX).rev().find(fits).unwrap_or(1) * tile;
    let chunks_max = if threads == 1 {
        1
    } else {
        let most = keys.div_ceil(2 * BLOCK).max(1);
        cost(keys, block.min(queries))
            .div_ceil(target)
            .clamp(1, most)
    };
    group.cut(chunks_max);
    block
}

/// Rough cost of some queries over some keys, in multiply-adds of one query head with one key.
fn cost(keys: usize, queries: usize) -> usize {
    keys * (queries + KEY_COST)
}
