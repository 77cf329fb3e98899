//! Attention of a few queries: keys are read row by row, in memory order.

use motet_formats::simd::{Number, Simd};

use super::super::products::{along, along_fewer, sums};
use super::group::BLOCK;
use super::item::{KvSlice, Work};
use super::softmax::{HIDDEN, LOWEST, Layout, ValueRows, weigh};
use crate::scratch::Scratch;

/// Maximum queries for which this kernel is the faster one. Each query costs its own pass over
/// the block in the first level of cache. Beyond half a vector of queries, the idle lanes of
/// the other kernel cost less.
pub(super) const fn queries_max<S: Simd>() -> usize {
    S::LANES / 2
}

/// Computes an item. A query's result depends neither on the other queries nor on how its
/// blocks are cut into slices, as long as all values are finite.
#[inline(always)]
pub(super) fn run<S: Simd, N: Number>(simd: S, work: &Work<'_, N>, memory: &mut Scratch) {
    let dim = work.dim();
    let queries = work.item.queries.clone();
    let count = queries.len();
    let [numbers, values, scores, largest, total, factors] =
        memory.take([count * dim, count * dim, count * BLOCK, count, count, count]);
    for (query, numbers) in queries.clone().zip(numbers.chunks_exact_mut(dim)) {
        numbers.copy_from_slice(work.query(query));
    }
    values.fill(0.0);
    largest.fill(LOWEST);
    total.fill(0.0);
    let visible_range = work.visible_range(queries.clone());
    let seen = work
        .kv_slices()
        .map(|kv_slice| kv_slice.within(&visible_range.any, dim));
    let mut seen = seen.filter(|kv_slice| kv_slice.tokens > 0).peekable();
    let first_of_next = work.first_of_next();
    while let Some(first) = seen.peek() {
        let block = first.block;
        let mut of_block = seen.clone();
        let (mut end, mut is_partial) = (0, false);
        while let Some(kv_slice) = seen.next_if(|kv_slice| kv_slice.block == block) {
            if kv_slice.tokens < BLOCK && end == 0 {
                scores.fill(HIDDEN);
            }
            let next = seen.peek().or(first_of_next.as_ref());
            score(simd, numbers, dim, &kv_slice, next, scores);
            end = kv_slice.end();
            is_partial |= visible_range.is_partial(&kv_slice);
        }
        let end = end.next_multiple_of(S::LANES);
        if let Some(softcap) = work.softcap() {
            softcap.apply(scores, BLOCK, end);
        }
        if is_partial {
            apply_mask(simd, work, block, end, scores);
        }
        for (index, scores) in scores.chunks_exact_mut(BLOCK).enumerate() {
            let (new, factor, sum) = softmax_weights(simd, &mut scores[..end], largest[index]);
            largest[index] = new;
            factors[index] = factor;
            total[index] = total[index] * factor + sum;
        }
        while let Some(kv_slice) = of_block.next_if(|kv_slice| kv_slice.block == block) {
            let weights = &scores[kv_slice.position - block..];
            let layout = Layout {
                key: 1,
                query: BLOCK,
            };
            let next = seen.peek().or(first_of_next.as_ref());
            let value_rows = ValueRows {
                rows: kv_slice.values,
                dim,
                ahead: next.map_or(&[][..], |next| next.values),
            };
            weigh(simd, weights, layout, value_rows, factors, values);
            // Earlier results already have the scale that they need now.
            factors.fill(1.0);
        }
    }
    for (index, query) in queries.enumerate() {
        let values = &values[index * dim..][..dim];
        work.finish(simd, query, largest[index], total[index], values);
    }
}

