//! Attention of a step's rows over their paths.
//!
//! Queries are `[kv_heads, rows * queries per key, head_dim]`: those that share a
//! key head lie together, so that keys and values are never repeated, and the
//! queries of a run of rows are one slice.
//!
//! A segment that several pieces see is multiplied once with all their queries
//! stacked, so it is read from memory once however many sequences share it, as in
//! ChunkAttention (Ye et al. 2024) and Hydragen (Juravsky et al. 2024). Those
//! normalise each part for itself and then merge the parts by their log-sum-exp.
//! Here each piece's scores over its parts are laid side by side and normalised
//! together, which is the same sum without the second pass; then the shares of
//! each part's values are added up.

use std::ops::Range;

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast};

use super::batch::{Batch, Piece, Shared};
use super::ops::{self, concatenate, softmax};
use super::shape::Shape;

/// Attends with products and a softmax, over any paths. `tails` are the layer's
/// buffers, one for each span, with the step's rows in them.
pub(super) fn composed(
    shape: &Shape,
    batch: &Batch,
    layer: usize,
    queries: &Array,
    tails: &[&Array],
) -> Result<Array, Exception> {
    let heads = Heads::new(shape);
    let queries_of = batch
        .pieces
        .iter()
        .map(|piece| heads.rows(queries, &piece.rows))
        .collect::<Result<Vec<_>, Exception>>()?;
    let mut parts: Vec<Parts> = batch.pieces.iter().map(|_| Parts::default()).collect();
    for shared in &batch.segments {
        let stacked = heads.stack(queries, &queries_of, batch, shared)?;
        let scores = stacked.matmul(&shared.segment.layer(layer).keys_transposed)?;
        for (reader, rows) in shared.stacked(batch) {
            let scores = heads.rows(&scores, &rows)?;
            parts[reader.piece].push(masked(scores, reader.mask.as_ref())?);
        }
    }
    for ((piece, queries), parts) in batch.pieces.iter().zip(&queries_of).zip(&mut parts) {
        let keys = heads.keys_transposed(tails[piece.span], &piece.keys)?;
        parts.push(masked(queries.matmul(&keys)?, piece.mask.as_ref())?);
    }
    let mut shares = parts
        .into_iter()
        .map(Parts::normalised)
        .collect::<Result<Vec<_>, Exception>>()?;
    let mut sums: Vec<Option<Array>> = vec![None; batch.pieces.len()];
    for shared in &batch.segments {
        let readers = shared.readers.iter();
        let stacked = readers
            .map(|reader| shares[reader.piece].next())
            .collect::<Result<Vec<_>, Exception>>()?;
        let values = concatenate(stacked, 1)?.matmul(&shared.segment.layer(layer).values)?;
        for (reader, rows) in shared.stacked(batch) {
            add(&mut sums[reader.piece], heads.rows(&values, &rows)?)?;
        }
    }
    for ((piece, shares), sum) in batch.pieces.iter().zip(&mut shares).zip(&mut sums) {
        let values = heads.values(tails[piece.span], &piece.keys)?;
        add(sum, shares.next()?.matmul(&values)?)?;
    }
    concatenate(sums.into_iter().flatten().collect(), 1)
}

/// Attends with MLX's fused kernel, where every span's path is its tail alone and
/// nothing but causality hides keys. `None` where that is not so.
pub(super) fn fused(
    shape: &Shape,
    batch: &Batch,
    queries: &Array,
    tails: &[&Array],
) -> Option<Result<Array, Exception>> {
    if !batch.segments.is_empty() || shape.window.is_some() {
        return None;
    }
    let heads = Heads::new(shape);
    let spans = batch
        .pieces
        .iter()
        .map(|piece| heads.fused(queries, piece, tails[piece.span]));
    Some(
        spans
            .collect::<Result<_, Exception>>()
            .and_then(|spans| concatenate(spans, 1)),
    )
}

/// One piece's scores, part after part, in the order of the batch's segments and
/// then its tail.
#[derive(Default)]
struct Parts {
    scores: Vec<Array>,
}

/// One piece's normalised scores, given out part by part.
struct Shares {
    all: Array,
    keys: Vec<i32>,
    given: usize,
    start: i32,
}

impl Parts {
    fn push(&mut self, scores: Array) {
        self.scores.push(scores);
    }

    fn normalised(self) -> Result<Shares, Exception> {
        let keys = self.scores.iter().map(|scores| scores.dim(2)).collect();
        Ok(Shares {
            all: softmax(&concatenate(self.scores, 2)?)?,
            keys,
            given: 0,
            start: 0,
        })
    }
}

