//! Reading the tensors of a block into matrices and vectors on the device.

use mlx_rs::{Array, Dtype, transforms};

use super::matrix::Matrix;
use super::merged_matrix::MergedMatrix;
use super::{InputNorm, MatrixForm};
use crate::device::profile::Op;
use crate::device::stored_matrix::StoredMatrix;
use crate::error::MlxError;
use motet_weights::{ModelFiles, Role};

/// The inputs that all parts of loading share.
#[derive(Clone, Copy)]
pub(crate) struct Loader<'a> {
    files: &'a ModelFiles,
    dtype: Dtype,
    form: MatrixForm,
}

/// Loads one block of a layer.
pub(crate) struct BlockLoader<'a> {
    loader: Loader<'a>,
    layer: usize,
    /// The norm of the block's input, if it has one.
    norm: Option<Role>,
    /// Factor of the block's output.
    output_scale: f32,
}

impl<'a> Loader<'a> {
    /// Loads in `dtype`, and matrices in that form.
    pub(crate) fn new(files: &'a ModelFiles, dtype: Dtype, form: MatrixForm) -> Self {
        Self { files, dtype, form }
    }

    /// A loader for a block of a layer.
    pub(crate) fn layer(
        &self,
        layer: usize,
        norm: Option<Role>,
        output_scale: f32,
    ) -> BlockLoader<'a> {
        BlockLoader {
            loader: *self,
            layer,
            norm,
            output_scale,
        }
    }

    /// A matrix outside the layers.
    pub(crate) fn table(&self, product: Op, role: Role) -> Result<Matrix, MlxError> {
        self.matrix(product, self.merged(None, &[role])?)
    }

    fn merged(&self, layer: Option<usize>, roles: &[Role]) -> Result<MergedMatrix, MlxError> {
        MergedMatrix::read(self.files, layer, roles, self.form)
    }

    /// A tensor in the type of activations, times `factor`, in its own shape.
    pub(crate) fn scaled(
        &self,
        layer: Option<usize>,
        role: Role,
        factor: f32,
    ) -> Result<Array, MlxError> {
        self.tensor(layer, role, factor, self.dtype)
    }

    fn tensor(
        &self,
        layer: Option<usize>,
        role: Role,
        factor: f32,
        dtype: Dtype,
    ) -> Result<Array, MlxError> {
        let tensor = self.files.tensor(layer, role)?;
        let shape: Vec<i32> = tensor.shape.iter().map(|size| *size as i32).collect();
        let mut numbers = tensor.to_f32();
        if factor != 1.0 {
            numbers.iter_mut().for_each(|x| *x *= factor);
        }
        self.array(&numbers, &shape, dtype)
    }

    fn matrix(&self, product: Op, merged: MergedMatrix) -> Result<Matrix, MlxError> {
        Matrix::new(product, merged, self.dtype)
    }

    fn array(&self, numbers: &[f32], shape: &[i32], dtype: Dtype) -> Result<Array, MlxError> {
        let array = Array::from_slice(numbers, shape).as_dtype(dtype)?;
        transforms::eval([&array])?;
        Ok(array)
    }
}

impl BlockLoader<'_> {
    /// The stacked matrices that the block's input meets first, with these biases. The weight of
    /// the norm before them is folded in where that is possible.
    pub(crate) fn input(
        &self,
        product: Op,
        roles: &[Role],
        biases: &[Role],
    ) -> Result<(Matrix, InputNorm), MlxError> {
        let mut merged = self.loader.merged(Some(self.layer), roles)?;
        let norm = match self.norm {
            None => InputNorm::None,
            Some(norm) => {
                let tensor = self.loader.files.tensor(Some(self.layer), norm)?;
                if merged.scale_columns(&tensor.to_f32()) {
                    InputNorm::Folded
                } else {
                    self.input_norm()?
                }
            }
        };
        let matrix = self.loader.matrix(product, merged)?;
        Ok((matrix.with_bias(self.bias(biases, 1.0)?), norm))
    }

    /// The norm of the block's input, not folded into anything.
    pub(crate) fn input_norm(&self) -> Result<InputNorm, MlxError> {
        Ok(match self.norm {
            None => InputNorm::None,
            Some(norm) => InputNorm::Weight(self.loader.scaled(Some(self.layer), norm, 1.0)?),
        })
    }

    /// The matrix whose product is the block's output, times the output's factor.
    pub(crate) fn output(
        &self,
        product: Op,
        role: Role,
        bias: Option<Role>,
    ) -> Result<Matrix, MlxError> {
        let mut merged = self.loader.merged(Some(self.layer), &[role])?;
        let scaled = merged.scale(self.output_scale);
        let matrix = self.loader.matrix(product, merged)?;
        let biases: Vec<Role> = bias.into_iter().collect();
        let matrix = matrix.with_bias(self.bias(&biases, self.output_scale)?);
        Ok(if scaled {
            matrix
        } else {
            matrix.with_factor(self.output_scale)
        })
    }

    /// Stacked matrices that no norm is folded into, with these biases.
    pub(crate) fn matrix(
        &self,
        product: Op,
        roles: &[Role],
        biases: &[Role],
    ) -> Result<Matrix, MlxError> {
        let merged = self.loader.merged(Some(self.layer), roles)?;
        let matrix = self.loader.matrix(product, merged)?;
        Ok(matrix.with_bias(self.bias(biases, 1.0)?))
    }

    /// A tensor in the type of activations, in its own shape.
    pub(crate) fn part(&self, role: Role) -> Result<Array, MlxError> {
        self.loader.scaled(Some(self.layer), role, 1.0)
    }

    /// A tensor in single precision, in its own shape.
    pub(crate) fn tensor(&self, role: Role) -> Result<Array, MlxError> {
        self.loader
            .tensor(Some(self.layer), role, 1.0, Dtype::Float32)
    }

    /// The matrices of experts as the files store them. None if they are kept in another form.
    pub(crate) fn stored(&self, role: Role) -> Result<Option<StoredMatrix>, MlxError> {
        if self.loader.form != MatrixForm::AsStored {
            return Ok(None);
        }
        let tensor = self.loader.files.tensor(Some(self.layer), role)?;
        Ok(StoredMatrix::new(vec![tensor]))
    }

    /// The factor of the block's output.
    pub(crate) fn output_scale(&self) -> f32 {
        self.output_scale
    }

    /// A part of the block's output, times the output's factor, in its own shape.
    pub(crate) fn output_part(&self, role: Role) -> Result<Array, MlxError> {
        self.loader
            .scaled(Some(self.layer), role, self.output_scale)
    }

    /// The tensors of these roles, one after another, times `factor`.
    fn bias(&self, roles: &[Role], factor: f32) -> Result<Option<Array>, MlxError> {
        if roles.is_empty() {
            return Ok(None);
        }
        let mut bias = Vec::new();
        for role in roles {
            let tensor = self.loader.files.tensor(Some(self.layer), *role)?;
            bias.extend(tensor.to_f32().into_iter().map(|x| x * factor));
        }
        let shape = [bias.len() as i32];
        self.loader
            .array(&bias, &shape, self.loader.dtype)
            .map(Some)
    }
}
