//! One item of a plan: the keys that it goes through and the place for its results.

use std::ops::Range;

use motet_formats::simd::{Number, Simd};

use super::super::split::Split;
use super::Cache;
use super::group::{BLOCK, Group, Source};
use super::plan::{AttendPlan, Item, Order};
use super::softmax::{Softcap, with_sink};

/// All keys and values of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caches<'a, N> {
    pub(super) segments: &'a [Cache<'a, N>],
    /// One tail for each span, the step's rows included.
    pub(super) tails: &'a [Cache<'a, N>],
}

/// The queries of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    /// `[rows, query heads, dim]`, rotated and scaled.
    pub(super) queries: &'a [f32],
    /// The logit of each query head's sink.
    pub(super) sinks: Option<&'a [f32]>,
}

/// An item and everything that it reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Work<'a, N> {
    pub(super) plan: &'a AttendPlan,
    pub(super) group: &'a Group,
    pub(super) item: &'a Item,
    /// The item that this thread most likely computes next.
    pub(super) next_item: Option<&'a Item>,
    pub(super) rows: Rows<'a>,
    pub(super) caches: Caches<'a, N>,
    pub(super) partials: &'a Split<'a, f32>,
    pub(super) output: &'a Split<'a, f32>,
}

/// Neighbouring keys with their values, a row each: a block or a part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvSlice<'a, N> {
    pub(super) keys: &'a [N],
    pub(super) values: &'a [N],
    /// Position of the first key.
    pub(super) position: usize,
    pub(super) tokens: usize,
    /// Position at which its block begins. In [`Order::PerStep`](super::plan::Order::PerStep),
    /// where it begins itself.
    pub(super) block: usize,
}

impl<N: Number> KvSlice<'_, N> {
    /// End offset in its block.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        self.position + self.tokens - self.block
    }

    /// The keys and values whose positions lie in a range.
    #[inline(always)]
    pub(super) fn within(&self, positions: &Range<usize>, dim: usize) -> Self {
        let from = positions
            .start
            .saturating_sub(self.position)
            .min(self.tokens);
        let to = positions
            .end
            .saturating_sub(self.position)
            .min(self.tokens)
            .max(from);
        let row_len = N::row_len(dim);
        KvSlice {
            keys: &self.keys[from * row_len..to * row_len],
            values: &self.values[from * row_len..to * row_len],
            position: self.position + from,
            tokens: to - from,
            block: self.block,
        }
    }

    /// The slice in `f32`: in place if it is `f32` already, otherwise in `scratch`.
    #[inline(always)]
    pub(super) fn widened<'a, S: Simd>(
        &'a self,
        simd: S,
        dim: usize,
        [keys, values]: [&'a mut [f32]; 2],
    ) -> KvSlice<'a, f32> {
        KvSlice {
            keys: N::widened(simd, self.keys, dim, keys),
            values: N::widened(simd, self.values, dim, values),
            position: self.position,
            tokens: self.tokens,
            block: self.block,
        }
    }
}

/// The positions that some queries see.
#[derive(Clone, Debug)]
pub(super) struct VisibleRange {
    /// Positions that at least one of them sees.
    pub(super) any: Range<usize>,
    /// Positions that all of them see.
    pub(super) all: Range<usize>,
}

impl VisibleRange {
    /// Whether some query does not see part of the slice.
    #[inline(always)]
    pub(super) fn is_partial<N>(&self, kv_slice: &KvSlice<'_, N>) -> bool {
        kv_slice.position < self.all.start || kv_slice.position + kv_slice.tokens > self.all.end
    }
}

impl<'a, N: Number> Work<'a, N> {
    #[inline(always)]
    pub(super) fn dim(&self) -> usize {
        self.plan.attention.heads.dim
    }

    /// A query's row of the step, its position and its head.
    #[inline(always)]
    fn locate(&self, query: usize) -> (usize, usize, usize) {
        let per_kv = self.plan.attention.heads.per_kv();
        let (row, position) = self.group.rows[query / per_kv];
        (row, position, self.item.kv_head * per_kv + query % per_kv)
    }

    /// Offset of a query among all queries, and of its result in the output.
    #[inline(always)]
    fn range(&self, query: usize) -> Range<usize> {
        let (row, _, head) = self.locate(query);
        let from = (row * self.plan.attention.heads.query + head) * self.dim();
        from..from + self.dim()
    }

