//! Attention of a step's rows over their paths, in three ways.
//!
//! On a CPU, this crate's own kernel computes each layer in one operation. Where that kernel is
//! not available, the same work is composed of MLX's operations: rotating queries and keys,
//! writing to the tails, and two products with a softmax between them. GPUs have a fused kernel
//! for the products and the softmax.

mod composed;
mod fused;
mod row_blocks;

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use self::row_blocks::RowBlocks;
use super::batch::{Batch, SpanRows};
use super::ops::{self, slice};
use super::profile::{self, Cost, Op};
use super::rotary::{Rotary, Rotation};
use super::shape::Shape;
use super::state::State;
use super::tail::TailWrites;
use crate::kernel_ops;
use motet_kernels::{self, AttendPlan, Order, PartRange, SpanRange, TailRange};

/// Maximum rows of a row block where attention is composed of products. About half of the
/// scores over a row block's own rows are computed only to be masked.
const COMPOSED_ROWS_MAX: usize = 64;

/// A model's attention on a device.
#[derive(Debug)]
pub(super) struct Attention {
    pub(super) shape: Shape,
    pub(super) rotary: Rotary,
    pub(super) backend: AttentionBackend,
}

/// How attention is computed.
#[derive(Debug)]
pub(super) enum AttentionBackend {
    /// By this crate's kernel, on a CPU stream.
    Kernel(Stream, Order),
    /// By MLX's fused kernel where it fits, and composed of products elsewhere.
    Fused,
    /// Composed of products.
    Composed,
}

/// The inputs of attention that all layers of a step share, computed once.
#[derive(Debug)]
pub(super) struct Plan<'a>(BackendPlan<'a>);

