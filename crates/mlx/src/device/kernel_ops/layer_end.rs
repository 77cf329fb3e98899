//! The end of a layer, from the rows that its mixer made to the next layer's input, as one
//! operation.
//!
//! A step with few rows computes each of these parts in a few microseconds, and MLX takes as long
//! between two operations. The parts run one after another on the same kernels as alone, so the
//! results have the same bits.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use motet_kernels::Arithmetic;
use motet_kernels::gated::{self, Activation};
use motet_kernels::norm::{self, Norm};
use motet_kernels::pool::Pool;

use super::check::Check;
use super::stored::Product;
use crate::device::bridge::{Kernel, View, ViewMut, apply};
use crate::device::stored_matrix::StoredMatrix;

/// Most rows for which the parts are one operation. With more rows the time between operations
/// is a small share, and the memory for results between them should be MLX's.
pub(crate) const ROWS_MAX: usize = 64;

/// The weights of the end of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerEnd<'a> {
    /// From mixed rows to the residual stream.
    pub(crate) output: Projection<'a>,
    /// The weight of the norm between that product and its sum with the residual stream.
    pub(crate) after_mixer: Option<&'a Array>,
    pub(crate) before_mlp: RowNorm<'a>,
    /// To `[gate | up]`.
    pub(crate) gate_up: Projection<'a>,
    pub(crate) activation: Activation,
    pub(crate) down: Projection<'a>,
    /// The weight of the norm between the MLP and its sum with the residual stream.
    pub(crate) after_mlp: Option<&'a Array>,
    /// The norm of the next layer's input.
    pub(crate) before_next: RowNorm<'a>,
    /// Added to each mean square.
    pub(crate) epsilon: f32,
    pub(crate) arithmetic: Arithmetic,
}

/// A product with a matrix as its file stores it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Projection<'a> {
    pub(crate) matrix: &'a StoredMatrix,
    /// Factor of the product, before the bias.
    pub(crate) factor: Option<f32>,
    pub(crate) bias: Option<&'a Array>,
}

/// A norm of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowNorm<'a> {
    /// The rows as they are.
    None,
    /// Root-mean-square normalisation.
    Plain,
    /// The same, times a weight.
    Weighted(&'a Array),
}

/// Adds the layer's output to the `residual` stream (`[rows, hidden]`), given the `mixed` rows, and
/// returns the sum and the next layer's normalised input, both `[rows, hidden]`.
///
/// # Errors
///
/// When the shapes do not fit, and as for [`apply`].
pub(crate) fn layer_end(
    residual: &Array,
    mixed: &Array,
    end: &LayerEnd<'_>,
    stream: &Stream,
) -> Result<(Array, Array), Exception> {
    end.check(residual, mixed)?;
    let inputs = [residual, mixed].into_iter().chain(end.vectors());
    let inputs: Vec<&Array> = inputs.collect();
    let shape = residual.shape();
    let outputs = apply(Operation::new(end), &inputs, &[shape, shape], stream)?;
    let [sum, normed] = <[Array; 2]>::try_from(outputs).expect("two shapes make two outputs");
    Ok((sum, normed))
}

impl LayerEnd<'_> {
    /// The biases and the weights of norms, in the order in which they are used.
    fn vectors(&self) -> impl Iterator<Item = &Array> {
        [
            self.output.bias,
            self.after_mixer,
            self.before_mlp.weight(),
            self.gate_up.bias,
            self.down.bias,
            self.after_mlp,
            self.before_next.weight(),
        ]
        .into_iter()
        .flatten()
    }

    fn check(&self, residual: &Array, mixed: &Array) -> Result<(), Exception> {
        let check = Check("layer_end");
        let (hidden, inner) = (self.output.matrix.rows(), self.down.matrix.columns());
        if residual.ndim() != 2 || residual.dim(1) as usize != hidden {
            return check.reject("residual", residual, &format!("[rows, {hidden}]"));
        }
        let width = self.output.matrix.columns();
        if mixed.ndim() != 2 || mixed.dim(0) != residual.dim(0) || mixed.dim(1) as usize != width {
            return check.reject("mixed", mixed, &format!("as many rows of {width}"));
        }
        let shapes = [&self.gate_up, &self.down].map(|it| [it.matrix.rows(), it.matrix.columns()]);
        if shapes != [[2 * inner, hidden], [hidden, inner]] {
            return Err(Exception::custom(format!(
                "layer_end: matrices of {shapes:?} are no gated MLP of rows of {hidden}"
            )));
        }
        let of_rows = [
            self.output.bias,
            self.after_mixer,
            self.before_mlp.weight(),
            self.down.bias,
            self.after_mlp,
            self.before_next.weight(),
        ];
        for vector in of_rows.into_iter().flatten() {
            check.vector("a bias or a norm", vector, hidden)?;
        }
        match self.gate_up.bias {
            Some(bias) => check.vector("the bias of gate and up", bias, 2 * inner),
            None => Ok(()),
        }
    }
}

