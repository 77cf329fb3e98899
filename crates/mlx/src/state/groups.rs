//! Groups of layers: those whose cached state has the same form.
//!
//! Layers with the same keys and values (heads, dimensions and window) are one group, and so are
//! recurrent layers with the same arrays of state. Segments, tails and packed state hold one
//! part for each group: the groups with keys and values first, then the recurrent ones, each in
//! the order of its first layer.

use mlx_rs::{Array, Dtype};
use smallvec::SmallVec;

use motet_model::CacheKind;
use motet_protocol::{LayerGroup, LayerKind, SegmentSize};
use motet_weights::{Blueprint, Mixer};

/// The groups of a model's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerGroups {
    /// The groups with keys and values.
    pub(crate) kv: Vec<KvShape>,
    /// The groups with recurrent state.
    pub(crate) recurrent: Vec<RecurrentShape>,
    places: Vec<Place>,
}

/// The group of a layer, and the layer's index among the group's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A layer of a group with keys and values.
    Kv { group: usize, index: usize },
    /// A layer of a group with recurrent state.
    Recurrent { group: usize, index: usize },
}

/// The keys and values of a group. Sizes that go into array shapes are signed 32-bit; the sizes
/// in the files are bounded well below that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvShape {
    pub(crate) layers: usize,
    pub(crate) kv_heads: i32,
    pub(crate) head_dim: i32,
    /// Tokens that a token sees, itself included; `None` means all.
    pub(crate) window: Option<usize>,
    pub(crate) cached: Cached,
}

/// The recurrent state of a group, in single precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentShape {
    pub(crate) layers: usize,
    /// The shape of each array of one layer.
    pub(crate) arrays: Vec<Vec<i32>>,
}

/// The arrays of one recurrent layer's state, in the order of [`RecurrentShape::arrays`].
pub(crate) type Arrays = SmallVec<[Array; 2]>;

/// The format of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cached {
    pub(crate) kind: CacheKind,
    /// Whether each number of an array is an `f32` that holds the bits of as many cached numbers
    /// as fit into it, or of their scales. This crate's kernels take arrays of `f32` only. Only those kernels may
    /// compute with such an array; other operations only move its bits.
    pub(crate) in_words: bool,
}

impl Cached {
    /// The format of arrays whose numbers are of this kind, unpacked.
    pub(crate) fn as_it_is(kind: CacheKind) -> Self {
        Self {
            kind,
            in_words: false,
        }
    }

    /// The kind as an MLX type.
    ///
    /// # Panics
    ///
    /// When MLX has no such type. Arrays of these numbers are always in words.
    pub(crate) fn dtype(self) -> Dtype {
        match self.kind {
            CacheKind::F32 => Dtype::Float32,
            CacheKind::F16 => Dtype::Float16,
            CacheKind::Bf16 => Dtype::Bfloat16,
            CacheKind::Int8 => unreachable!("MLX has no numbers with a scale for each group"),
        }
    }

    /// The type of the arrays that hold the numbers.
    pub(crate) fn array_dtype(self) -> Dtype {
        if self.in_words {
            Dtype::Float32
        } else {
            self.dtype()
        }
    }
}

impl LayerGroups {
    /// The groups of a model whose keys and values are cached in this format.
    pub(crate) fn new(blueprint: &Blueprint, cached: Cached) -> Self {
        let hidden = blueprint.stem.hidden_size;
        let layers = blueprint.layers.iter();
        Self::of_states(layers.map(|layer| LayerState::of(&layer.mixer, hidden, cached)))
    }

    /// The groups of layers with these states.
    pub(crate) fn of_states(layers: impl Iterator<Item = LayerState>) -> Self {
        let mut groups = Self {
            kv: Vec::new(),
            recurrent: Vec::new(),
            places: Vec::new(),
        };
        for layer in layers {
            let place = groups.add(layer);
            groups.places.push(place);
        }
        groups
    }

    fn add(&mut self, layer: LayerState) -> Place {
        match layer {
            LayerState::Kv(new) => {
                let alike = |shape: &KvShape| {
                    let layers = shape.layers;
                    *shape == KvShape { layers, ..new }
                };
                let group = self.kv.iter().position(alike).unwrap_or_else(|| {
                    self.kv.push(KvShape { layers: 0, ..new });
                    self.kv.len() - 1
                });
                let layers = &mut self.kv[group].layers;
                *layers += 1;
                let index = *layers - 1;
                Place::Kv { group, index }
            }
            LayerState::Recurrent(arrays) => {
                let alike = |shape: &RecurrentShape| shape.arrays == arrays;
                let found = self.recurrent.iter().position(alike);
                let group = found.unwrap_or_else(|| {
                    self.recurrent.push(RecurrentShape { layers: 0, arrays });
                    self.recurrent.len() - 1
                });
                let layers = &mut self.recurrent[group].layers;
                *layers += 1;
                let index = *layers - 1;
                Place::Recurrent { group, index }
            }
        }
    }

