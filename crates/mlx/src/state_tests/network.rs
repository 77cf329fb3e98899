//! A tiny network: attention as models have it, and recurrent layers that keep running sums.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::{Array, Device, Stream, fast};

use crate::device::bridge::{self, Buffer, Kernel, View, ViewMut};
use crate::device::ops;
use crate::layers::attention::{AttentionBackend, Attentions, LayerRows, LayerVectors, Shape};
use crate::model::load::spec;
use crate::model::mlx_model::Backend;
use crate::state::detached_state::Identity;
use crate::state::groups::{Arrays, Cached, LayerGroups, Place, RecurrentShape};
use crate::state::pool::Pool;
use crate::state::tail::{TailSpan, TailWrites};
use crate::step::batch::Batch;
use crate::step::decoder::{Decoder, LastRows};
use crate::{MlxDevice, MlxModel};
use motet_kernels::Order;
use motet_model::CacheKind;
use motet_weights::{
    Activation, Attention, Blueprint, DeltaNet, Gated, Layer, Mixer, Mlp, Norms, Rope, RopeScaling,
    ShortConv, Stem,
};

/// Width of the residual stream.
pub(super) const HIDDEN: usize = 32;
const VOCAB: usize = 32;
/// A recurrent layer's kernel panics at this token, whose embedding is far from all others.
pub(super) const FAILING_TOKEN: u32 = 31;

pub(super) const CONV: ShortConv = ShortConv {
    kernel: 3,
    bias: false,
};

pub(super) const DELTA: DeltaNet = DeltaNet {
    key_heads: 2,
    value_heads: 4,
    key_dim: 8,
    value_dim: 16,
    kernel: 4,
};

/// The means by which a network computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Everything by kernels, in place.
    Kernels,
    /// Everything by MLX's operations.
    Composed,
    /// Attention by MLX's operations, recurrent layers by kernels.
    MixedAttention,
    /// Attention by kernels, recurrent layers by MLX's operations.
    MixedRecurrent,
}

impl Means {
    pub(super) const ALL: [Self; 4] = [
        Self::Kernels,
        Self::Composed,
        Self::MixedAttention,
        Self::MixedRecurrent,
    ];

    /// The kinds in which keys and values can be cached, each with the tolerance of logits that
    /// were computed from other chunks: a number may be rounded to either neighbour.
    pub(super) fn kinds(self) -> impl Iterator<Item = (CacheKind, f32)> {
        let kinds = CacheKind::ALL.into_iter();
        let readable = kinds.filter(move |kind| kind.float().is_some() || self.attends_by_kernel());
        readable.map(|kind| match kind {
            CacheKind::F32 => (kind, 2e-5),
            CacheKind::F16 => (kind, 5e-3),
            CacheKind::Bf16 => (kind, 2e-2),
            CacheKind::Int8 => (kind, 5e-2),
        })
    }

    /// Every way with each of its [`kinds`](Self::kinds).
    pub(super) fn with_kinds() -> impl Iterator<Item = (Self, CacheKind, f32)> {
        let ways = Self::ALL.into_iter();
        ways.flat_map(|means| {
            means
                .kinds()
                .map(move |(kind, tolerance)| (means, kind, tolerance))
        })
    }

    fn attends_by_kernel(self) -> bool {
        matches!(self, Self::Kernels | Self::MixedRecurrent)
    }

    fn sums_by_kernel(self) -> bool {
        matches!(self, Self::Kernels | Self::MixedAttention)
    }
}

/// Four heads of 16 dimensions that share two heads of keys.
pub(super) fn attention(window: Option<usize>, is_rotated: bool) -> Mixer {
    let rope = Rope {
        theta: 100.0,
        rotated: 16,
        scaling: RopeScaling::None,
    };
    let plain = Attention::plain(4, 2, 16, rope);
    Mixer::Attention(Attention {
        window,
        rope: plain.rope.clone().filter(|_| is_rotated),
        ..plain
    })
}

/// Two heads of 32 dimensions that share one head of keys. Half of a head is rotated.
pub(super) fn wide_attention(window: Option<usize>) -> Mixer {
    let rope = Rope {
        theta: 50.0,
        rotated: 16,
        scaling: RopeScaling::None,
    };
    Mixer::Attention(Attention {
        window,
        ..Attention::plain(2, 1, 32, rope)
    })
}

pub(super) fn blueprint(mixers: &[Mixer]) -> Blueprint {
    let layers = mixers.iter().map(|mixer| Layer {
        norms: Norms::BEFORE,
        mixer: mixer.clone(),
        mlp: Mlp::Gated(Gated {
            inner: HIDDEN,
            activation: Activation::Silu,
            bias: false,
        }),
        residual_scale: 1.0,
    });
    Blueprint {
        family: "sums",
        name: "running sums".to_owned(),
        stem: Stem {
            vocab_size: VOCAB,
            hidden_size: HIDDEN,
            norm_eps: 1e-6,
            embedding_scale: 1.0,
            tied_embeddings: true,
            logit_scale: 1.0,
            logit_softcap: None,
        },
        layers: layers.collect(),
        context_tokens_max: 1 << 20,
        end_tokens: Vec::new(),
        begin_token: None,
    }
}

