//! The model's sizes in the types that MLX uses.

use mlx_rs::Dtype;

use motet_core::protocol::SegmentSize;
use motet_model::FloatKind;
use motet_weights::LlamaConfig;

/// Sizes of everything in a layer. Sizes that go into array shapes are signed 32-bit; the sizes
/// in the files are bounded well below that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) layers: usize,
    pub(super) heads: i32,
    pub(super) kv_heads: i32,
    pub(super) head_dim: i32,
    pub(super) vocab: usize,
    pub(super) norm_eps: f32,
    /// Tokens that a token sees, itself included; `None` means all.
    pub(super) window: Option<usize>,
    pub(super) cached: Cached,
}

/// The format of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cached {
    pub(super) kind: FloatKind,
    /// Whether each number of an array is an `f32` that holds the bits of as many cached numbers
    /// as fit into it. This crate's kernels take arrays of `f32` only. Only those kernels may
    /// compute with such an array; other operations only move its bits.
    pub(super) in_words: bool,
}

impl Cached {
    /// The format of arrays whose numbers are of this kind, unpacked.
    pub(super) fn as_it_is(kind: FloatKind) -> Self {
        Self {
            kind,
            in_words: false,
        }
    }

    /// The kind as an MLX type.
    pub(super) fn dtype(self) -> Dtype {
        match self.kind {
            FloatKind::F32 => Dtype::Float32,
            FloatKind::F16 => Dtype::Float16,
            FloatKind::Bf16 => Dtype::Bfloat16,
        }
    }

    /// The type of the arrays that hold the numbers.
    pub(super) fn array_dtype(self) -> Dtype {
        if self.in_words {
            Dtype::Float32
        } else {
            self.dtype()
        }
    }
}

impl Shape {
    pub(super) fn of(config: &LlamaConfig, cached: Cached) -> Self {
        Self {
            layers: config.layers,
            heads: config.heads as i32,
            kv_heads: config.kv_heads as i32,
            head_dim: config.head_dim as i32,
            vocab: config.vocab_size,
            norm_eps: config.rms_norm_eps,
            window: config.sliding_window,
            cached,
        }
    }

    /// Query heads that share one key head.
    pub(super) fn queries_per_key(&self) -> i32 {
        self.heads / self.kv_heads
    }

    /// Heads whose rows are rotated: queries and keys.
    pub(super) fn rotated_heads(&self) -> i32 {
        self.heads + self.kv_heads
    }

    /// Heads of a packed row: queries, keys, values.
    pub(super) fn packed_heads(&self) -> i32 {
        self.heads + 2 * self.kv_heads
    }

    /// The factor of attention's scores.
    pub(super) fn scale(&self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    /// The first position that a row at `position` sees.
    pub(super) fn first_seen(&self, position: usize) -> usize {
        let window = self.window.unwrap_or(usize::MAX);
        (position + 1).saturating_sub(window)
    }

    /// The heads in the form that this crate's kernel takes.
    pub(super) fn kernel_heads(&self) -> motet_kernels::Heads {
        motet_kernels::Heads {
            query: self.heads as usize,
            kv: self.kv_heads as usize,
            dim: self.head_dim as usize,
        }
    }

    /// Numbers that one layer caches for one token.
    pub(super) fn cached_per_token(&self) -> usize {
        (2 * self.kv_heads * self.head_dim) as usize
    }

    /// Maximum bytes that one layer allocates for one row before the next layer begins.
    pub(super) fn layer_bytes_per_row(&self, config: &LlamaConfig) -> usize {
        let attention = (self.packed_heads() + self.heads) * self.head_dim;
        let numbers = attention as usize + 6 * config.hidden_size + 3 * config.intermediate_size;
        4 * numbers
    }

    /// Bytes that all layers cache for one token.
    pub(super) fn bytes_per_token(&self) -> usize {
        self.layers * self.cached_per_token() * self.cached.kind.bytes()
    }

    /// Numbers of a cached array for one head of one token.
    pub(super) fn cached_width(&self) -> i32 {
        if self.cached.in_words {
            self.head_dim * self.cached.kind.bytes() as i32 / size_of::<f32>() as i32
        } else {
            self.head_dim
        }
    }

    /// Tokens whose state a segment of this size retains: its last ones.
    pub(super) fn retained(&self, segment_size: SegmentSize) -> usize {
        self.window.map_or(segment_size.tokens, |window| {
            segment_size.window_tokens(window)
        })
    }
}