    /// Number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.places.len()
    }

    /// The group of a layer.
    pub(crate) fn place(&self, layer: usize) -> Place {
        self.places[layer]
    }

    /// The groups as the scheduler and the cache know them.
    pub(crate) fn spec_groups(&self) -> Vec<LayerGroup> {
        let kv = self.kv.iter().map(|shape| LayerGroup {
            kind: match shape.window {
                None => LayerKind::Full,
                Some(tokens) => LayerKind::Window { tokens },
            },
            layers: shape.layers,
            bytes: shape.bytes_per_token(),
        });
        let recurrent = self.recurrent.iter().map(|shape| LayerGroup {
            kind: LayerKind::Recurrent,
            layers: shape.layers,
            bytes: shape.bytes(),
        });
        kv.chain(recurrent).collect()
    }

    /// Whether every layer caches keys and values of all tokens.
    pub(crate) fn all_full(&self) -> bool {
        self.recurrent.is_empty() && self.kv.iter().all(|shape| shape.window.is_none())
    }

    /// Bytes of the state of all recurrent layers.
    pub(crate) fn recurrent_bytes(&self) -> usize {
        self.recurrent.iter().map(RecurrentShape::bytes).sum()
    }
}

/// The cached state of one layer.
#[derive(Clone, Debug)]
pub(crate) enum LayerState {
    /// Keys and values; its number of layers is ignored.
    Kv(KvShape),
    /// The shapes of recurrent arrays.
    Recurrent(Vec<Vec<i32>>),
}

impl LayerState {
    /// The state of a layer with this mixer in a model whose residual stream is `hidden` wide.
    fn of(mixer: &Mixer, hidden: usize, cached: Cached) -> Self {
        let columns = |kernel: usize, channels: usize| sizes(&[kernel - 1, channels]);
        match mixer {
            Mixer::Attention(attention) => Self::Kv(KvShape {
                layers: 1,
                kv_heads: attention.kv_heads as i32,
                head_dim: attention.head_dim as i32,
                window: attention.window,
                cached,
            }),
            Mixer::ShortConv(conv) => Self::Recurrent(vec![columns(conv.kernel, hidden)]),
            Mixer::DeltaNet(net) => Self::Recurrent(vec![
                columns(net.kernel, net.channels()),
                sizes(&[net.value_heads, net.key_dim, net.value_dim]),
            ]),
            Mixer::Mamba2(mamba) => Self::Recurrent(vec![
                columns(mamba.kernel, mamba.channels()),
                sizes(&[mamba.heads, mamba.head_dim, mamba.state_size]),
            ]),
        }
    }
}

fn sizes(sizes: &[usize]) -> Vec<i32> {
    sizes.iter().map(|size| *size as i32).collect()
}

impl KvShape {
    /// The first position that a row at `position` sees.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        let window = self.window.unwrap_or(usize::MAX);
        (position + 1).saturating_sub(window)
    }

    /// Bytes of the keys, or the values, of one head of one token.
    pub(crate) fn row_bytes(&self) -> usize {
        self.cached.kind.row_bytes(self.head_dim as usize)
    }

    /// Bytes that all layers cache for one token.
    pub(crate) fn bytes_per_token(&self) -> usize {
        self.layers * 2 * self.kv_heads as usize * self.row_bytes()
    }

    /// Numbers of a cached array for one head of one token.
    pub(crate) fn cached_width(&self) -> i32 {
        if self.cached.in_words {
            (self.row_bytes() / size_of::<f32>()) as i32
        } else {
            self.head_dim
        }
    }

    /// Tokens whose state a segment of this size retains: its last ones.
    pub(crate) fn retained(&self, segment_size: SegmentSize) -> usize {
        self.window.map_or(segment_size.tokens, |window| {
            segment_size.window_tokens(window)
        })
    }
}

impl RecurrentShape {
    /// Bytes of each array of one layer.
    pub(crate) fn array_bytes(&self) -> impl Iterator<Item = usize> {
        let numbers = |shape: &Vec<i32>| -> usize { shape.iter().map(|n| *n as usize).product() };
        self.arrays
            .iter()
            .map(move |shape| numbers(shape) * size_of::<f32>())
    }

    /// Bytes of all layers.
    pub(crate) fn bytes(&self) -> usize {
        self.layers * self.array_bytes().sum::<usize>()
    }
}
