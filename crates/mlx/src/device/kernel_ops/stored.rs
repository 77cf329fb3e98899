//! Products with matrices as their files store them, and their rows, as operations of a graph.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, Stream};
use motet_kernels::Arithmetic;
use motet_kernels::int8::linear as project_fast;
use motet_kernels::linear::linear as project;
use motet_kernels::pool::Pool;

use super::one;
use crate::device::bridge::{Kernel, View, ViewMut, apply};
use crate::device::stored_matrix::StoredMatrix;

/// `input` (`[..., width]`) times the transpose of `matrix` (`[n, width]`), times `factor`
/// where given, plus `bias` (`[n]`) where given, as one operation. The product is computed by
/// `arithmetic`.
///
/// # Errors
///
/// When the shapes do not fit, and as for [`apply`].
pub(crate) fn stored_linear(
    input: &Array,
    matrix: &StoredMatrix,
    factor: Option<f32>,
    bias: Option<&Array>,
    arithmetic: Arithmetic,
    stream: &Stream,
) -> Result<Array, Exception> {
    let [rows, columns] = [matrix.rows() as i32, matrix.columns() as i32];
    let mut shape = input.shape().to_vec();
    let fits = shape.last() == Some(&columns) && bias.is_none_or(|bias| bias.shape() == [rows]);
    if !fits {
        let (input, bias) = (input.shape(), bias.map(Array::shape));
        return Err(Exception::custom(format!(
            "stored_linear: input {input:?}, a matrix of [{rows}, {columns}] and bias {bias:?} \
             do not fit"
        )));
    }
    if let Some(last) = shape.last_mut() {
        *last = rows;
    }
    let inputs: Vec<&Array> = [input].into_iter().chain(bias).collect();
    let kernel = Product::new(matrix, factor, arithmetic);
    one(apply(kernel, &inputs, &[&shape], stream)?)
}

/// Rows `indices` (`[rows]`, 32-bit integers) of `matrix`, in single precision, as one operation.
///
/// # Errors
///
/// When `indices` has another type or shape, and as for [`apply`]. An index that is not less than
/// the matrix's rows fails the operation when it runs.
pub(crate) fn stored_rows(
    matrix: &StoredMatrix,
    indices: &Array,
    stream: &Stream,
) -> Result<Array, Exception> {
    let &[count] = indices.shape() else {
        let shape = indices.shape();
        return Err(Exception::custom(format!(
            "stored_rows: indices {shape:?} are not [rows]"
        )));
    };
    if !matches!(indices.dtype(), Dtype::Uint32 | Dtype::Int32) {
        let found = indices.dtype();
        return Err(Exception::custom(format!(
            "stored_rows: indices are {found:?}, expected 32-bit integers"
        )));
    }
    // Kernels read arrays of `f32`: the same bits under another type.
    let bits = indices.view_dtype(Dtype::Float32)?;
    let kernel = Lookup {
        matrix: matrix.clone(),
    };
    let shape = [count, matrix.columns() as i32];
    one(apply(kernel, &[&bits], &[&shape], stream)?)
}

/// A product with a matrix as its file stores it.
pub(super) struct Product {
    matrix: StoredMatrix,
    factor: Option<f32>,
    arithmetic: Arithmetic,
}

impl Product {
    pub(super) fn new(matrix: &StoredMatrix, factor: Option<f32>, arithmetic: Arithmetic) -> Self {
        Self {
            matrix: matrix.clone(),
            factor: factor.filter(|factor| *factor != 1.0),
            arithmetic,
        }
    }

    /// Length of an output row.
    pub(super) fn rows(&self) -> usize {
        self.matrix.rows()
    }

    /// Length of an input row.
    pub(super) fn columns(&self) -> usize {
        self.matrix.columns()
    }

    /// Writes the product of each row of `input`, times the factor, plus `bias` to `output`.
    pub(super) fn compute(&self, input: &[f32], bias: Option<&[f32]>, output: &mut [f32]) {
        let pool = Pool::global();
        let parts = self.matrix.parts();
        let project = match self.arithmetic {
            Arithmetic::Exact => project,
            Arithmetic::Fast => project_fast,
        };
        let Some(factor) = self.factor else {
            return project(pool, input, &parts, bias, output);
        };
        project(pool, input, &parts, None, output);
        for row in output.chunks_exact_mut(self.matrix.rows()) {
            match bias {
                Some(bias) => row
                    .iter_mut()
                    .zip(bias)
                    .for_each(|(y, b)| *y = *y * factor + b),
                None => row.iter_mut().for_each(|y| *y *= factor),
            }
        }
    }
}

impl Kernel for Product {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let [input, bias @ ..] = inputs else {
            unreachable!("the operation has an input")
        };
        let bias = bias.first().map(|bias| &*bias.data);
        self.compute(&input.data, bias, outputs[0].data);
    }
}

struct Lookup {
    matrix: StoredMatrix,
}

impl Kernel for Lookup {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let rows = outputs[0].data.chunks_exact_mut(self.matrix.columns());
        for (index, row) in inputs[0].data.iter().zip(rows) {
            self.matrix.decode(index.to_bits() as usize, row);
        }
    }
}
