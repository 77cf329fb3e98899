//! Bounds of configurations, far above those of any real model. Products of these fit into 64
//! bits.

/// Maximum rows or columns of a matrix.
pub(super) const DIMENSION_MAX: usize = 1 << 24;
/// Maximum heads, and maximum dimensions of a head.
pub(super) const HEADS_MAX: usize = 1 << 12;
/// Maximum layers.
pub(super) const LAYERS_MAX: usize = 1 << 10;
/// Maximum context, in tokens.
pub(super) const CONTEXT_TOKENS_MAX: usize = 1 << 30;
/// Maximum experts of a layer.
pub(super) const EXPERTS_MAX: usize = 1 << 12;
/// Maximum tokens that a convolution sees, and maximum groups and states of Mamba 2.
pub(super) const STATE_MAX: usize = 1 << 12;
