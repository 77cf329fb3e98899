//! Mamba 2 (Dao and Gu 2024), as in Granite 4.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use smallvec::smallvec;

use super::MixerStep;
use super::composed::{self, gated_norm};
use super::recurrent::{ConvWeights, span_states, state_cost};
use crate::error::MlxError;
use crate::kernel_ops::{self, Columns, NormOptions, recurrent};
use crate::profile::{self, Op};
use crate::weights::{BlockLoader, InputNorm, Matrix, WeightParts};
use motet_kernels::gated_norm::GateOrder;
use motet_kernels::short_conv::ConvKind;
use motet_weights::{Mamba2, Role};

/// Mamba 2 behind a short convolution, with its projections.
#[derive(Clone, Debug)]
pub(crate) struct Mamba2Block {
    net: Mamba2,
    /// To `[gate | heads | B | C | time steps]`.
    input: Matrix,
    conv: ConvWeights,
    /// `[heads]`, below 0.
    decay_rates: Array,
    /// `[heads]`.
    time_step_bias: Array,
    /// `[heads]`.
    skip: Array,
    /// The weight of the norm of the gated output, `[inner]`.
    inner_norm: Array,
    eps: f32,
    pub(super) output: Matrix,
}

impl Mamba2Block {
    pub(super) fn load(
        loader: &BlockLoader<'_>,
        net: &Mamba2,
        eps: f32,
    ) -> Result<(Self, InputNorm), MlxError> {
        let bias = |role| net.bias.then_some(role);
        let input_biases: Vec<Role> = bias(Role::MixerInputBias).into_iter().collect();
        let (input, norm) = loader.input(Op::PackedProduct, &[Role::MixerInput], &input_biases)?;
        let block = Self {
            net: *net,
            input,
            conv: ConvWeights::load(loader, net.conv_bias)?,
            decay_rates: loader.tensor(Role::DecayRate)?,
            time_step_bias: loader.tensor(Role::TimeStepBias)?,
            skip: loader.tensor(Role::Skip)?,
            inner_norm: loader.part(Role::InnerNorm)?,
            eps,
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
            Some(stream) => self.run(step, layer, &rows, stream),
            None => profile::op(Op::Mamba2, &[&rows], || self.compose(step, layer, &rows)),
        }
    }

    /// By this crate's kernels.
    fn run(
        &self,
        step: &mut MixerStep<'_>,
        layer: usize,
        rows: &Array,
        stream: &Stream,
    ) -> Result<Array, Exception> {
        let inner = self.net.inner();
        let from = |first| Columns { array: rows, first };
        let spans = &step.batch.spans;
        let mixed = step.tails.update_in_place(layer, stream, |states| {
            let [conv_states, states] = span_states(spans, states);
            let kind = ConvKind::Silu;
            let input = self.conv.apply(from(inner), kind, &conv_states, stream)?;
            let inputs = recurrent::MambaInputs {
                input: Columns::all(&input),
                time_steps: from(inner + self.net.channels()),
                decay_rates: &self.decay_rates,
                skip: &self.skip,
                time_step_bias: &self.time_step_bias,
            };
            let sizes = recurrent::MambaSizes {
                heads: self.net.heads,
                head_dim: self.net.head_dim,
                groups: self.net.groups,
                state_size: self.net.state_size,
                time_step_limits: self.net.time_step,
            };
            profile::op_beside(
                Op::Mamba2,
                &[&input],
                || state_cost(&states),
                || recurrent::mamba2(sizes, inputs, &states, stream),
            )
        })?;
        let norm = NormOptions {
            epsilon: self.eps,
            order: GateOrder::GateFirst,
        };
        profile::op(Op::GatedNorm, &[&mixed], || {
            kernel_ops::gated_rms_norm(&mixed, from(0), &self.inner_norm, norm, stream)
        })
    }

    /// Composed of MLX's operations.
    fn compose(
        &self,
        step: &mut MixerStep<'_>,
        layer: usize,
        rows: &Array,
    ) -> Result<Array, Exception> {
        let (inner, channels) = (self.net.inner(), self.net.channels());
        let steps = inner + channels;
        step.update_each(layer, rows, |rows, states| {
            let columns = |from, to| composed::columns(rows, from, to);
            let (mixed, conv_state) = self.conv.compose(&columns(inner, steps)?, &states[0])?;
            let inputs = composed::mamba2::Inputs {
                xbc: &composed::silu(&mixed)?,
                time_steps: &columns(steps, steps + self.net.heads)?,
                time_step_bias: &self.time_step_bias,
                decay_rate: &self.decay_rates,
                skip: &self.skip,
            };
            let (mixed, state) = composed::mamba2::mamba2(&self.net, &inputs, &states[1])?;
            let gate = columns(0, inner)?;
            let output = gated_norm::gate_then_norm(&mixed, &gate, &self.inner_norm, self.eps)?;
            Ok((output, smallvec![conv_state, state]))
        })
    }

    pub(super) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        for matrix in [&self.input, &self.output] {
            all.add_matrix(matrix);
        }
        all.arrays.extend(self.conv.arrays());
        all.arrays.extend([
            &self.decay_rates,
            &self.time_step_bias,
            &self.skip,
            &self.inner_norm,
        ]);
    }
}