    /// The rotated, scaled numbers of a query.
    #[inline(always)]
    pub(super) fn query(&self, query: usize) -> &'a [f32] {
        &self.rows.queries[self.range(query)]
    }

    /// The softcap of the scores, if any.
    #[inline(always)]
    pub(super) fn softcap(&self) -> Option<Softcap> {
        let set = self.plan.set;
        let cap = self.plan.attention.extras.softcap;
        cap.map(|cap| Softcap { cap, set })
    }

    /// The positions that a query sees.
    #[inline(always)]
    pub(super) fn visible_positions(&self, query: usize) -> Range<usize> {
        let position = self.locate(query).1;
        let window = self.plan.attention.window.unwrap_or(usize::MAX);
        (position + 1).saturating_sub(window)..position + 1
    }

    /// The positions that a range of queries sees.
    #[inline(always)]
    pub(super) fn visible_range(&self, queries: Range<usize>) -> VisibleRange {
        let first = self.visible_positions(queries.start);
        let mut visible_range = VisibleRange {
            any: first.clone(),
            all: first,
        };
        for query in queries {
            let visible_positions = self.visible_positions(query);
            visible_range.any = visible_range.any.start.min(visible_positions.start)
                ..visible_range.any.end.max(visible_positions.end);
            visible_range.all = visible_range.all.start.max(visible_positions.start)
                ..visible_range.all.end.min(visible_positions.end);
        }
        visible_range
    }

    /// The item's keys and values, slice by slice. Blocks have at most [`BLOCK`] tokens.
    #[inline(always)]
    pub(super) fn kv_slices(&self) -> KvSlices<'a, N> {
        KvSlices {
            work: *self,
            left: self.group.chunks[self.item.chunk].clone(),
            part: 0,
            part_from: 0,
        }
    }

    /// The first keys and values of the next item, to be prefetched.
    #[inline(always)]
    pub(super) fn first_of_next(&self) -> Option<KvSlice<'a, N>> {
        let item = self.next_item?;
        let group = &self.plan.groups[item.group];
        Self {
            item,
            group,
            ..*self
        }
        .kv_slices()
        .next()
    }

    /// Stores a query's result: the largest score, the sum of weights relative to it, and the
    /// weighted sum of the values.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(
        &self,
        simd: S,
        query: usize,
        largest: f32,
        total: f32,
        values: &[f32],
    ) {
        if self.group.direct {
            // SAFETY: only one item computes this query.
            let output = unsafe { self.output.part(self.range(query)) };
            let sink = self.rows.sinks.map(|sinks| sinks[self.locate(query).2]);
            let factor = simd.splat(1.0 / with_sink(largest, total, sink));
            for (from, to) in values.chunks(S::LANES).zip(output.chunks_mut(S::LANES)) {
                simd.store_part(to, simd.mul(simd.load_part(from), factor));
            }
        } else {
            let len = self.plan.partial_len();
            let Item { kv_head, chunk, .. } = *self.item;
            let from = self.plan.partial(self.group, kv_head, chunk, query) * len;
            // SAFETY: only one item computes this query from this chunk of keys.
            let partial = unsafe { self.partials.part(from..from + len) };
            partial[0] = largest;
            partial[1] = total;
            partial[2..].copy_from_slice(values);
        }
    }
}

/// See [`Work::kv_slices`].
#[derive(Clone)]
pub(super) struct KvSlices<'a, N> {
    work: Work<'a, N>,
    /// Remaining keys, counted through all parts of the group.
    left: Range<usize>,
    part: usize,
    /// Keys in the parts before `part`.
    part_from: usize,
}

impl<'a, N: Number> Iterator for KvSlices<'a, N> {
    type Item = KvSlice<'a, N>;

    #[inline(always)]
    fn next(&mut self) -> Option<KvSlice<'a, N>> {
        if self.left.is_empty() {
            return None;
        }
        let parts = &self.work.group.parts;
        while self.left.start >= self.part_from + parts[self.part].tokens {
            self.part_from += parts[self.part].tokens;
            self.part += 1;
        }
        let part = &parts[self.part];
        let index = self.left.start - self.part_from;
        let (token, position) = (part.first + index, part.start + index);
        let block = match self.work.plan.order {
            Order::PerStep => position,
            Order::PerSequence => position - position % BLOCK,
        };
        let tokens = (block + BLOCK - position)
            .min(part.tokens - index)
            .min(self.left.len());
        self.left.start += tokens;
        let cache = match part.source {
            Source::Segment(index) => self.work.caches.segments[index],
            Source::Tail(span) => self.work.caches.tails[span],
        };
        let row_len = N::row_len(self.work.dim());
        let from = (self.work.item.kv_head * cache.capacity + token) * row_len;
        let rows = from..from + tokens * row_len;
        Some(KvSlice {
            keys: &cache.keys[rows.clone()],
            values: &cache.values[rows],
            position,
            tokens,
            block,
        })
    }
}
