//! Recurrent blocks. All have one frame: a projection, a short convolution, and a projection to
//! the residual stream. Behind the convolution there is a recurrence with a norm and a gate, or
//! nothing.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use smallvec::smallvec;

use super::composed::{self, gated_norm};
use super::conv_weights::{ConvWeights, span_states, state_cost};
use super::recurrence::{Net, Recurrence};
use super::step::{MixerStep, update_each};
use crate::device::kernel_ops::{self, Columns, NormOptions};
use crate::device::ops::Ops;
use crate::device::profile::{self, Op};
use crate::error::MlxError;
use crate::state::groups::Arrays;
use crate::state::tail::TailWrites;
use crate::weights::{BlockLoader, InputNorm, Matrix, WeightParts};
use motet_kernels::gated_norm::GateOrder;
use motet_kernels::short_conv::ConvKind;
use motet_weights::{DeltaNet, Mamba2, Role, ShortConv};

/// A recurrent block of one layer.
#[derive(Clone, Debug)]
pub(crate) struct RecurrentBlock {
    input: Matrix,
    conv: ConvWeights,
    /// None in LFM2's block, `output(C * conv(B * u))`, whose input is `[B | C | u]`.
    gated: Option<GatedRecurrence>,
    pub(super) output: Matrix,
}

/// A recurrence, and the norm and the gate behind it.
#[derive(Clone, Debug)]
struct GatedRecurrence {
    recurrence: Recurrence,
    /// The weight of the norm: of each head's output, or of a whole row.
    norm: Array,
    eps: f32,
}

impl RecurrentBlock {
    pub(super) fn short_conv(
        loader: &BlockLoader<'_>,
        conv: &ShortConv,
    ) -> Result<(Self, InputNorm), MlxError> {
        Self::load(loader, &[Role::MixerInput], [conv.bias; 2], || Ok(None))
    }

    pub(super) fn delta_net(
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
        let gated = || GatedRecurrence::load(loader, Net::DeltaNet(*net), eps).map(Some);
        Self::load(loader, &inputs, [false; 2], gated)
    }

    pub(super) fn mamba2(
        loader: &BlockLoader<'_>,
        net: &Mamba2,
        eps: f32,
    ) -> Result<(Self, InputNorm), MlxError> {
        let biases = [net.bias, net.conv_bias];
        Self::load(loader, &[Role::MixerInput], biases, || {
            let skip = loader.tensor(Role::Skip)?;
            GatedRecurrence::load(loader, Net::Mamba2 { net: *net, skip }, eps).map(Some)
        })
    }

    /// `biases`: whether the projections have one, and the convolution.
    fn load(
        loader: &BlockLoader<'_>,
        inputs: &[Role],
        biases: [bool; 2],
        gated: impl FnOnce() -> Result<Option<GatedRecurrence>, MlxError>,
    ) -> Result<(Self, InputNorm), MlxError> {
        let bias = |role| biases[0].then_some(role);
        let input_biases: Vec<Role> = bias(Role::MixerInputBias).into_iter().collect();
        let (input, norm) = loader.input(Op::PackedProduct, inputs, &input_biases)?;
        let output_bias = bias(Role::MixerOutputBias);
        let block = Self {
            input,
            conv: ConvWeights::load(loader, biases[1])?,
            gated: gated()?,
            output: loader.output(Op::OutputProduct, Role::MixerOutput, output_bias)?,
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
        self.recur(step.tails, step.ops, layer, &rows)
    }

    /// The block behind its input projection, whose `rows` are all that it reads.
    pub(super) fn recur(
        &self,
        tails: &mut TailWrites,
        ops: &Ops,
        layer: usize,
        rows: &Array,
    ) -> Result<Array, Exception> {
        let op = self.gated.as_ref();
        let op = op.map_or(Op::ShortConv, |gated| gated.recurrence.op());
        match (&ops.kernels, &self.gated) {
            (None, _) => profile::op(op, &[rows], || {
                update_each(tails, layer, rows, |rows, states| {
                    self.compose(rows, states)
                })
            }),
            (Some(stream), Some(gated)) => gated.run(&self.conv, tails, layer, rows, stream),
            (Some(stream), None) => tails.update_in_place(layer, rows, stream, |spans, states| {
                let [states] = span_states(spans, states);
                let rows = Columns::all(rows);
                self.conv.apply(rows, ConvKind::Gated, &states, stream)
            }),
        }
    }

    /// One span, composed of MLX's operations: its outputs and its next states.
    fn compose(&self, rows: &Array, states: &[Array]) -> Result<(Array, Arrays), Exception> {
        if let Some(gated) = &self.gated {
            return gated.compose(&self.conv, rows, states);
        }
        let width = rows.dim(1) as usize / 3;
        let third = |index| composed::columns(rows, index * width, (index + 1) * width);
        let input = third(0)?.multiply(third(2)?)?;
        let (mixed, next) = self.conv.compose(&input, &states[0])?;
        Ok((third(1)?.multiply(mixed)?, smallvec![next]))
    }

    pub(super) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        for matrix in [&self.input, &self.output] {
            all.add_matrix(matrix);
        }
        all.arrays.extend(self.conv.arrays());
        if let Some(gated) = &self.gated {
            all.arrays.extend(gated.recurrence.arrays());
            all.arrays.push(&gated.norm);
        }
    }
}

impl GatedRecurrence {
    fn load(loader: &BlockLoader<'_>, net: Net, eps: f32) -> Result<Self, MlxError> {
        Ok(Self {
            recurrence: Recurrence::load(loader, net)?,
            norm: loader.part(Role::InnerNorm)?,
            eps,
        })
    }

    /// By this crate's kernels.
    fn run(
        &self,
        conv: &ConvWeights,
        tails: &mut TailWrites,
        layer: usize,
        rows: &Array,
        stream: &Stream,
    ) -> Result<Array, Exception> {
        let layout = self.recurrence.layout();
        let from = |first| Columns { array: rows, first };
        let mixed = tails.update_in_place(layer, rows, stream, |spans, states| {
            let [conv_states, states] = span_states(spans, states);
            let input = from(layout.conv.start);
            let input = conv.apply(input, ConvKind::Silu, &conv_states, stream)?;
            profile::op_beside(
                self.recurrence.op(),
                &[&input],
                || state_cost(&states),
                || self.recurrence.run(&input, rows, &states, stream),
            )
        })?;
        let norm = NormOptions {
            epsilon: self.eps,
            order: self.recurrence.order(),
        };
        let gate = from(layout.gate.start);
        profile::op(Op::GatedNorm, &[&mixed], || {
            kernel_ops::gated_rms_norm(&mixed, gate, &self.norm, norm, stream)
        })
    }

    fn compose(
        &self,
        conv: &ConvWeights,
        rows: &Array,
        states: &[Array],
    ) -> Result<(Array, Arrays), Exception> {
        let layout = self.recurrence.layout();
        let input = composed::columns(rows, layout.conv.start, layout.conv.end)?;
        let (mixed, conv_state) = conv.compose(&input, &states[0])?;
        let input = composed::silu(&mixed)?;
        let (mixed, state) = self.recurrence.compose(&input, rows, &states[1])?;
        let gate = composed::columns(rows, layout.gate.start, layout.gate.end)?;
        let output = match self.recurrence.order() {
            GateOrder::NormFirst => gated_norm::norm_then_gate,
            GateOrder::GateFirst => gated_norm::gate_then_norm,
        };
        let output = output(&mixed, &gate, &self.norm, self.eps)?;
        Ok((output, smallvec![conv_state, state]))
    }
}
