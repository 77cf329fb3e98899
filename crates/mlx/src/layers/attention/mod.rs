//! Attention of a step's rows over their paths, in three ways.
//!
//! On a CPU, this crate's own kernel computes each layer in one operation. Where that kernel is
//! not available, the same work is composed of MLX's operations: rotating queries and keys,
//! writing to the tails, and two products with a softmax between them. GPUs have a fused kernel
//! for the products and the softmax.

mod composed;
mod extras;
mod fused;
mod row_blocks;
mod shape;

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use self::extras::Extras;
pub(crate) use self::extras::LayerVectors;
use self::row_blocks::RowBlocks;
pub(crate) use self::shape::Shape;
use super::rotary::{self, Rotary, Rotation};
use crate::device::kernel_ops::{self, LayerArrays};
use crate::device::ops::{self, slice};
use crate::device::profile::{self, Cost, Op};
use crate::state::batch_rows::{BatchRows, KvBatch, KvSpan};
use crate::state::groups::{Cached, LayerGroups, Place};
use crate::state::layer_state::State;
use crate::state::tail::TailWrites;
use motet_kernels::{self, AttendPlan, Order, PartRange, SpanRange, TailRange};
use motet_model::CacheKind;
use motet_weights::{Blueprint, Mixer};

/// Maximum rows of a row block where attention is composed of products. About half of the
/// scores over a row block's own rows are computed only to be masked.
const COMPOSED_ROWS_MAX: usize = 64;

/// A model's attention on a device.
#[derive(Debug)]
pub(crate) struct Attentions {
    kinds: Vec<Attention>,
    /// The kind of each layer, and its index in its group. None where it has no attention.
    layers: Vec<Option<(usize, usize)>>,
    pub(crate) backend: AttentionBackend,
}

/// Attention of the layers that are described alike.
#[derive(Debug)]
struct Attention {
    shape: Shape,
    /// The group of the layers' keys and values.
    group: usize,
    /// None if positions are not encoded.
    rotary: Option<Rotary>,
    extras: Extras,
}

/// The inputs of attention in one layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerRows<'a> {
    /// Queries, keys and values, then columns that attention ignores: `[rows, columns]`.
    pub(crate) packed: &'a Array,
    pub(crate) vectors: &'a LayerVectors,
}

/// How attention is computed.
#[derive(Debug)]
pub(crate) enum AttentionBackend {
    /// By this crate's kernel, on a CPU stream.
    Kernel(Stream, Order),
    /// By MLX's fused kernel where it fits, and composed of products elsewhere.
    Fused,
    /// Composed of products.
    Composed,
}

/// The inputs of attention that all layers of a kind share in a step, computed once for each
/// kind.
#[derive(Debug)]
pub(crate) struct Plans<'a>(Vec<Plan<'a>>);

