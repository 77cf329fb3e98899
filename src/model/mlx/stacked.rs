//! Matrices on the host, on their way from the files to the device.
//!
//! What belongs together is stacked into one matrix (queries, keys and values;
//! gate and up), and what would cost an operation in every step is folded in
//! beforehand: the norm's weight into the columns, attention's scale and RoPE's
//! order of pairs into the rows of queries and keys.

use half::f16;

use crate::model::ModelError;
use crate::model::weights::{AffineQuantised, ModelFiles};

/// A matrix `[rows, columns]`, row-major.
#[derive(Debug)]
pub(super) struct Stacked {
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
        scales: Vec<f16>,
        biases: Vec<f16>,
    },
}

impl Stacked {
    /// The tensors of these names, one below the other. They stay quantised where
    /// `keep_quantised` says so and all of them are, in the same way.
    ///
    /// # Errors
    ///
    /// What [`ModelFiles::tensor`] answers.
    pub(super) fn read(
        files: &ModelFiles,
        names: &[String],
        keep_quantised: bool,
    ) -> Result<Self, ModelError> {
        let tensors = names
            .iter()
            .map(|name| files.tensor(name))
            .collect::<Result<Vec<_>, _>>()?;
        let columns = *tensors[0].shape.last().expect("a matrix has two axes");
        let rows = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        let affine: Option<Vec<_>> = match keep_quantised {
            true => tensors.iter().map(|tensor| tensor.to_affine()).collect(),
            false => None,
        };
        let elements = affine.and_then(stack_affine).unwrap_or_else(|| {
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

    /// Reorders rows: row `i` is what row `from(i)` was.
    pub(super) fn permute_rows(&mut self, from: impl Fn(usize) -> usize) {
        let rows = self.rows;
        match &mut self.elements {
            Elements::Plain(elements) => permute(elements, rows, &from),
            Elements::Affine {
                packed,
                scales,
                biases,
                ..
            } => {
                permute(packed, rows, &from);
                permute(scales, rows, &from);
                permute(biases, rows, &from);
            }
        }
    }

    /// Multiplies the first `rows` rows.
    pub(super) fn scale_rows(&mut self, rows: usize, factor: f32) {
        let total = self.rows;
        match &mut self.elements {
            Elements::Plain(elements) => {
                let count = elements.len() / total * rows;
                elements[..count].iter_mut().for_each(|x| *x *= factor);
            }
            Elements::Affine { scales, biases, .. } => {
                let count = scales.len() / total * rows;
                for x in scales[..count].iter_mut().chain(&mut biases[..count]) {
                    *x = f16::from_f32(x.to_f32() * factor);
                }
            }
        }
    }

    /// Multiplies column `i` by `factors[i]`, so that `self * (factors ∘ x)`
    /// becomes `self * x`. False, and nothing done, for quantised elements: a
    /// group's columns share their scale.
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
}

/// The order in which pairs stand side by side: the two halves of each of the
/// first `heads` heads interleaved, the rest as it was.
pub(super) fn pairs_side_by_side(heads: usize, head_dim: usize) -> impl Fn(usize) -> usize {
    move |row| {
        if row >= heads * head_dim {
            return row;
        }
        let (head, at) = (row / head_dim, row % head_dim);
        head * head_dim + at / 2 + at % 2 * (head_dim / 2)
    }
}

/// Reorders `rows` runs of equal length.
pub(super) fn permute<T: Copy>(elements: &mut Vec<T>, rows: usize, from: impl Fn(usize) -> usize) {
    let width = elements.len() / rows;
    let mut permuted = Vec::with_capacity(elements.len());
    for row in 0..rows {
        let start = from(row) * width;
        permuted.extend_from_slice(&elements[start..start + width]);
    }
    *elements = permuted;
}

/// None unless all are quantised alike.
fn stack_affine(matrices: Vec<AffineQuantised>) -> Option<Elements> {
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

    fn plain(rows: usize, elements: &[f32]) -> Stacked {
        Stacked {
            rows,
            columns: elements.len() / rows,
            elements: Elements::Plain(elements.to_vec()),
        }
    }

    fn check(matrix: Stacked, expected: &[f32]) {
        let Elements::Plain(elements) = matrix.elements else {
            panic!("plain elements stay plain");
        };
        assert_eq!(elements, expected);
    }

    #[test]
    fn halves_of_each_head_are_interleaved() {
        let mut matrix = plain(10, &[0., 1., 2., 3., 4., 5., 6., 7., 8., 9.]);
        matrix.permute_rows(pairs_side_by_side(2, 4));
        check(matrix, &[0., 2., 1., 3., 4., 6., 5., 7., 8., 9.]);
    }

    #[test]
    fn rows_and_columns_are_scaled() {
        let mut matrix = plain(2, &[1., 2., 3., 4.]);
        matrix.scale_rows(1, 0.5);
        assert!(matrix.scale_columns(&[1., 10.]));
        check(matrix, &[0.5, 10., 3., 40.]);
    }
}
