//! The blocks that see past tokens through a state of fixed size.

/// LFM2's block: `out(C * conv(B * u))` of an input projection's thirds `B`, `C`, `u`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Tokens that the convolution sees, the present one included.
    pub kernel: usize,
    /// Whether both projections and the convolution have a bias.
    pub bias: bool,
}

/// Gated delta net (Yang, Kautz and Hatamizadeh 2024), as in Qwen3-Next and Qwen3.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Query and key heads; divides `value_heads`.
    pub key_heads: usize,
    /// Value heads. Key head `j` serves the value heads from `j * value_heads / key_heads` on.
    pub value_heads: usize,
    /// Dimensions of a key head.
    pub key_dim: usize,
    /// Dimensions of a value head.
    pub value_dim: usize,
    /// Tokens that the convolution before it sees, the present one included.
    pub kernel: usize,
}

/// Mamba 2 (Dao and Gu 2024), as in Granite 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Numbers of state for each dimension.
    pub state_size: usize,
    /// Groups of heads that share `B` and `C`.
    pub groups: usize,
    /// Tokens that the convolution before it sees, the present one included.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the input and output projections have a bias.
    pub bias: bool,
    /// Bounds of the time step after `softplus`.
    pub time_step: (f32, f32),
}

impl DeltaNet {
    /// Columns of the convolution: queries, keys and values.
    #[must_use]
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

impl Mamba2 {
    /// Width of all heads.
    #[must_use]
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Columns of the convolution: the heads, and `B` and `C` of each group.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_size
    }
}
