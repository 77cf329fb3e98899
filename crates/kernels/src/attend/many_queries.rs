//! Attention of many queries: the queries lie side by side in the lanes of a vector.

use std::ops::Range;

use motet_formats::simd::{Number, Simd};

use super::super::products::across;
use super::group::BLOCK;
use super::item::{KvSlice, VisibleRange, Work};
use super::softmax::{HIDDEN, LOWEST, Layout, Softcap, ValueRows, weigh};
use crate::scratch::Scratch;

/// Computes an item, in tiles of two vectors of queries.
#[inline(always)]
pub(super) fn run<S: Simd, N: Number>(simd: S, work: &Work<'_, N>, memory: &mut Scratch) {
    let dim = work.dim();
    let width = 2 * S::LANES;
    let tiles = work.item.queries.len().div_ceil(width);
    let lanes = tiles * width;
    // Keys and values in fewer bits are read by every tile, so they are widened once.
    let wide = if N::IS_F32 { 0 } else { BLOCK * dim };
    let [
        queries,
        values,
        first,
        last,
        largest,
        total,
        scores,
        factors,
        wide_keys,
        wide_values,
    ] = memory.take([
        lanes * dim,
        lanes * dim,
        lanes,
        lanes,
        lanes,
        lanes,
        BLOCK * width,
        width,
        wide,
        wide,
    ]);
    values.fill(0.0);
    largest.fill(LOWEST);
    total.fill(0.0);
    let tile_queries = |tile: usize| {
        let from = work.item.queries.start + tile * width;
        from..work.item.queries.end.min(from + width)
    };
    for tile in 0..tiles {
        let lanes = tile * width..(tile + 1) * width;
        let queries = &mut queries[tile * width * dim..][..width * dim];
        let (first, last) = (&mut first[lanes.clone()], &mut last[lanes]);
        lay_out(work, tile_queries(tile), width, queries, first, last);
    }
    for block in work.kv_slices() {
        let block = block.widened(simd, dim, [&mut *wide_keys, &mut *wide_values]);
        for tile in 0..tiles {
            let lanes = tile * width..(tile + 1) * width;
            let numbers = tile * width * dim..(tile + 1) * width * dim;
            let tile_queries = tile_queries(tile);
            let mut tile = Tile {
                count: tile_queries.len(),
                visible_range: work.visible_range(tile_queries),
                queries: &queries[numbers.clone()],
                first: &first[lanes.clone()],
                last: &last[lanes.clone()],
                largest: &mut largest[lanes.clone()],
                total: &mut total[lanes],
                values: &mut values[numbers],
                dim,
                softcap: work.softcap(),
            };
            if tile.count > S::LANES {
                tile.attend::<S, 2>(simd, &block, scores, factors);
            } else {
                tile.attend::<S, 1>(simd, &block, scores, factors);
            }
        }
    }
    for (index, query) in work.item.queries.clone().enumerate() {
        let values = &values[index * dim..][..dim];
        work.finish(simd, query, largest[index], total[index], values);
    }
}

/// Lays a tile's queries out as `[dim, width]`, with the positions that each lane sees. Lanes
/// without a query see everything, so that their numbers stay finite.
#[inline(always)]
fn lay_out<N: Number>(
    work: &Work<'_, N>,
    range: Range<usize>,
    width: usize,
    queries: &mut [f32],
    first: &mut [f32],
    last: &mut [f32],
) {
    queries.fill(0.0);
    first.fill(f32::NEG_INFINITY);
    last.fill(f32::INFINITY);
    for (lane, query) in range.enumerate() {
        let column = queries[lane..].iter_mut().step_by(width);
        for (to, from) in column.zip(work.query(query)) {
            *to = *from;
        }
        let visible_positions = work.visible_positions(query);
        first[lane] = visible_positions.start as f32;
        last[lane] = (visible_positions.end - 1) as f32;
    }
}

/// Queries in two vectors, and the state of their softmax.
struct Tile<'a> {
    count: usize,
    visible_range: VisibleRange,
    /// `[dim, width]`.
    queries: &'a [f32],
    /// First and last position that each lane sees.
    first: &'a [f32],
    last: &'a [f32],
    largest: &'a mut [f32],
    total: &'a mut [f32],
    /// `[width, dim]`.
    values: &'a mut [f32],
    dim: usize,
    softcap: Option<Softcap>,
}

