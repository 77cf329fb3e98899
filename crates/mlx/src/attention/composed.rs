//! Attention as products and a softmax: over any paths, on any device.
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
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::pieces::{Pieces, Reader};
use super::{key_rows, query_rows};
use crate::batch::Batch;
use crate::ops::{self, concatenate, softmax};
use crate::segment::MlxSegment;
use crate::shape::Shape;
use crate::state::State;

/// `[kv_heads, rows * queries per key, head_dim]` of all rows. `tails` are the
/// layer's buffers, one for each span, with the step's rows in them.
pub(super) fn attend(
    shape: &Shape,
    batch: &Batch,
    pieces: &Pieces,
    layer: usize,
    queries: &Array,
    tails: &[State],
) -> Result<Array, Exception> {
    let queries = &queries.multiply(Array::from_f32(shape.scale()))?;
    let queries_of = pieces
        .all
        .iter()
        .map(|piece| query_rows(shape, queries, &piece.rows))
        .collect::<Result<Vec<_>, _>>()?;
    let mut parts: Vec<Parts> = pieces.all.iter().map(|_| Parts::default()).collect();
    for (segment, readers) in shared(batch, pieces) {
        let stacked = stack(shape, queries, &queries_of, pieces, readers)?;
        let keys = &segment.layer(layer).keys;
        let keys = keys.as_dtype(queries.dtype())?.swap_axes(1, 2)?;
        let scores = stacked.matmul(&keys)?;
        for (reader, rows) in stacked_rows(pieces, readers) {
            let scores = query_rows(shape, &scores, &rows)?;
            parts[reader.piece].push(masked(scores, reader.mask.as_ref())?);
        }
    }
    for ((piece, queries), parts) in pieces.all.iter().zip(&queries_of).zip(&mut parts) {
        let keys = key_rows(&tails[piece.span].keys, &piece.keys)?;
        let keys = keys.as_dtype(queries.dtype())?.swap_axes(1, 2)?;
        parts.push(masked(queries.matmul(&keys)?, piece.mask.as_ref())?);
    }
    let mut shares = parts
        .into_iter()
        .map(Parts::normalised)
        .collect::<Result<Vec<_>, _>>()?;
    let mut sums: Vec<Option<Array>> = vec![None; pieces.all.len()];
    for (segment, readers) in shared(batch, pieces) {
        let stacked = readers
            .iter()
            .map(|reader| shares[reader.piece].next())
            .collect::<Result<Vec<_>, _>>()?;
        let values = segment.layer(layer).values.as_dtype(queries.dtype())?;
        let values = concatenate(stacked, 1)?.matmul(&values)?;
        for (reader, rows) in stacked_rows(pieces, readers) {
            add(&mut sums[reader.piece], query_rows(shape, &values, &rows)?)?;
        }
    }
    for ((piece, shares), sum) in pieces.all.iter().zip(&mut shares).zip(&mut sums) {
        let values = key_rows(&tails[piece.span].values, &piece.keys)?;
        let values = values.as_dtype(queries.dtype())?;
        add(sum, shares.next()?.matmul(&values)?)?;
    }
    concatenate(sums.into_iter().flatten().collect(), 1)
}

/// Segments that some piece sees, and those pieces.
fn shared<'a>(
    batch: &'a Batch,
    pieces: &'a Pieces,
) -> impl Iterator<Item = (&'a Rc<MlxSegment>, &'a [Reader])> {
    let all = batch.segments.iter().zip(&pieces.readers);
    all.filter(|(_, readers)| !readers.is_empty())
        .map(|(segment, readers)| (segment, readers.as_slice()))
}

/// The queries of all readers of a segment, one after another.
fn stack(
    shape: &Shape,
    queries: &Array,
    queries_of: &[Array],
    pieces: &Pieces,
    readers: &[Reader],
) -> Result<Array, Exception> {
    let rows = |reader: usize| &pieces.all[readers[reader].piece].rows;
    let together = (1..readers.len()).all(|next| rows(next - 1).end == rows(next).start);
    if together {
        let last = readers.len() - 1;
        return query_rows(shape, queries, &(rows(0).start..rows(last).end));
    }
    let queries = readers.iter().map(|reader| &queries_of[reader.piece]);
    concatenate(queries.cloned().collect(), 1)
}

/// Each reader of a segment with its rows in the stack.
fn stacked_rows<'a>(
    pieces: &'a Pieces,
    readers: &'a [Reader],
) -> impl Iterator<Item = (&'a Reader, Range<usize>)> {
    readers.iter().scan(0, |end, reader| {
        let start = *end;
        *end += pieces.all[reader.piece].rows.len();
        Some((reader, start..*end))
    })
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
    keys: std::vec::IntoIter<i32>,
    start: i32,
}

impl Parts {
    fn push(&mut self, scores: Array) {
        self.scores.push(scores);
    }

    fn normalised(self) -> Result<Shares, Exception> {
        let keys: Vec<i32> = self.scores.iter().map(|scores| scores.dim(2)).collect();
        Ok(Shares {
            all: softmax(&concatenate(self.scores, 2)?)?,
            keys: keys.into_iter(),
            start: 0,
        })
    }
}

impl Shares {
    fn next(&mut self) -> Result<Array, Exception> {
        let keys = self.keys.next().expect("as many shares as scores");
        let (start, stop) = (self.start, self.start + keys);
        self.start = stop;
        let (heads, rows, all) = (self.all.dim(0), self.all.dim(1), self.all.dim(2));
        if keys == all {
            return Ok(self.all.clone());
        }
        ops::slice(&self.all, [0, 0, start], [heads, rows, stop])
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
