//! Causal grouped-query attention of a ragged batch over cached keys and values,
//! with rotary embedding and the append to each tail, in one call.
//!
//! Three loops over threads:
//!
//! 1. `rotate`: queries are normalised, rotated and scaled into scratch memory, new keys
//!    and values into each span's tail.
//! 2. `run`: the plan's items, each a block of queries over a range
//!    of keys, by online softmax (Milakov and Gimelshein 2018; FlashAttention,
//!    Dao et al. 2022). Rows of all spans that share segments are stacked, so that
//!    shared keys are read once (as in Hydragen and ChunkAttention). Pairs that the
//!    mask hides are not computed, except where a block of keys crosses its edge.
//! 3. `merge`: where several items worked for a row, their results are merged by log-sum-exp.
//!
//! Two inner kernels compute the products. `few_queries` serves one to `LANES / 2` queries and
//! reads keys row by row in memory order. This is decoding, and limited by memory.
//! `many_queries` holds queries side by side in the lanes of a vector and broadcasts a key's
//! numbers. Keys are never transposed, and the softmax needs no horizontal operation.
//!
//! [`Extras`] lists what some families add: norms of queries and keys, sinks, a softcap. Each is
//! in one of these loops and costs nothing where it is absent.
//!
//! In the [order of a sequence](Order::PerSequence) `few_queries` computes everything: each
//! query's result is the same to the last bit whatever the other queries are and wherever the
//! keys lie.

mod extras;
mod few_queries;
mod group;
mod item;
mod layer_inputs;
mod many_queries;
mod merge;
mod plan;
mod prepare;
mod rotate;
mod run;
mod shape;
mod softmax;
#[cfg(test)]
mod tests;
mod turn;

pub use extras::{Extras, PositionScale, QkNorm};
pub use layer_inputs::LayerInputs;
pub use plan::{AttendPlan, Order};
pub use shape::{Attention, Heads, PartRange, Rotary, SpanRange, TailRange};
pub use turn::turn_back;

use half::{bf16, f16};
use motet_formats::simd::Number;

use super::cached_int8::Int8;
use super::pool::Pool;
use super::scratch;

/// Keys and values of one segment, each `[kv heads, capacity, row]`, where a row is the elements
/// of `N` that [hold](Number::row_len) a head of one token.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a, N> {
    /// Keys.
    pub keys: &'a [N],
    /// Values.
    pub values: &'a [N],
    /// Capacity in tokens.
    pub capacity: usize,
}

/// Keys and values of one tail, in the form of [`Cache`].
#[derive(Debug)]
pub struct CacheMut<'a, N> {
    /// Keys.
    pub keys: &'a mut [N],
    /// Values.
    pub values: &'a mut [N],
    /// Capacity in tokens.
    pub capacity: usize,
}

/// Attention of all rows of a step, in one layer.
///
/// `output` is `[rows, query heads * head dim]`. `segments` and `tails` (one for each span)
/// are those of the plan; each tail gets the keys and values of its span's rows.
///
/// # Panics
///
/// When a length does not fit the plan, or `layer` lacks weights that the plan's attention needs or
/// has others.
pub fn attend<N: CacheNumber>(
    pool: &Pool,
    plan: &AttendPlan,
    layer: LayerInputs<'_>,
    segments: &[Cache<'_, N>],
    tails: &mut [CacheMut<'_, N>],
    output: &mut [f32],
) {
    N::attend(pool, plan, layer, segments, tails, output);
}

/// A type of the numbers in a cache. Attention over each is compiled here, optimised as this crate is,
/// and not in every crate that calls [`attend`].
pub trait CacheNumber: Number {
    /// [`attend`] over caches of this type.
    #[doc(hidden)]
    fn attend(
        pool: &Pool,
        plan: &AttendPlan,
        layer: LayerInputs<'_>,
        segments: &[Cache<'_, Self>],
        tails: &mut [CacheMut<'_, Self>],
        output: &mut [f32],
    );
}

macro_rules! cache_number {
    ($($number:ty),*) => {$(
        impl CacheNumber for $number {
            fn attend(
                pool: &Pool,
                plan: &AttendPlan,
                layer: LayerInputs<'_>,
                segments: &[Cache<'_, Self>],
                tails: &mut [CacheMut<'_, Self>],
                output: &mut [f32],
            ) {
                attend_cached(pool, plan, layer, segments, tails, output);
            }
        }
    )*};
}

cache_number!(f32, bf16, f16, Int8);

fn attend_cached<N: Number>(
    pool: &Pool,
    plan: &AttendPlan,
    layer: LayerInputs<'_>,
    segments: &[Cache<'_, N>],
    tails: &mut [CacheMut<'_, N>],
    output: &mut [f32],
) {
    plan.check(layer, segments, tails, output);
    scratch::for_step(|memory| {
        let [queries, partials] = memory.take([plan.query_numbers(), plan.partial_numbers()]);
        rotate::rotate(pool, plan, layer, queries, tails);
        let tails: Vec<Cache<'_, N>> = tails.iter().map(CacheMut::read).collect();
        let caches = item::Caches {
            segments,
            tails: &tails,
        };
        let rows = item::Rows {
            queries,
            sinks: layer.sinks,
        };
        run::run(pool, plan, rows, caches, partials, output);
        merge::merge(pool, plan, layer.sinks, partials, output);
    });
}

impl<N> CacheMut<'_, N> {
    fn read(&self) -> Cache<'_, N> {
        Cache {
            keys: self.keys,
            values: self.values,
            capacity: self.capacity,
        }
    }
}
