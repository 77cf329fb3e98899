//! Weights on their way from the files to the device.
//!
//! On the CPU everything is dequantised to single precision at load, because MLX's other
//! formats have slow paths there. On a GPU quantised matrices stay as they are and plain ones
//! become bfloat16.

mod loader;
mod matrix;
mod merged_matrix;

use mlx_rs::Array;

pub(crate) use loader::{BlockLoader, Loader};
pub(crate) use matrix::Matrix;

/// The norm of a block's input.
#[derive(Clone, Debug)]
pub(crate) enum InputNorm {
    /// The block's input is the residual stream itself.
    None,
    /// A norm whose weight is folded into the matrix after it.
    Folded,
    /// A norm with its weight.
    Weight(Array),
}

impl InputNorm {
    /// The weight, unless it is folded into a matrix.
    pub(crate) fn weight(&self) -> Option<&Array> {
        match self {
            Self::Weight(weight) => Some(weight),
            Self::None | Self::Folded => None,
        }
    }
}
