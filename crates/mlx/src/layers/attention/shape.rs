//! The sizes of attention in the types that MLX uses.

use crate::state::groups::{Cached, KvShape};
use motet_weights::Attention as AttentionLayer;

/// Attention of one kind of layers. Sizes that go into array shapes are signed 32-bit; the sizes
/// in the files are bounded well below that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) head_dim: i32,
    /// Factor of the scores.
    pub(crate) scale: f32,
    /// Tokens that a token sees, itself included; `None` means all.
    pub(crate) window: Option<usize>,
    pub(crate) cached: Cached,
}

impl Shape {
    pub(crate) fn of(attention: &AttentionLayer, cached: Cached) -> Self {
        Self {
            heads: attention.heads as i32,
            kv_heads: attention.kv_heads as i32,
            head_dim: attention.head_dim as i32,
            scale: attention.scale,
            window: attention.window,
            cached,
        }
    }

    /// Query heads that share one key head.
    pub(super) fn queries_per_key(&self) -> i32 {
        self.heads / self.kv_heads
    }

    /// Heads whose rows are rotated: queries and keys.
    pub(crate) fn rotated_heads(&self) -> i32 {
        self.heads + self.kv_heads
    }

    /// Heads of a packed row: queries, keys, values.
    pub(super) fn packed_heads(&self) -> i32 {
        self.heads + 2 * self.kv_heads
    }

    /// The first position that a row at `position` sees.
    pub(super) fn first_seen(&self, position: usize) -> usize {
        self.kv(0).first_seen(position)
    }

    /// The heads in the form that this crate's kernel takes.
    pub(crate) fn kernel_heads(&self) -> motet_kernels::Heads {
        motet_kernels::Heads {
            query: self.heads as usize,
            kv: self.kv_heads as usize,
            dim: self.head_dim as usize,
        }
    }

    /// The keys and values of so many layers of this kind.
    pub(super) fn kv(&self, layers: usize) -> KvShape {
        KvShape {
            layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.window,
            cached: self.cached,
        }
    }
}