#[derive(Debug)]
enum Plan<'a> {
    Kernel(Arc<AttendPlan>, &'a Stream),
    Fused(Option<Rotation<'a>>),
    Composed(Option<Rotation<'a>>, RowBlocks),
}

/// The distinct kinds of attention among a model's layers.
pub(crate) fn kinds(blueprint: &Blueprint) -> Vec<&motet_weights::Attention> {
    let mut kinds: Vec<&motet_weights::Attention> = Vec::new();
    for layer in &blueprint.layers {
        match &layer.mixer {
            Mixer::Attention(attention) if !kinds.contains(&attention) => kinds.push(attention),
            _ => {}
        }
    }
    kinds
}

/// Whether this crate's kernels can compute all attention of a model.
pub(crate) fn kernels_support(blueprint: &Blueprint) -> bool {
    let heads = |kind: &motet_weights::Attention| motet_kernels::Heads {
        query: kind.heads,
        kv: kind.kv_heads,
        dim: kind.head_dim,
    };
    kinds(blueprint)
        .into_iter()
        .all(|kind| heads(kind).supported())
}

impl Attentions {
    /// The attention of a model whose state is cached in this format, in these groups.
    pub(crate) fn new(
        blueprint: &Blueprint,
        groups: &LayerGroups,
        cached: Cached,
        backend: AttentionBackend,
    ) -> Self {
        let described = kinds(blueprint);
        let mut layers = Vec::with_capacity(blueprint.layers.len());
        let mut group_of = vec![0; described.len()];
        for (layer, description) in blueprint.layers.iter().enumerate() {
            let kind = described.iter().position(|kind| match &description.mixer {
                Mixer::Attention(attention) => *kind == attention,
                _ => false,
            });
            layers.push(match (kind, groups.place(layer)) {
                (Some(kind), Place::Kv { group, index }) => {
                    group_of[kind] = group;
                    Some((kind, index))
                }
                _ => None,
            });
        }
        let kinds = described.into_iter().zip(group_of);
        let kinds = kinds.map(|(kind, group)| Attention {
            shape: Shape::of(kind, cached),
            group,
            rotary: kind.rope.as_ref().map(Rotary::new),
            extras: Extras::of(kind, blueprint.stem.norm_eps),
        });
        Self {
            kinds: kinds.collect(),
            layers,
            backend,
        }
    }

    /// Cached keys of a layer, as they are `tokens` positions further to the start. Those in
    /// fewer bits are rounded once more.
    pub(crate) fn turned_back(
        &self,
        layer: usize,
        keys: &Array,
        tokens: usize,
        stream: &Stream,
    ) -> Result<Array, Exception> {
        match self.layers[layer] {
            Some((kind, _)) if tokens > 0 => self.kinds[kind].turned_back(keys, tokens, stream),
            _ => Ok(keys.clone()),
        }
    }

    /// Plans a step.
    pub(crate) fn plan(&self, batch: &BatchRows) -> Plans<'_> {
        let kinds = self.kinds.iter();
        Plans(kinds.map(|kind| kind.plan(&self.backend, batch)).collect())
    }

    /// Rotates, caches and attends the rows of one layer; the new state is written to the tails.
    /// Returns `[rows, heads * head_dim]`. Must be called for the layers in order.
    ///
    /// # Panics
    ///
    /// When the layer has no attention.
    pub(crate) fn attend(
        &self,
        batch: &BatchRows,
        plans: &Plans<'_>,
        layer: usize,
        rows: LayerRows<'_>,
        tails: &mut TailWrites,
    ) -> Result<Array, Exception> {
        let (kind, index) = self.layers[layer].expect("the layer has attention");
        let (attention, plan) = (&self.kinds[kind], &plans.0[kind]);
        let kv = &batch.kv[attention.group];
        let state = || attention.cached(kv);
        profile::op_beside(Op::Attention, &[rows.packed], state, || match plan {
            Plan::Kernel(plan, stream) => {
                let states = kv.states(index);
                let states: Vec<(&Array, &Array)> =
                    states.map(|state| (&state.keys, &state.values)).collect();
                tails.write_in_place(layer, |buffers| {
                    let LayerVectors {
                        query_norm,
                        key_norm,
                        sinks,
                    } = rows.vectors;
                    let inputs = LayerArrays {
                        packed: rows.packed,
                        query_norm: query_norm.as_ref(),
                        key_norm: key_norm.as_ref(),
                        sinks: sinks.as_ref(),
                    };
                    kernel_ops::attend_layer(plan, inputs, &states, buffers, stream)
                })
            }
            Plan::Fused(rotation) => {
                let (queries, new) = attention.split(batch, rotation.as_ref(), rows)?;
                let tails = tails.write(layer, kv.writes(), &new)?;
                let attended = fused::attend(&attention.shape, kv, &queries, tails)?;
                attention.by_row(&attended)
            }
            Plan::Composed(rotation, row_blocks) => {
                let (queries, new) = attention.split(batch, rotation.as_ref(), rows)?;
                let tails = tails.write(layer, kv.writes(), &new)?;
                let states: Vec<&State> = kv.states(index).collect();
                let softmax = composed::Softmax {
                    cap: attention.extras.softcap,
                    sinks: rows.vectors.sinks.as_ref(),
                };
                let shape = &attention.shape;
                let attended =
                    composed::attend(shape, softmax, &states, row_blocks, &queries, tails)?;
                attention.by_row(&attended)
            }
        })
    }
}

impl Attention {
    fn plan<'a>(&'a self, backend: &'a AttentionBackend, batch: &BatchRows) -> Plan<'a> {
        let kv = &batch.kv[self.group];
        let rotation = || {
            let rotary = self.rotary.as_ref();
            rotary.map(|rotary| rotary.rotation(batch.positions()))
        };
        match backend {
            AttentionBackend::Kernel(stream, order) => {
                let spans: Vec<SpanRange> = kv.spans.iter().map(span_range).collect();
                let plan = AttendPlan::new(self.for_kernel(), &spans, *order);
                Plan::Kernel(Arc::new(plan), stream)
            }
            AttentionBackend::Fused
                if fused::fits(&self.shape, kv) && self.extras.has_plain_softmax() =>
            {
                Plan::Fused(rotation())
            }
            AttentionBackend::Fused | AttentionBackend::Composed => Plan::Composed(
                rotation(),
                RowBlocks::new(&self.shape, kv, COMPOSED_ROWS_MAX),
            ),
        }
    }

    fn for_kernel(&self) -> motet_kernels::Attention {
        motet_kernels::Attention {
            heads: self.shape.kernel_heads(),
            scale: self.shape.scale,
            window: self.shape.window,
            rotary: rotary::for_kernel(self.rotary.as_ref()),
            cached: self.shape.cached.kind,
            extras: self.extras.for_kernel(),
        }
    }

    fn turned_back(
        &self,
        keys: &Array,
        tokens: usize,
        stream: &Stream,
    ) -> Result<Array, Exception> {
        let Some(rotary) = &self.rotary else {
            return Ok(keys.clone());
        };
        let cached = self.shape.cached;
        if cached.kind == CacheKind::Int8 {
            let (dim, radians) = (self.shape.head_dim as usize, rotary.radians_per_token());
            return kernel_ops::turn_back(keys, dim, radians, tokens, stream);
        }
        if !cached.in_words {
            return rotary.turned_back(keys, tokens);
        }
        let keys = keys.view_dtype(cached.dtype())?;
        let turned = rotary.turned_back(&keys, tokens)?;
        turned.view_dtype(cached.array_dtype())
    }

    /// The cached state that the rows of one layer see.
    fn cached(&self, kv: &KvBatch) -> Cost {
        let shape = self.shape.kv(1);
        Cost {
            read_bytes: kv.cached_tokens() * shape.bytes_per_token(),
            flops: 0,
        }
    }

    /// Rotated queries of all rows, `[kv_heads, rows * queries per key, head_dim]`, and their
    /// keys and values.
    fn split(
        &self,
        batch: &BatchRows,
        rotation: Option<&Rotation<'_>>,
        rows: LayerRows<'_>,
    ) -> Result<(Array, State), Exception> {
        let shape = &self.shape;
        let packed = &self
            .extras
            .prepare(shape, rows.packed, rows.vectors, batch.positions())?;
        let turned = match rotation {
            Some(rotation) => rotation.apply(shape.rotated_heads(), shape.head_dim, packed)?,
            None => packed.clone(),
        };
        let keys = self.by_head(&turned, shape.heads, shape.rotated_heads())?;
        let values = self.by_head(packed, shape.rotated_heads(), shape.packed_heads())?;
        let new = State {
            keys: keys.swap_axes(0, 1)?,
            values: values.swap_axes(0, 1)?,
        };
        Ok((self.queries(&turned)?, new))
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

fn span_range(span: &KvSpan) -> SpanRange {
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