impl<'a> RowNorm<'a> {
    fn weight(self) -> Option<&'a Array> {
        match self {
            Self::Weighted(weight) => Some(weight),
            Self::None | Self::Plain => None,
        }
    }

    fn kind(self) -> NormKind {
        match self {
            Self::None => NormKind::None,
            Self::Plain => NormKind::Plain,
            Self::Weighted(_) => NormKind::Weighted,
        }
    }
}

#[derive(Clone, Copy)]
enum NormKind {
    None,
    Plain,
    Weighted,
}

struct Operation {
    output: Biased,
    normalises_mixed: bool,
    before_mlp: NormKind,
    gate_up: Biased,
    activation: Activation,
    down: Biased,
    normalises_mlp: bool,
    before_next: NormKind,
    epsilon: f32,
}

/// A product, and whether it has a bias among the inputs.
struct Biased {
    product: Product,
    has_bias: bool,
}

impl Operation {
    fn new(end: &LayerEnd<'_>) -> Self {
        let biased = |projection: Projection<'_>| Biased {
            product: Product::new(projection.matrix, projection.factor, end.arithmetic),
            has_bias: projection.bias.is_some(),
        };
        Self {
            output: biased(end.output),
            normalises_mixed: end.after_mixer.is_some(),
            before_mlp: end.before_mlp.kind(),
            gate_up: biased(end.gate_up),
            activation: end.activation,
            down: biased(end.down),
            normalises_mlp: end.after_mlp.is_some(),
            before_next: end.before_next.kind(),
            epsilon: end.epsilon,
        }
    }

    /// `input + delta`, and its norm.
    fn add(
        &self,
        kind: NormKind,
        vectors: &mut Vectors<'_>,
        [input, delta]: [&[f32]; 2],
        [sum, normed]: [&mut [f32]; 2],
    ) {
        let weight = match kind {
            NormKind::None => {
                for ((sum, input), delta) in sum.iter_mut().zip(input).zip(delta) {
                    *sum = input + delta;
                }
                normed.copy_from_slice(sum);
                return;
            }
            NormKind::Plain => None,
            NormKind::Weighted => vectors.next_if(true),
        };
        let norm = self.norm(weight);
        norm::add_rms_norm(Pool::global(), norm, input, delta, sum, normed);
    }

    /// Normalises `rows` if the layer does, with `spare` of the same length.
    fn normalise(
        &self,
        normalises: bool,
        vectors: &mut Vectors<'_>,
        rows: &mut [f32],
        spare: &mut [f32],
    ) {
        if let Some(weight) = vectors.next_if(normalises) {
            norm::rms_norm(Pool::global(), self.norm(Some(weight)), rows, spare);
            rows.copy_from_slice(spare);
        }
    }

    fn norm<'a>(&self, weight: Option<&'a [f32]>) -> Norm<'a> {
        Norm {
            width: self.output.product.rows(),
            weight,
            epsilon: self.epsilon,
        }
    }
}

impl Kernel for Operation {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let ([residual, mixed, vectors @ ..], [sum, normed]) = (inputs, outputs) else {
            unreachable!("the operation has at least two inputs, and two outputs")
        };
        let mut vectors = Vectors(vectors);
        let (sum, normed) = (&mut *sum.data, &mut *normed.data);
        let (rows, inner) = (mixed.shape[0], self.down.product.columns());
        let mut scratch = vec![0.0; 2 * sum.len() + 3 * rows * inner];
        let (delta, scratch) = scratch.split_at_mut(sum.len());
        let (middle, scratch) = scratch.split_at_mut(sum.len());
        let (gate_up, activated) = scratch.split_at_mut(2 * rows * inner);

        self.output.compute(&mut vectors, &mixed.data, delta);
        self.normalise(self.normalises_mixed, &mut vectors, delta, normed);
        let added = [&*residual.data, &*delta];
        self.add(self.before_mlp, &mut vectors, added, [middle, normed]);
        self.gate_up.compute(&mut vectors, normed, gate_up);
        gated::gated(Pool::global(), self.activation, gate_up, inner, activated);
        self.down.compute(&mut vectors, activated, delta);
        self.normalise(self.normalises_mlp, &mut vectors, delta, normed);
        self.add(
            self.before_next,
            &mut vectors,
            [middle, delta],
            [sum, normed],
        );
    }
}

impl Biased {
    fn compute(&self, vectors: &mut Vectors<'_>, input: &[f32], output: &mut [f32]) {
        let bias = vectors.next_if(self.has_bias);
        self.product.compute(input, bias, output);
    }
}

/// The biases and norms that are left.
struct Vectors<'a>(&'a [View<'a>]);

impl<'a> Vectors<'a> {
    fn next_if(&mut self, is_present: bool) -> Option<&'a [f32]> {
        if !is_present {
            return None;
        }
        let (first, rest) = self.0.split_first().expect("each vector is an input");
        self.0 = rest;
        Some(&first.data)
    }
}