/// The constants of the running sums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    /// The share of a sum that the next token leaves.
    pub(super) decay: f32,
}

pub(super) fn model(mixers: &[Mixer], means: Means, kind: CacheKind) -> MlxModel {
    model_with(mixers, means, kind, Sums { decay: 0.75 })
}

pub(super) fn model_with(mixers: &[Mixer], means: Means, kind: CacheKind, sums: Sums) -> MlxModel {
    assert!(bridge::available(), "`cargo xtask setup` prepares MLX");
    let blueprint = blueprint(mixers);
    let stream = Stream::new_with_device(&Device::cpu());
    let in_place = means.attends_by_kernel();
    let cached = Cached {
        kind,
        in_words: in_place,
    };
    let groups = Arc::new(LayerGroups::new(&blueprint, cached));
    let backend = if in_place {
        AttentionBackend::Kernel(stream.clone(), Order::PerStep)
    } else {
        AttentionBackend::Composed
    };
    let network = Network {
        groups: Arc::clone(&groups),
        attentions: Attentions::new(&blueprint, &groups, cached, backend),
        layers: layers(&blueprint, cached),
        embedding: embedding(),
        head: matrix(HIDDEN, VOCAB, 1000),
        sums,
        kernels: means.sums_by_kernel().then(|| stream.clone()),
    };
    let pool = (in_place && bridge::memory::can_wrap()).then(|| Pool::new(1 << 20));
    let backend = Backend {
        device: MlxDevice::Cpu,
        stream,
        has_kernels: true,
        in_place,
    };
    let spec = spec(&blueprint, &groups, means.sums_by_kernel());
    let identity: Identity = LazyLock::new(Box::new(|| 1));
    MlxModel::new(spec, identity, groups, Box::new(network), backend, pool)
}

#[derive(Debug)]
struct Network {
    groups: Arc<LayerGroups>,
    attentions: Attentions,
    layers: Vec<Matrices>,
    /// `[vocab, hidden]`.
    embedding: Array,
    /// `[hidden, vocab]`.
    head: Array,
    sums: Sums,
    /// The stream of the recurrent layers' kernels. None to compose MLX's operations.
    kernels: Option<Stream>,
}

/// The matrices around a layer's attention. Recurrent layers have none.
#[derive(Debug)]
struct Matrices(Option<(Array, Array)>);

fn layers(blueprint: &Blueprint, cached: Cached) -> Vec<Matrices> {
    let matrices = |(index, layer): (usize, &Layer)| match &layer.mixer {
        Mixer::Attention(attention) => {
            let shape = Shape::of(attention, cached);
            let (heads, dim) = (shape.heads as usize, shape.head_dim as usize);
            let packed = (heads + 2 * shape.kv_heads as usize) * dim;
            let seed = 3 * index;
            Matrices(Some((
                matrix(HIDDEN, packed, seed),
                matrix(heads * dim, HIDDEN, seed + 1),
            )))
        }
        _ => Matrices(None),
    };
    blueprint.layers.iter().enumerate().map(matrices).collect()
}

fn matrix(rows: usize, columns: usize, seed: usize) -> Array {
    let scale = (rows as f32).sqrt().recip();
    let number = |i: usize| ((i * 31 + seed * 101 + i * i % 17) as f32 * 0.61).sin() * scale;
    Array::from_iter(
        (0..rows * columns).map(number),
        &[rows as i32, columns as i32],
    )
}

fn embedding() -> Array {
    let number = |i: usize| match i / HIDDEN {
        token if token == FAILING_TOKEN as usize => 1e9,
        token => ((token * 13 + i % HIDDEN * 7) as f32 * 0.43).sin(),
    };
    let shape = [VOCAB as i32, HIDDEN as i32];
    Array::from_iter((0..VOCAB * HIDDEN).map(number), &shape)
}

impl Decoder for Network {
    fn forward(
        &self,
        batch: &Batch,
        tails: &mut TailWrites,
        _eager: bool,
    ) -> Result<LastRows, Exception> {
        let plans = self.attentions.plan(&batch.rows);
        let mut x = take_axis(&self.embedding, batch.token_array()?, 0)?;
        for (layer, Matrices(matrices)) in self.layers.iter().enumerate() {
            let normed = fast::rms_norm(&x, None, 1e-6)?;
            let y = match matrices {
                Some((packed, output)) => {
                    let packed = normed.matmul(packed)?;
                    let rows = LayerRows {
                        packed: &packed,
                        vectors: &LayerVectors::default(),
                    };
                    let attended =
                        self.attentions
                            .attend(&batch.rows, &plans, layer, rows, tails)?;
                    attended.matmul(output)?
                }
                None => self.sum(layer, &normed, tails)?,
            };
            x = x.add(y)?;
        }
        let last_rows = batch.last_rows();
        if last_rows.is_empty() {
            return Ok(LastRows::default());
        }
        let rows = Array::from_slice(&last_rows, &[last_rows.len() as i32]);
        LastRows::new(self, batch, take_axis(x, rows, 0)?)
    }

