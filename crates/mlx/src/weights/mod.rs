//! Weights on their way from the files to the device.
//!
//! On the CPU matrices stay as their files store them, mapped where that is possible, and this
//! crate's kernels read them as they are. Without the kernels everything is converted to single
//! precision at load, because MLX's other formats have slow paths there. On a GPU quantised
//! matrices stay quantised and plain ones become bfloat16.

mod loader;
mod matrix;
mod merged_matrix;

use mlx_rs::Array;

use crate::device::kernel_ops::layer_end::RowNorm;
use crate::device::stored_matrix::StoredMatrix;

pub(crate) use loader::{BlockLoader, Loader};
pub(crate) use matrix::Matrix;

/// The form in which matrices are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixForm {
    /// In the type of activations.
    Converted,
    /// Quantised matrices in MLX's affine quantisation, others in the type of activations.
    Affine,
    /// As the files store them, for this crate's CPU kernels.
    AsStored,
}

/// All parts of some weights, each once.
#[derive(Default)]
pub(crate) struct WeightParts<'a> {
    pub(crate) arrays: Vec<&'a Array>,
    pub(crate) stored: Vec<&'a StoredMatrix>,
}

impl<'a> WeightParts<'a> {
    pub(crate) fn add_matrix(&mut self, matrix: &'a Matrix) {
        self.arrays.extend(matrix.own_arrays());
        self.stored.extend(matrix.stored());
    }
}

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
    /// The norm as the kernels take it.
    pub(crate) fn of_rows(&self) -> RowNorm<'_> {
        match self {
            Self::None => RowNorm::None,
            Self::Folded => RowNorm::Plain,
            Self::Weight(weight) => RowNorm::Weighted(weight),
        }
    }

    /// The weight, unless it is folded into a matrix.
    pub(crate) fn weight(&self) -> Option<&Array> {
        match self {
            Self::Weight(weight) => Some(weight),
            Self::None | Self::Folded => None,
        }
    }
}
