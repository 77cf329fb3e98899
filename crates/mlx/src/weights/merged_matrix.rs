//! Matrices on the host, between the files and the device.
//!
//! Matrices that are used together are stacked into one (queries, keys and values; gate and
//! up). The weight of the norm before a matrix is folded into its columns, and a factor of its
//! output into its rows. Neither then costs an operation in each step.

use super::MatrixForm;
use crate::device::stored_matrix::StoredMatrix;
use crate::error::MlxError;
use motet_weights::{AffineQuantised, ModelFiles, Role};

/// A matrix `[rows, columns]`, row-major.
#[derive(Debug)]
pub(super) struct MergedMatrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) elements: Elements,
}

#[derive(Debug)]
pub(super) enum Elements {
    Plain(Vec<f32>),
    /// Groups of `group_size` along a row: `scale * q + bias`.
    Affine {
        bits: usize,
        group_size: usize,
        packed: Vec<u32>,
        scales: Vec<f32>,
        biases: Vec<f32>,
    },
    /// As in the files.
    Stored(StoredMatrix),
}

impl MergedMatrix {
    /// The tensors of these roles, stacked by rows. All but the last of a tensor's axes count as
    /// rows. Matrices for which `form` is not possible are plain.
    ///
    /// # Errors
    ///
    /// The errors of [`ModelFiles::tensor`].
    pub(super) fn read(
        files: &ModelFiles,
        layer: Option<usize>,
        roles: &[Role],
        form: MatrixForm,
    ) -> Result<Self, MlxError> {
        let tensors = roles
            .iter()
            .map(|role| files.tensor(layer, *role))
            .collect::<Result<Vec<_>, _>>()?;
        let columns = *tensors[0].shape.last().expect("a matrix has two axes");
        let rows = tensors
            .iter()
            .map(|tensor| tensor.elements() / columns)
            .sum();
        let kept = match form {
            MatrixForm::Converted => None,
            MatrixForm::Affine => {
                let affine = tensors.iter().map(|tensor| tensor.to_affine());
                affine.collect::<Option<_>>().and_then(merge_affine)
            }
            MatrixForm::AsStored => StoredMatrix::new(tensors.clone()).map(Elements::Stored),
        };
        let elements = kept.unwrap_or_else(|| {
            let mut elements = Vec::with_capacity(rows * columns);
            for tensor in &tensors {
                elements.append(&mut tensor.to_f32());
            }
            Elements::Plain(elements)
        });
        Ok(Self {
            rows,
            columns,
            elements,
        })
    }

    /// Multiplies column `i` by `factors[i]`, so that `self * (factors ∘ x)` becomes `self *
    /// x`. Returns false and does nothing for elements that are not plain: a quantised group's
    /// columns share their scale, and stored ones belong to the file.
    pub(super) fn scale_columns(&mut self, factors: &[f32]) -> bool {
        let Elements::Plain(elements) = &mut self.elements else {
            return false;
        };
        for row in elements.chunks_exact_mut(self.columns) {
            for (x, factor) in row.iter_mut().zip(factors) {
                *x *= factor;
            }
        }
        true
    }

    /// Multiplies all elements by `factor`. Returns whether the elements now contain the factor;
    /// others are left as they are.
    pub(super) fn scale(&mut self, factor: f32) -> bool {
        let Elements::Plain(elements) = &mut self.elements else {
            return factor == 1.0;
        };
        if factor != 1.0 {
            elements.iter_mut().for_each(|x| *x *= factor);
        }
        true
    }
}

/// None unless all are quantised in the same way.
fn merge_affine(matrices: Vec<AffineQuantised>) -> Option<Elements> {
    let (bits, group_size) = (matrices[0].bits, matrices[0].group_size);
    let alike = |matrix: &AffineQuantised| matrix.bits == bits && matrix.group_size == group_size;
    if !matrices.iter().all(alike) {
        return None;
    }
    let (mut packed, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for mut matrix in matrices {
        packed.append(&mut matrix.packed);
        scales.append(&mut matrix.scales);
        biases.append(&mut matrix.biases);
    }
    Some(Elements::Affine {
        bits,
        group_size,
        packed,
        scales,
        biases,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_rows_are_scaled() {
        let mut matrix = MergedMatrix {
            rows: 2,
            columns: 2,
            elements: Elements::Plain(vec![1., 2., 3., 4.]),
        };
        assert!(matrix.scale_columns(&[1., 10.]));
        assert!(matrix.scale(2.0));
        let Elements::Plain(elements) = matrix.elements else {
            panic!("plain elements stay plain");
        };
        assert_eq!(elements, [2., 40., 6., 80.]);
    }
}