impl Shares {
    fn next(&mut self) -> Result<Array, Exception> {
        if self.keys.len() == 1 {
            return Ok(self.all.clone());
        }
        let (start, stop) = (self.start, self.start + self.keys[self.given]);
        self.given += 1;
        self.start = stop;
        let (heads, rows) = (self.all.dim(0), self.all.dim(1));
        ops::slice(&self.all, [0, 0, start], [heads, rows, stop])
    }
}

impl Shared {
    /// Each reader with its rows in the stack.
    fn stacked<'a>(
        &'a self,
        batch: &'a Batch,
    ) -> impl Iterator<Item = (&'a super::batch::Reader, Range<usize>)> {
        let mut end = 0;
        self.readers.iter().map(move |reader| {
            let start = end;
            end += batch.pieces[reader.piece].rows.len();
            (reader, start..end)
        })
    }
}

/// How queries, keys and values lie in their arrays.
struct Heads {
    kv: i32,
    dim: i32,
    /// Queries of one row that share a key head.
    shared: i32,
}

impl Heads {
    fn new(shape: &Shape) -> Self {
        Self {
            kv: shape.kv_heads,
            dim: shape.head_dim,
            shared: shape.queries_per_key(),
        }
    }

    /// The given rows of an array whose second axis is rows times queries per
    /// key; the array itself when that is all of it.
    fn rows(&self, array: &Array, rows: &Range<usize>) -> Result<Array, Exception> {
        let (start, stop) = (
            rows.start as i32 * self.shared,
            rows.end as i32 * self.shared,
        );
        if start == 0 && stop == array.dim(1) {
            return Ok(array.clone());
        }
        ops::slice(array, [0, start, 0], [self.kv, stop, array.dim(2)])
    }

    /// The queries of all readers of a segment, one after another.
    fn stack(
        &self,
        queries: &Array,
        queries_of: &[Array],
        batch: &Batch,
        shared: &Shared,
    ) -> Result<Array, Exception> {
        let rows = |reader: usize| &batch.pieces[shared.readers[reader].piece].rows;
        let together = (1..shared.readers.len()).all(|next| rows(next - 1).end == rows(next).start);
        if together {
            let last = shared.readers.len() - 1;
            return self.rows(queries, &(rows(0).start..rows(last).end));
        }
        let readers = shared.readers.iter();
        concatenate(
            readers
                .map(|reader| queries_of[reader.piece].clone())
                .collect(),
            1,
        )
    }

    /// `[kv_heads, head_dim, keys]` of a tail's buffer.
    fn keys_transposed(&self, tail: &Array, keys: &Range<usize>) -> Result<Array, Exception> {
        self.keys(tail, keys)?.swap_axes(1, 2)
    }

    fn keys(&self, tail: &Array, keys: &Range<usize>) -> Result<Array, Exception> {
        let (start, stop) = (keys.start as i32, keys.end as i32);
        ops::slice(tail, [0, start, 0], [self.kv, stop, self.dim])
    }

    fn values(&self, tail: &Array, keys: &Range<usize>) -> Result<Array, Exception> {
        let (start, stop) = (keys.start as i32, keys.end as i32);
        ops::slice(tail, [self.kv, start, 0], [2 * self.kv, stop, self.dim])
    }

    /// A piece of a whole span through the fused kernel.
    fn fused(&self, queries: &Array, piece: &Piece, tail: &Array) -> Result<Array, Exception> {
        let rows = piece.rows.len() as i32;
        let queries = self
            .rows(queries, &piece.rows)?
            .reshape(&[self.kv, rows, self.shared, self.dim])?
            .transpose_axes(&[0, 2, 1, 3])?
            .reshape(&[1, self.kv * self.shared, rows, self.dim])?;
        let keys = self.keys(tail, &piece.keys)?.expand_dims(0)?;
        let values = self.values(tail, &piece.keys)?.expand_dims(0)?;
        let causal = fast::ScaledDotProductAttentionMask::Causal;
        // The scale is in the queries' weights.
        let attended = fast::scaled_dot_product_attention(
            queries,
            keys,
            values,
            1.0,
            (rows > 1).then_some(causal),
            None,
        )?;
        attended
            .reshape(&[self.kv, self.shared, rows, self.dim])?
            .transpose_axes(&[0, 2, 1, 3])?
            .reshape(&[self.kv, rows * self.shared, self.dim])
    }
}

fn masked(scores: Array, mask: Option<&Array>) -> Result<Array, Exception> {
    match mask {
        Some(mask) => scores.add(mask),
        None => Ok(scores),
    }
}

fn add(sum: &mut Option<Array>, more: Array) -> Result<(), Exception> {
    *sum = Some(match sum.take() {
        Some(sum) => sum.add(more)?,
        None => more,
    });
    Ok(())
}
