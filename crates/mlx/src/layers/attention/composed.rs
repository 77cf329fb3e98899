//! Attention as products and a softmax: for any path, on any device.
//!
//! Queries are `[kv_heads, rows * queries per key, head_dim]`. Queries that share a key head
//! lie together, so keys and values are never repeated, and the queries of a run of rows are
//! one slice.
//!
//! A segment that several row blocks see is multiplied once with all their queries stacked.
//! Each step reads it from memory once, however many sequences share it, as in ChunkAttention
//! (Ye et al. 2024) and Hydragen (Juravsky et al. 2024). Those normalise each part separately
//! and merge the parts by their log-sum-exp. Here each row block's scores over its parts are
//! laid side by side and normalised together, which is the same sum without the second pass.
//! Then the weighted values of the parts are added up.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::extras::{sink_column, softcapped};
use super::row_blocks::{Reader, RowBlocks};
use super::{Shape, key_rows, query_rows};
use crate::device::ops::{self, concatenate, softmax};
use crate::state::layer_state::State;

/// `[kv_heads, rows * queries per key, head_dim]` of all rows. `segments` are the layer's state
/// of each segment that some span sees. `tails` are the layer's buffers, one for each span,
/// with the step's rows in them.
pub(super) fn attend(
    shape: &Shape,
    softmax: Softmax<'_>,
    segments: &[&State],
    row_blocks: &RowBlocks,
    queries: &Array,
    tails: &[State],
) -> Result<Array, Exception> {
    let queries = &queries.multiply(Array::from_f32(shape.scale))?;
    let queries_of = row_blocks
        .all
        .iter()
        .map(|row_block| query_rows(shape, queries, &row_block.rows))
        .collect::<Result<Vec<_>, _>>()?;
    let mut parts: Vec<Parts> = row_blocks.all.iter().map(|_| Parts::default()).collect();
    for (segment, readers) in shared(segments, row_blocks) {
        let gathered = gather_queries(shape, queries, &queries_of, row_blocks, readers)?;
        let keys = segment.keys.as_dtype(queries.dtype())?.swap_axes(1, 2)?;
        let scores = gathered.matmul(&keys)?;
        for (reader, rows) in reader_rows(row_blocks, readers) {
            let scores = query_rows(shape, &scores, &rows)?;
            let scores = softcapped(scores, softmax.cap)?;
            parts[reader.row_block].push(masked(scores, reader.mask.as_ref())?);
        }
    }
    for ((row_block, queries), parts) in row_blocks.all.iter().zip(&queries_of).zip(&mut parts) {
        let keys = key_rows(&tails[row_block.span].keys, &row_block.keys)?;
        let keys = keys.as_dtype(queries.dtype())?.swap_axes(1, 2)?;
        let scores = softcapped(queries.matmul(&keys)?, softmax.cap)?;
        parts.push(masked(scores, row_block.mask.as_ref())?);
    }
    let mut shares = parts
        .into_iter()
        .map(|parts| parts.normalised(shape, softmax.sinks))
        .collect::<Result<Vec<_>, _>>()?;
    let mut sums: Vec<Option<Array>> = vec![None; row_blocks.all.len()];
    for (segment, readers) in shared(segments, row_blocks) {
        let gathered = readers
            .iter()
            .map(|reader| shares[reader.row_block].next())
            .collect::<Result<Vec<_>, _>>()?;
        let values = segment.values.as_dtype(queries.dtype())?;
        let values = concatenate(gathered, 1)?.matmul(&values)?;
        for (reader, rows) in reader_rows(row_blocks, readers) {
            add(
                &mut sums[reader.row_block],
                query_rows(shape, &values, &rows)?,
            )?;
        }
    }
    for ((row_block, shares), sum) in row_blocks.all.iter().zip(&mut shares).zip(&mut sums) {
        let values = key_rows(&tails[row_block.span].values, &row_block.keys)?;
        let values = values.as_dtype(queries.dtype())?;
        add(sum, shares.next()?.matmul(&values)?)?;
    }
    concatenate(sums.into_iter().flatten().collect(), 1)
}

/// The deviations from the usual softmax of the scores.
#[derive(Clone, Copy)]
pub(super) struct Softmax<'a> {
    /// Scores `s` become `cap * tanh(s / cap)`.
    pub(super) cap: Option<f32>,
    /// The logit of each head's sink, `[heads]`.
    pub(super) sinks: Option<&'a Array>,
}

/// Segments that some row block sees, each with those row blocks.
fn shared<'a>(
    segments: &'a [&State],
    row_blocks: &'a RowBlocks,
) -> impl Iterator<Item = (&'a State, &'a [Reader])> {
    let all = segments.iter().zip(&row_blocks.readers);
    all.filter(|(_, readers)| !readers.is_empty())
        .map(|(segment, readers)| (*segment, readers.as_slice()))
}

/// The queries of all readers of a segment, one after another.
fn gather_queries(
    shape: &Shape,
    queries: &Array,
    queries_of: &[Array],
    row_blocks: &RowBlocks,
    readers: &[Reader],
) -> Result<Array, Exception> {
    let rows = |reader: usize| &row_blocks.all[readers[reader].row_block].rows;
    let together = (1..readers.len()).all(|next| rows(next - 1).end == rows(next).start);
    if together {
        let last = readers.len() - 1;
        return query_rows(shape, queries, &(rows(0).start..rows(last).end));
    }
    let queries = readers.iter().map(|reader| &queries_of[reader.row_block]);
    concatenate(queries.cloned().collect(), 1)
}

/// Each reader of a segment with its rows in the stack.
fn reader_rows<'a>(
    row_blocks: &'a RowBlocks,
    readers: &'a [Reader],
) -> impl Iterator<Item = (&'a Reader, Range<usize>)> {
    readers.iter().scan(0, |end, reader| {
        let start = *end;
        *end += row_blocks.all[reader.row_block].rows.len();
        Some((reader, start..*end))
    })
}

/// One row block's scores, part after part: the batch's segments in order, then the span's
/// tail.
#[derive(Default)]
struct Parts {
    scores: Vec<Array>,
}

/// One row block's normalised scores, returned part by part.
struct Shares {
    all: Array,
    keys: std::vec::IntoIter<i32>,
    start: i32,
}

impl Parts {
    fn push(&mut self, scores: Array) {
        self.scores.push(scores);
    }

    /// A sink takes its share of the sum, and has no value.
    fn normalised(mut self, shape: &Shape, sinks: Option<&Array>) -> Result<Shares, Exception> {
        let keys: Vec<i32> = self.scores.iter().map(|scores| scores.dim(2)).collect();
        if let (Some(sinks), Some(scores)) = (sinks, self.scores.first()) {
            let column = sink_column(shape, sinks, scores.dim(1))?;
            self.scores.push(column.as_dtype(scores.dtype())?);
        }
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
