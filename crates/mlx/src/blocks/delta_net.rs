//! The gated delta net (Yang, Kautz and Hatamizadeh 2024), as in Qwen3-Next and Qwen3.5.

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
use motet_weights::{DeltaNet, Role};

/// A delta net behind a short convolution, with its projections.
#[derive(Clone, Debug)]
pub(crate) struct DeltaNetBlock {
    net: DeltaNet,
    /// To `[queries | keys | values | gate | beta | decay]`.
    input: Matrix,
    conv: ConvWeights,
    /// `[value_heads]`, below 0.
    decay_rates: Array,
    /// `[value_heads]`.
    time_step_bias: Array,
    /// The weight of the norm of each head's output, `[value_dim]`.
    inner_norm: Array,
    eps: f32,
    pub(super) output: Matrix,
}

/// The first columns of the input projection's parts.
struct InputColumns {
    gate: usize,
    beta: usize,
    decay: usize,
    end: usize,
}

impl DeltaNetBlock {
    pub(super) fn load(
        loader: &BlockLoader<'_>,
        net: &DeltaNet,
        eps: f32,
    ) -> Result<(Self, InputNorm), MlxError> {
        let inputs = [
            Role::MixerInput,
            Role::DeltaGate,
            Role::DeltaBeta,
            Role::DeltaDecay,
        ];
        let (input, norm) = loader.input(Op::PackedProduct, &inputs, &[])?;
        let block = Self {
            net: *net,
            input,
            conv: ConvWeights::load(loader, false)?,
            decay_rates: loader.tensor(Role::DecayRate)?,
            time_step_bias: loader.tensor(Role::TimeStepBias)?,
            inner_norm: loader.part(Role::InnerNorm)?,
            eps,
            output: loader.output(Op::OutputProduct, Role::MixerOutput, None)?,
        };
        Ok((block, norm))
    }

    fn columns(&self) -> InputColumns {
        let gate = self.net.channels();
        let beta = gate + self.net.value_heads * self.net.value_dim;
        let decay = beta + self.net.value_heads;
        InputColumns {
            gate,
            beta,
            decay,
            end: decay + self.net.value_heads,
        }
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
            None => profile::op(Op::DeltaNet, &[&rows], || self.compose(step, layer, &rows)),
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
        let columns = self.columns();
        let from = |first| Columns { array: rows, first };
        let spans = &step.batch.spans;
        let mixed = step.tails.update_in_place(layer, stream, |states| {
            let [conv_states, states] = span_states(spans, states);
            let kind = ConvKind::Silu;
            let qkv = self.conv.apply(from(0), kind, &conv_states, stream)?;
            let inputs = recurrent::DeltaInputs {
                qkv: Columns::all(&qkv),
                decay: from(columns.decay),
                beta: from(columns.beta),
                decay_rates: &self.decay_rates,
                time_step_bias: &self.time_step_bias,
            };
            let sizes = recurrent::DeltaSizes {
                key_heads: self.net.key_heads,
                value_heads: self.net.value_heads,
                key_dim: self.net.key_dim,
                value_dim: self.net.value_dim,
            };
            profile::op_beside(
                Op::DeltaNet,
                &[&qkv],
                || state_cost(&states),
                || recurrent::delta_net(sizes, inputs, &states, stream),
            )
        })?;
        let norm = NormOptions {
            epsilon: self.eps,
            order: GateOrder::NormFirst,
        };
        let gate = from(columns.gate);
        profile::op(Op::GatedNorm, &[&mixed], || {
            kernel_ops::gated_rms_norm(&mixed, gate, &self.inner_norm, norm, stream)
        })
    }

    /// Composed of MLX's operations.
    fn compose(
        &self,
        step: &mut MixerStep<'_>,
        layer: usize,
        rows: &Array,
    ) -> Result<Array, Exception> {
        let InputColumns {
            gate,
            beta,
            decay,
            end,
        } = self.columns();
        step.update_each(layer, rows, |rows, states| {
            let columns = |from, to| composed::columns(rows, from, to);
            let (mixed, conv_state) = self.conv.compose(&columns(0, gate)?, &states[0])?;
            let inputs = composed::delta_net::Inputs {
                qkv: &composed::silu(&mixed)?,
                beta: &columns(beta, decay)?,
                decay: &columns(decay, end)?,
                decay_rate: &self.decay_rates,
                time_step_bias: &self.time_step_bias,
            };
            let (mixed, state) = composed::delta_net::delta_net(&self.net, &inputs, &states[1])?;
            let gate = columns(gate, beta)?;
            let output = gated_norm::norm_then_gate(&mixed, &gate, &self.inner_norm, self.eps)?;
            Ok((output, smallvec![conv_state, state]))
        })
    }

    pub(super) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        for matrix in [&self.input, &self.output] {
            all.add_matrix(matrix);
        }
        all.arrays.extend(self.conv.arrays());
        all.arrays
            .extend([&self.decay_rates, &self.time_step_bias, &self.inner_norm]);
    }
}