    fn replay(&self, layer: usize, rows: &Array, tails: &mut TailWrites) -> Result<(), Exception> {
        self.sum(layer, rows, tails).map(drop)
    }

    fn logits(&self, states: &Array) -> Result<Array, Exception> {
        let logits = states.matmul(&self.head)?;
        // The failing token is never sampled.
        let is_sampled = |token: u32| token != FAILING_TOKEN;
        let factors = (0..VOCAB as u32).map(|token| f32::from(u8::from(is_sampled(token))));
        let offsets = (0..VOCAB as u32).map(|token| if is_sampled(token) { 0.0 } else { -64.0 });
        let logits = logits.multiply(Array::from_iter(factors, &[VOCAB as i32]))?;
        let logits = logits.add(Array::from_iter(offsets, &[VOCAB as i32]))?;
        logits.as_type::<f32>()
    }

    fn state_scale(&self) -> f32 {
        1.0
    }

    fn turned_back(
        &self,
        layer: usize,
        keys: &Array,
        tokens: usize,
        stream: &Stream,
    ) -> Result<Array, Exception> {
        self.attentions.turned_back(layer, keys, tokens, stream)
    }
}

impl Network {
    fn sum(&self, layer: usize, x: &Array, tails: &mut TailWrites) -> Result<Array, Exception> {
        let Place::Recurrent { group, .. } = self.groups.place(layer) else {
            panic!("the layer has no attention");
        };
        let shape = &self.groups.recurrent[group];
        match &self.kernels {
            Some(stream) => tails.update_in_place(layer, x, stream, |spans, buffers| {
                let kernel = RunningSums {
                    spans: spans.iter().map(|span| span.rows.clone()).collect(),
                    arrays: shape.arrays.len(),
                    sums: self.sums,
                };
                let buffers: Vec<&Buffer> = buffers.iter().collect();
                let made = bridge::apply_in_place(kernel, &[x], &buffers, &[x.shape()], stream)?;
                Ok(made.into_iter().next().expect("one output"))
            }),
            None => tails.update(layer, x, |spans, states| {
                composed(shape, self.sums, spans, x, states)
            }),
        }
    }
}

/// Number `i` of an array of state takes number `i` of a row, counted round and round. Number `i`
/// of a result is the sum of number `7 i`, counted in the same way, of each array.
fn source(index: usize) -> usize {
    index % HIDDEN
}

fn reader(index: usize, numbers: usize) -> usize {
    7 * index % numbers
}

/// Running sums in place, row after row.
struct RunningSums {
    spans: Vec<Range<usize>>,
    /// Arrays of each span.
    arrays: usize,
    sums: Sums,
}

impl Kernel for RunningSums {
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        outputs[0].data.fill(0.0);
        for (span, arrays) in self.spans.iter().zip(in_place.chunks_mut(self.arrays)) {
            for row in span.clone() {
                let x = &inputs[0].data[row * HIDDEN..][..HIDDEN];
                let is_failing = x.iter().all(|number| *number > 0.9);
                let out = &mut outputs[0].data[row * HIDDEN..][..HIDDEN];
                for array in arrays.iter_mut() {
                    for (index, sum) in array.data.iter_mut().enumerate() {
                        *sum = self.sums.decay * *sum + x[source(index)];
                    }
                    assert!(!is_failing, "an injected failure, with state half changed");
                    for (index, out) in out.iter_mut().enumerate() {
                        *out += array.data[reader(index, array.data.len())] / 8.0;
                    }
                }
            }
        }
    }
}

/// Running sums of MLX's operations, row after row.
fn composed(
    shape: &RecurrentShape,
    sums: Sums,
    spans: &[TailSpan],
    x: &Array,
    states: &[Arrays],
) -> Result<(Array, Vec<Arrays>), Exception> {
    let (mut rows, mut after) = (Vec::new(), Vec::new());
    for (span, state) in spans.iter().zip(states) {
        let mut state = state.clone();
        for row in span.rows.clone() {
            let (row, hidden) = (row as i32, HIDDEN as i32);
            let x = ops::slice(x, [row, 0], [row + 1, hidden])?.reshape(&[hidden])?;
            let mut out = Array::from_f32(0.0);
            for (array, dims) in state.iter_mut().zip(&shape.arrays) {
                let numbers = array.size();
                let sources = (0..numbers).map(|index| source(index) as u32);
                let sources = Array::from_iter(sources, &[numbers as i32]);
                let added = take_axis(&x, sources, 0)?.reshape(dims)?;
                *array = array.multiply(Array::from_f32(sums.decay))?.add(added)?;
                let readers = (0..HIDDEN).map(|index| reader(index, numbers) as u32);
                let readers = Array::from_iter(readers, &[hidden]);
                let read = take_axis(array.reshape(&[numbers as i32])?, readers, 0)?;
                out = out.add(read.multiply(Array::from_f32(0.125))?)?;
            }
            rows.push(out.reshape(&[1, hidden])?);
        }
        after.push(state);
    }
    Ok((ops::concatenate(rows, 0)?, after))
}
