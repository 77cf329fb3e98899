//! Attention of a few queries: keys are read row by row, as they lie in memory.

use super::super::products::{along, sums};
use super::super::simd::Simd;
use super::group::BLOCK;
use super::item::{Block, Work};
use super::scratch::{LINE, Scratch};
use super::softmax::{HIDDEN, LOWEST, Layout, weigh};

/// Most queries that this is the better kernel for. Each costs its own pass over
/// the block in the first level of cache; beyond half a vector of them the other
/// kernel's idle lanes cost less.
pub(super) const fn most<S: Simd>() -> usize {
    S::LANES / 2
}

/// Computes an item of at most [`most`] queries.
#[inline(always)]
pub(super) fn run<S: Simd>(simd: S, work: &Work<'_>, memory: &mut Scratch) {
    let dim = work.dim();
    let queries = work.item.queries.clone();
    let count = queries.len();
    let [values, scores, largest, total, factors] =
        memory.take([count * dim, count * BLOCK, count, count, count]);
    values.fill(0.0);
    largest.fill(LOWEST);
    total.fill(0.0);
    let sight = work.sight(queries.clone());
    let mut blocks = work.blocks().peekable();
    while let Some(block) = blocks.next() {
        let block = block.within(&sight.any, dim);
        if block.tokens == 0 {
            continue;
        }
        score(simd, work, &block, blocks.peek(), scores);
        if sight.is_partial(&block) {
            hide(simd, work, &block, scores);
        }
        for (index, scores) in scores.chunks_exact_mut(BLOCK).enumerate() {
            let scores = &mut scores[..block.tokens.next_multiple_of(S::LANES)];
            let (new, factor, sum) = soften(simd, scores, largest[index]);
            largest[index] = new;
            factors[index] = factor;
            total[index] = total[index] * factor + sum;
        }
        let layout = Layout {
            key: 1,
            query: BLOCK,
        };
        weigh(simd, scores, layout, block.values, dim, factors, values);
    }
    for (index, query) in queries.enumerate() {
        let values = &values[index * dim..][..dim];
        work.finish(simd, query, largest[index], total[index], values);
    }
}

/// The scores of each query, `BLOCK` apart; hidden up to the next whole vector.
/// Fetches the `next` block meanwhile.
#[inline(always)]
fn score<S: Simd>(
    simd: S,
    work: &Work<'_>,
    block: &Block<'_>,
    next: Option<&Block<'_>>,
    scores: &mut [f32],
) {
    let dim = work.dim();
    let tile = sums::<S>();
    let whole = block.tokens - block.tokens % tile;
    for first in (0..whole).step_by(tile) {
        let keys = &block.keys[first * dim..(first + tile) * dim];
        // The same keys and values of the next block: those that the first and the
        // second query's pass fetch ahead.
        let range = first * dim..first * dim + keys.len();
        let [mut ahead, mut after] = next.map_or([&[][..]; 2], |next| {
            [next.keys, next.values].map(|all| all.get(range.clone()).unwrap_or_default())
        });
        if work.item.queries.len() == 1 {
            fetch(simd, after);
        }
        let queries = work.item.queries.clone();
        for (query, scores) in queries.zip(scores.chunks_exact_mut(BLOCK)) {
            let query = work.query(query);
            let products = if tile == 16 {
                along::<S, 16, 1>(simd, keys, query, dim, ahead)
            } else {
                along::<S, 8, 1>(simd, keys, query, dim, ahead)
            };
            (ahead, after) = (after, &[]);
            scores[first..first + tile].copy_from_slice(&products[..tile]);
        }
    }
    if whole == block.tokens {
        return;
    }
    let queries = work.item.queries.clone();
    for (query, scores) in queries.zip(scores.chunks_exact_mut(BLOCK)) {
        let query = work.query(query);
        for (key, score) in block.keys[whole * dim..]
            .chunks_exact(dim)
            .zip(&mut scores[whole..])
        {
            let mut sum = simd.splat(0.0);
            for (q, k) in query.chunks(S::LANES).zip(key.chunks(S::LANES)) {
                sum = simd.mul_add(simd.load_part(q), simd.load_part(k), sum);
            }
            *score = simd.sum(sum);
        }
        scores[block.tokens..block.tokens.next_multiple_of(S::LANES)].fill(HIDDEN);
    }
}

/// Asks for numbers that will be needed.
#[inline(always)]
fn fetch<S: Simd>(simd: S, numbers: &[f32]) {
    for line in numbers.chunks(LINE) {
        simd.prefetch(line.as_ptr());
    }
}

/// Hides from each query what it does not see.
#[inline(always)]
fn hide<S: Simd>(simd: S, work: &Work<'_>, block: &Block<'_>, scores: &mut [f32]) {
    let hidden = simd.splat(HIDDEN);
    let queries = work.item.queries.clone();
    for (query, scores) in queries.zip(scores.chunks_exact_mut(BLOCK)) {
        let sees = work.sees(query);
        let first = simd.splat(sees.start as f32);
        let last = simd.splat((sees.end - 1) as f32);
        let scores = &mut scores[..block.tokens.next_multiple_of(S::LANES)];
        for (index, scores) in scores.chunks_exact_mut(S::LANES).enumerate() {
            let from = simd.splat((block.position + index * S::LANES) as f32);
            let positions = simd.add(from, simd.iota());
            let score = simd.load_part(scores);
            let score = simd.select_ge(last, positions, score, hidden);
            simd.store_part(scores, simd.select_ge(positions, first, score, hidden));
        }
    }
}

/// Turns scores into weights. Returns the largest score so far, the factor for
/// what was computed before, and the sum of the weights.
#[inline(always)]
fn soften<S: Simd>(simd: S, scores: &mut [f32], largest: f32) -> (f32, f32, f32) {
    let mut peak = simd.splat(largest);
    for scores in scores.chunks_exact(S::LANES) {
        peak = simd.max(peak, simd.load_part(scores));
    }
    let new = simd.largest(peak);
    let peak = simd.splat(new);
    let mut sum = simd.splat(0.0);
    for scores in scores.chunks_exact_mut(S::LANES) {
        let weight = simd.exp2(simd.sub(simd.load_part(scores), peak));
        sum = simd.add(sum, weight);
        simd.store_part(scores, weight);
    }
    (new, (largest - new).exp2(), simd.sum(sum))
}
