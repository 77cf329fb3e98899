//! LFM2's gated short convolution.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use smallvec::smallvec;

use super::recurrent::{ConvWeights, span_states};
use super::{MixerStep, composed};
use crate::error::MlxError;
use crate::kernel_ops::Columns;
use crate::profile::{self, Op};
use crate::weights::{BlockLoader, InputNorm, Matrix, WeightParts};
use motet_kernels::short_conv::ConvKind;
use motet_weights::{Role, ShortConv};

/// `output(C * conv(B * u))`.
#[derive(Clone, Debug)]
pub(crate) struct ShortConvBlock {
    /// To `[B | C | u]`.
    input: Matrix,
    conv: ConvWeights,
    pub(super) output: Matrix,
}

impl ShortConvBlock {
    pub(super) fn load(
        loader: &BlockLoader<'_>,
        conv: &ShortConv,
    ) -> Result<(Self, InputNorm), MlxError> {
        let bias = |role| conv.bias.then_some(role);
        let input_biases: Vec<Role> = bias(Role::MixerInputBias).into_iter().collect();
        let (input, norm) = loader.input(Op::PackedProduct, &[Role::MixerInput], &input_biases)?;
        let block = Self {
            input,
            conv: ConvWeights::load(loader, conv.bias)?,
            output: loader.output(
                Op::OutputProduct,
                Role::MixerOutput,
                bias(Role::MixerOutputBias),
            )?,
        };
        Ok((block, norm))
    }

    pub(super) fn mix(
        &self,
        step: &mut MixerStep<'_>,
        layer: usize,
        normed: &Array,
    ) -> Result<Array, Exception> {
        let rows = self.input.apply(normed, step.ops)?;
        match &step.ops.kernels {
            Some(stream) => {
                let spans = &step.batch.spans;
                step.tails.update_in_place(layer, stream, |states| {
                    let [states] = span_states(spans, states);
                    self.conv
                        .apply(Columns::all(&rows), ConvKind::Gated, &states, stream)
                })
            }
            None => profile::op(Op::ShortConv, &[&rows], || self.compose(step, layer, &rows)),
        }
    }

    fn compose(
        &self,
        step: &mut MixerStep<'_>,
        layer: usize,
        rows: &Array,
    ) -> Result<Array, Exception> {
        let width = rows.dim(1) as usize / 3;
        step.update_each(layer, rows, |rows, states| {
            let third = |index| composed::columns(rows, index * width, (index + 1) * width);
            let input = third(0)?.multiply(third(2)?)?;
            let (mixed, next) = self.conv.compose(&input, &states[0])?;
            Ok((third(1)?.multiply(mixed)?, smallvec![next]))
        })
    }

    pub(super) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        for matrix in [&self.input, &self.output] {
            all.add_matrix(matrix);
        }
        all.arrays.extend(self.conv.arrays());
    }
}