#[derive(Debug)]
enum BackendPlan<'a> {
    Kernel(Arc<AttendPlan>, &'a Stream),
    Fused(Rotation<'a>),
    Composed(Rotation<'a>, RowBlocks),
}

impl Attention {
    pub(super) fn plan(&self, batch: &Batch) -> Plan<'_> {
        Plan(match &self.backend {
            AttentionBackend::Kernel(stream, order) => {
                let spans: Vec<SpanRange> = batch.spans.iter().map(span_range).collect();
                let plan = AttendPlan::new(self.kernel_attention(), &spans, *order);
                BackendPlan::Kernel(Arc::new(plan), stream)
            }
            AttentionBackend::Fused if fused::fits(&self.shape, batch) => {
                BackendPlan::Fused(self.rotation(batch))
            }
            AttentionBackend::Fused | AttentionBackend::Composed => BackendPlan::Composed(
                self.rotation(batch),
                RowBlocks::new(&self.shape, batch, COMPOSED_ROWS_MAX),
            ),
        })
    }

    /// Rotates, caches and attends the rows of one layer. `packed` holds queries, keys and
    /// values, `[rows, fused heads * head_dim]`; the new state is written to the tails. Returns
    /// `[rows, heads * head_dim]`. Must be called for the layers in order.
    pub(super) fn attend(
        &self,
        batch: &Batch,
        plan: &Plan<'_>,
        layer: usize,
        packed: &Array,
        tails: &mut TailWrites,
    ) -> Result<Array, Exception> {
        let state = || self.cached(batch);
        profile::op_beside(Op::Attention, &[packed], state, || {
            self.attend_with_backend(batch, plan, layer, packed, tails)
        })
    }

    /// The cached state that the rows of one layer see.
    fn cached(&self, batch: &Batch) -> Cost {
        let segments = batch.segments.iter().map(|segment| segment.retained());
        let tails = batch.spans.iter().map(|span| span.held);
        let tokens: usize = segments.chain(tails).sum();
        Cost {
            read_bytes: tokens * self.shape.cached_per_token() * self.shape.cached.kind.bytes(),
            flops: 0,
        }
    }

    fn attend_with_backend(
        &self,
        batch: &Batch,
        plan: &Plan<'_>,
        layer: usize,
        packed: &Array,
        tails: &mut TailWrites,
    ) -> Result<Array, Exception> {
        let shape = &self.shape;
        let (rotation, row_blocks) = match &plan.0 {
            BackendPlan::Kernel(plan, stream) => {
                return attend_by_kernel(batch, plan, layer, packed, tails, stream);
            }
            BackendPlan::Fused(rotation) => (rotation, None),
            BackendPlan::Composed(rotation, row_blocks) => (rotation, Some(row_blocks)),
        };
        let turned = rotation.apply(shape, packed)?;
        let keys = self.by_head(&turned, shape.heads, shape.rotated_heads())?;
        let values = self.by_head(packed, shape.rotated_heads(), shape.packed_heads())?;
        let new = State {
            keys: keys.swap_axes(0, 1)?,
            values: values.swap_axes(0, 1)?,
        };
        let tails = tails.write(batch, &new)?;
        let queries = self.queries(&turned)?;
        let attended = match row_blocks {
            None => fused::attend(shape, batch, &queries, tails)?,
            Some(row_blocks) => composed::attend(shape, batch, row_blocks, layer, &queries, tails)?,
        };
        self.by_row(&attended)
    }

    fn kernel_attention(&self) -> motet_kernels::Attention {
        motet_kernels::Attention {
            heads: self.shape.kernel_heads(),
            scale: self.shape.scale(),
            window: self.shape.window,
            rotary: self.rotary.for_kernel(),
            cached: self.shape.cached.kind,
        }
    }

    fn rotation(&self, batch: &Batch) -> Rotation<'_> {
        self.rotary.rotation(batch.positions())
    }

    /// Heads `from..to` of every row, `[rows, heads, head_dim]`.
    fn by_head(&self, packed: &Array, from: i32, to: i32) -> Result<Array, Exception> {
        let (rows, dim) = (packed.dim(0), self.shape.head_dim);
        slice(packed, [0, from * dim], [rows, to * dim])?.reshape(&[rows, to - from, dim])
    }

    /// Queries of all rows, `[kv_heads, rows * queries per key, head_dim]`.
    fn queries(&self, turned: &Array) -> Result<Array, Exception> {
        let Shape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let (rows, shared) = (turned.dim(0), self.shape.queries_per_key());
        slice(turned, [0, 0], [rows, heads * head_dim])?
            .reshape(&[rows, kv_heads, shared, head_dim])?
            .swap_axes(0, 1)?
            .reshape(&[kv_heads, rows * shared, head_dim])
    }

    /// The inverse of [`queries`](Self::queries), one row after another.
    fn by_row(&self, attended: &Array) -> Result<Array, Exception> {
        let Shape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let shared = self.shape.queries_per_key();
        let rows = attended.dim(1) / shared;
        attended
            .reshape(&[kv_heads, rows, shared, head_dim])?
            .swap_axes(0, 1)?
            .reshape(&[rows, heads * head_dim])
    }
}

fn attend_by_kernel(
    batch: &Batch,
    plan: &Arc<AttendPlan>,
    layer: usize,
    packed: &Array,
    tails: &mut TailWrites,
    stream: &Stream,
) -> Result<Array, Exception> {
    let segments: Vec<(&Array, &Array)> = batch
        .segments
        .iter()
        .map(|segment| segment.layer(layer))
        .map(|state| (&state.keys, &state.values))
        .collect();
    tails.write_in_place(|buffers| kernel_ops::attend(plan, packed, &segments, buffers, stream))
}

fn span_range(span: &SpanRows) -> SpanRange {
    let path = span.path.iter().map(|seen| PartRange {
        segment: seen.segment,
        start: seen.positions.start,
        tokens: seen.positions.len(),
    });
    SpanRange {
        rows: span.rows.len(),
        path: path.collect(),
        tail: TailRange {
            start: span.tail_start(),
            tokens: span.held,
        },
    }
}

/// The given rows of an array whose second axis is rows times queries per key. Returns the
/// array itself when the rows are all of it.
fn query_rows(shape: &Shape, array: &Array, rows: &Range<usize>) -> Result<Array, Exception> {
    let shared = shape.queries_per_key() as usize;
    if rows.start == 0 && rows.end * shared == array.dim(1) as usize {
        return Ok(array.clone());
    }
    ops::tokens(array, rows.start * shared, rows.end * shared)
}

/// The given tokens of a tail's buffer, which holds keys or values.
fn key_rows(buffer: &Array, keys: &Range<usize>) -> Result<Array, Exception> {
    ops::tokens(buffer, keys.start, keys.end)
}
