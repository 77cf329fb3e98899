//! Matrices on the device, and their products.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::ops::{dequantize, quantized_matmul};
use mlx_rs::{Array, Dtype, transforms};

use super::merged_matrix::{Elements, MergedMatrix};
use crate::device::kernel_ops::layer_end::Projection;
use crate::device::ops::Ops;
use crate::device::profile::{self, Cost, Op};
use crate::device::stored_matrix::StoredMatrix;
use crate::error::MlxError;

/// A matrix `[out, in]` and a bias.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    /// The operation that its product is.
    product: Op,
    form: Form,
    bias: Option<Array>,
    /// Factor of the product, where it could not be folded into the matrix.
    factor: Option<f32>,
}

#[derive(Clone, Debug)]
enum Form {
    Plain {
        /// `[out, in]`.
        matrix: Array,
        /// `[in, out]`, a view of the same.
        transposed: Array,
    },
    Quantised {
        packed: Array,
        scales: Array,
        biases: Array,
        bits: i32,
        group_size: i32,
    },
    /// As the files store it, for this crate's kernels.
    Stored(StoredMatrix),
}

impl Matrix {
    /// `x` times the matrix, plus the bias.
    pub(crate) fn apply(&self, x: &Array, ops: &Ops) -> Result<Array, Exception> {
        let weights = || Cost {
            read_bytes: self.bytes(),
            flops: 2 * x.size() * self.out(),
        };
        profile::op_beside(self.product, &[x], weights, || self.multiply(x, ops))
    }

    fn multiply(&self, x: &Array, ops: &Ops) -> Result<Array, Exception> {
        let bias = self.bias.as_ref();
        match &self.form {
            Form::Plain { matrix, transposed } => ops.linear(x, matrix, transposed, bias),
            Form::Stored(matrix) => ops.stored_linear(x, matrix, self.factor, bias),
            Form::Quantised {
                packed,
                scales,
                biases,
                bits,
                group_size,
            } => {
                let mut product =
                    quantized_matmul(x, packed, scales, biases, true, *group_size, *bits)?;
                if let Some(factor) = self.factor {
                    product = product.multiply(Array::from_f32(factor).as_dtype(x.dtype())?)?;
                }
                match bias {
                    Some(bias) => product.add(bias),
                    None => Ok(product),
                }
            }
        }
    }

    /// Rows `indices` of the matrix, as an embedding.
    pub(crate) fn rows(&self, indices: &Array, ops: &Ops) -> Result<Array, Exception> {
        let rows = || Cost {
            read_bytes: self.bytes() / self.out() * indices.size(),
            flops: 0,
        };
        profile::op_beside(Op::EmbeddingRows, &[indices], rows, || {
            self.take(indices, ops)
        })
    }

    fn take(&self, indices: &Array, ops: &Ops) -> Result<Array, Exception> {
        match &self.form {
            Form::Plain { matrix, .. } => take_axis(matrix, indices, 0),
            Form::Stored(matrix) => ops.stored_rows(matrix, indices),
            Form::Quantised {
                packed,
                scales,
                biases,
                bits,
                group_size,
            } => dequantize(
                take_axis(packed, indices, 0)?,
                take_axis(scales, indices, 0)?,
                &take_axis(biases, indices, 0)?,
                *group_size,
                *bits,
            ),
        }
    }
}

impl Matrix {
    /// Moves a matrix to the device, in `dtype` if it is plain.
    pub(super) fn new(product: Op, merged: MergedMatrix, dtype: Dtype) -> Result<Self, MlxError> {
        let rows = merged.rows as i32;
        let columns = merged.columns as i32;
        let form = match merged.elements {
            Elements::Plain(elements) => {
                let matrix = Array::from_slice(&elements, &[rows, columns]).as_dtype(dtype)?;
                let transposed = matrix.transpose()?;
                Form::Plain { matrix, transposed }
            }
            Elements::Affine {
                bits,
                group_size,
                packed,
                scales,
                biases,
            } => {
                let groups = [rows, columns / group_size as i32];
                Form::Quantised {
                    packed: Array::from_slice(&packed, &[rows, columns * bits as i32 / 32]),
                    scales: Array::from_slice(&scales, &groups).as_dtype(dtype)?,
                    biases: Array::from_slice(&biases, &groups).as_dtype(dtype)?,
                    bits: bits as i32,
                    group_size: group_size as i32,
                }
            }
            Elements::Stored(matrix) => Form::Stored(matrix),
        };
        let matrix = Matrix {
            product,
            form,
            bias: None,
            factor: None,
        };
        transforms::eval(matrix.arrays())?;
        Ok(matrix)
    }

    pub(super) fn with_bias(self, bias: Option<Array>) -> Self {
        Self { bias, ..self }
    }

    /// Multiplies each product, before the bias, by `factor`.
    pub(super) fn with_factor(self, factor: f32) -> Self {
        Self {
            factor: Some(factor),
            ..self
        }
    }

    /// Length of an output row.
    pub(crate) fn out(&self) -> usize {
        match &self.form {
            Form::Plain { matrix, .. } => matrix.dim(0) as usize,
            Form::Quantised { packed, .. } => packed.dim(0) as usize,
            Form::Stored(matrix) => matrix.rows(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.form {
            Form::Plain { matrix, .. } => matrix.nbytes(),
            Form::Quantised { .. } => self.arrays().iter().map(|array| array.nbytes()).sum(),
            Form::Stored(matrix) => matrix.bytes(),
        }
    }

    /// The matrix as its files store it. None if it is kept in another form.
    pub(crate) fn stored(&self) -> Option<&StoredMatrix> {
        match &self.form {
            Form::Stored(matrix) => Some(matrix),
            Form::Plain { .. } | Form::Quantised { .. } => None,
        }
    }

    /// The product with the matrix as its files store it. None if it is kept in another form.
    pub(crate) fn projection(&self) -> Option<Projection<'_>> {
        Some(Projection {
            matrix: self.stored()?,
            factor: self.factor,
            bias: self.bias.as_ref(),
        })
    }

    /// Its arrays except views of others.
    pub(crate) fn own_arrays(&self) -> Vec<&Array> {
        let mut own = match &self.form {
            Form::Plain { matrix, .. } => vec![matrix],
            Form::Quantised { .. } | Form::Stored(_) => self.arrays(),
        };
        own.extend(&self.bias);
        own
    }

    fn arrays(&self) -> Vec<&Array> {
        match &self.form {
            Form::Plain { matrix, transposed } => vec![matrix, transposed],
            Form::Quantised {
                packed,
                scales,
                biases,
                ..
            } => vec![packed, scales, biases],
            Form::Stored(_) => Vec::new(),
        }
    }
}