impl Tile<'_> {
    /// Processes one block. `NQ` vectors hold queries; `scores` is scratch for `[BLOCK,
    /// width]`, `factors` for `[width]`.
    #[inline(always)]
    fn attend<S: Simd, const NQ: usize>(
        &mut self,
        simd: S,
        block: &KvSlice<'_, f32>,
        scores: &mut [f32],
        factors: &mut [f32],
    ) {
        let block = block.within(&self.visible_range.any, self.dim);
        if block.tokens == 0 {
            return;
        }
        self.score::<S, NQ>(simd, &block, scores);
        if let Some(softcap) = self.softcap {
            let width = 2 * S::LANES;
            softcap.apply(&mut scores[..block.tokens * width], width, NQ * S::LANES);
        }
        if self.visible_range.is_partial(&block) {
            self.apply_mask::<S, NQ>(simd, &block, scores);
        }
        self.softmax_weights::<S, NQ>(simd, block.tokens, scores, factors);
        let layout = Layout {
            key: 2 * S::LANES,
            query: 1,
        };
        let factors = &factors[..self.count];
        let value_rows = ValueRows {
            rows: block.values,
            dim: self.dim,
            ahead: &[],
        };
        weigh(simd, scores, layout, value_rows, factors, self.values);
    }

    /// Scores as `[tokens, width]`.
    #[inline(always)]
    fn score<S: Simd, const NQ: usize>(
        &self,
        simd: S,
        block: &KvSlice<'_, f32>,
        scores: &mut [f32],
    ) {
        let dim = self.dim;
        across::<S, NQ>(
            simd,
            self.queries,
            &block.keys[..block.tokens * dim],
            dim,
            scores,
        );
    }

    /// Hides from each lane the keys that it does not see.
    #[inline(always)]
    fn apply_mask<S: Simd, const NQ: usize>(
        &self,
        simd: S,
        block: &KvSlice<'_, f32>,
        scores: &mut [f32],
    ) {
        let hidden = simd.splat(HIDDEN);
        let width = 2 * S::LANES;
        for (key, scores) in scores
            .chunks_exact_mut(width)
            .take(block.tokens)
            .enumerate()
        {
            let position = simd.splat((block.position + key) as f32);
            for vector in 0..NQ {
                let lanes = vector * S::LANES..(vector + 1) * S::LANES;
                let first = simd.load_part(&self.first[lanes.clone()]);
                let last = simd.load_part(&self.last[lanes.clone()]);
                let score = simd.load_part(&scores[lanes.clone()]);
                let score = simd.select_ge(last, position, score, hidden);
                let score = simd.select_ge(position, first, score, hidden);
                simd.store_part(&mut scores[lanes], score);
            }
        }
    }

    /// Turns scores into weights, and records for each lane the factor for earlier results.
    #[inline(always)]
    fn softmax_weights<S: Simd, const NQ: usize>(
        &mut self,
        simd: S,
        tokens: usize,
        scores: &mut [f32],
        factors: &mut [f32],
    ) {
        let width = 2 * S::LANES;
        for vector in 0..NQ {
            let lanes = vector * S::LANES..(vector + 1) * S::LANES;
            let before = simd.load_part(&self.largest[lanes.clone()]);
            let mut peak = before;
            for scores in scores.chunks_exact(width).take(tokens) {
                peak = simd.max(peak, simd.load_part(&scores[lanes.clone()]));
            }
            let mut sum = simd.splat(0.0);
            for scores in scores.chunks_exact_mut(width).take(tokens) {
                let scores = &mut scores[lanes.clone()];
                let weight = simd.exp2(simd.sub(simd.load_part(scores), peak));
                sum = simd.add(sum, weight);
                simd.store_part(scores, weight);
            }
            let factor = simd.exp2(simd.sub(before, peak));
            let total = simd.load_part(&self.total[lanes.clone()]);
            simd.store_part(
                &mut self.total[lanes.clone()],
                simd.mul_add(total, factor, sum),
            );
            simd.store_part(&mut factors[lanes.clone()], factor);
            simd.store_part(&mut self.largest[lanes], peak);
        }
    }
}