/// The scores of each query, `BLOCK` apart, starting at the slice's offset in its block.
/// Prefetches the keys of the `next` slice meanwhile.
#[inline(always)]
fn score<S: Simd, N: Number>(
    simd: S,
    queries: &[f32],
    dim: usize,
    kv_slice: &KvSlice<'_, N>,
    next: Option<&KvSlice<'_, N>>,
    scores: &mut [f32],
) {
    let (tile, row_len) = (sums::<S>(), N::row_len(dim));
    let start = kv_slice.position - kv_slice.block;
    let whole = kv_slice.tokens - kv_slice.tokens % tile;
    let (fours, ones) = queries.split_at(queries.len() / (4 * dim) * 4 * dim);
    let pass_count = (fours.len() / 4 + ones.len()) / dim;
    for first in (0..whole).step_by(tile) {
        let rows = first * row_len..(first + tile) * row_len;
        let keys = &kv_slice.keys[rows.clone()];
        // The corresponding keys of the next slice, a part in each pass.
        let ahead = next
            .and_then(|next| next.keys.get(rows))
            .unwrap_or_default();
        let mut ahead = ahead.chunks(ahead.len().div_ceil(pass_count).max(1));
        let mut ahead = || ahead.next().unwrap_or_default();
        let (of_fours, of_ones) = scores.split_at_mut(fours.len() / dim * BLOCK);
        let each = fours.chunks_exact(4 * dim);
        for (queries, scores) in each.zip(of_fours.chunks_exact_mut(4 * BLOCK)) {
            let scores = &mut scores[start + first..];
            score_four(simd, queries, keys, dim, ahead(), scores);
        }
        let each = ones.chunks_exact(dim);
        for (query, scores) in each.zip(of_ones.chunks_exact_mut(BLOCK)) {
            let products = if tile == 16 {
                along::<S, N, 16, 1>(simd, keys, query, dim, ahead())
            } else {
                along::<S, N, 8, 1>(simd, keys, query, dim, ahead())
            };
            scores[start + first..start + first + tile].copy_from_slice(&products[..tile]);
        }
    }
    let rest = kv_slice.tokens - whole;
    if rest == 0 {
        return;
    }
    let each = queries
        .chunks_exact(dim)
        .zip(scores.chunks_exact_mut(BLOCK));
    for (query, scores) in each {
        let products = along_fewer(simd, &kv_slice.keys[whole * row_len..], query, dim);
        scores[start + whole..start + kv_slice.tokens].copy_from_slice(&products[..rest]);
    }
}

/// The scores of four queries with a tile of keys, `BLOCK` apart: the same results as for each
/// query alone, with fewer reads.
#[inline(always)]
fn score_four<S: Simd, N: Number>(
    simd: S,
    queries: &[f32],
    keys: &[N],
    dim: usize,
    ahead: &[N],
    scores: &mut [f32],
) {
    let rows = sums::<S>() / 4;
    let len = rows * N::row_len(dim);
    let mut ahead = ahead.chunks(ahead.len().div_ceil(4).max(1));
    for (index, keys) in keys.chunks_exact(len).enumerate() {
        let ahead = ahead.next().unwrap_or_default();
        let products = if rows == 4 {
            along::<S, N, 4, 4>(simd, keys, queries, dim, ahead)
        } else {
            along::<S, N, 2, 4>(simd, keys, queries, dim, ahead)
        };
        for (row, products) in products[..4 * rows].chunks_exact(4).enumerate() {
            for (query, product) in products.iter().enumerate() {
                scores[query * BLOCK + index * rows + row] = *product;
            }
        }
    }
}

/// Hides from each query the keys that it does not see in the block at a position.
#[inline(always)]
fn apply_mask<S: Simd, N: Number>(
    simd: S,
    work: &Work<'_, N>,
    block: usize,
    end: usize,
    scores: &mut [f32],
) {
    let hidden = simd.splat(HIDDEN);
    let queries = work.item.queries.clone();
    for (query, scores) in queries.zip(scores.chunks_exact_mut(BLOCK)) {
        let visible_positions = work.visible_positions(query);
        let first = simd.splat(visible_positions.start as f32);
        let last = simd.splat((visible_positions.end - 1) as f32);
        for (index, scores) in scores[..end].chunks_exact_mut(S::LANES).enumerate() {
            let from = simd.splat((block + index * S::LANES) as f32);
            let positions = simd.add(from, simd.iota());
            let score = simd.load_part(scores);
            let score = simd.select_ge(last, positions, score, hidden);
            simd.store_part(scores, simd.select_ge(positions, first, score, hidden));
        }
    }
}

/// Turns scores into weights. Returns the largest score up to now, the factor for earlier
/// results, and the sum of the weights.
#[inline(always)]
fn softmax_weights<S: Simd>(simd: S, scores: &mut [f32], largest: f32) -> (f32, f32, f32) {
    let mut peak = simd.splat(largest);
    for scores in scores.chunks_exact(S::LANES) {
        peak = simd.max(peak, simd.load_part(scores));
    }
    let new = simd.largest(peak);
    let peak = simd.splat(new);
    let [lowest, nothing] = [LOWEST, 0.0].map(|number| simd.splat(number));
    let mut sum = nothing;
    for scores in scores.chunks_exact_mut(S::LANES) {
        let score = simd.load_part(scores);
        let weight = simd.exp2(simd.sub(score, peak));
        // Exactly zero, so that the result is the same with and without the hidden keys.
        let weight = simd.select_ge(lowest, score, nothing, weight);
        sum = simd.add(sum, weight);
        simd.store_part(scores, weight);
    }
    (new, (largest - new).exp2(), simd.sum(sum))
}
