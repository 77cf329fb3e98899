//! The recurrences that stand behind a short convolution, with a norm and a gate behind them.

use std::ops::Range;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use super::composed;
use crate::device::kernel_ops::Columns;
use crate::device::kernel_ops::recurrent::{self, SpanBuffer};
use crate::device::profile::Op;
use crate::error::MlxError;
use crate::weights::BlockLoader;
use motet_kernels::gated_norm::GateOrder;
use motet_weights::{DeltaNet, Mamba2, Role};

/// A recurrence with its weights.
#[derive(Clone, Debug)]
pub(super) struct Recurrence {
    net: Net,
    /// `[heads]`, below 0.
    decay_rates: Array,
    /// `[heads]`.
    time_step_bias: Array,
}

#[derive(Clone, Debug)]
pub(super) enum Net {
    /// The gated delta net (Yang, Kautz and Hatamizadeh 2024), as in Qwen3-Next and Qwen3.5, on
    /// columns `[queries | keys | values | gate | beta | decay]`.
    DeltaNet(DeltaNet),
    /// Mamba 2 (Dao and Gu 2024), as in Granite 4, on columns
    /// `[gate | heads | B | C | time steps]`. `skip` is `[heads]`.
    Mamba2 { net: Mamba2, skip: Array },
}

/// The columns of a block's input projection.
pub(super) struct Layout {
    /// The input of the convolution.
    pub(super) conv: Range<usize>,
    pub(super) gate: Range<usize>,
    /// The first of the columns that each head has one of.
    per_head: usize,
}

impl Recurrence {
    pub(super) fn load(loader: &BlockLoader<'_>, net: Net) -> Result<Self, MlxError> {
        Ok(Self {
            net,
            decay_rates: loader.tensor(Role::DecayRate)?,
            time_step_bias: loader.tensor(Role::TimeStepBias)?,
        })
    }

    pub(super) fn op(&self) -> Op {
        match self.net {
            Net::DeltaNet(_) => Op::DeltaNet,
            Net::Mamba2 { .. } => Op::Mamba2,
        }
    }

    /// Whether the norm or the gate comes first.
    pub(super) fn order(&self) -> GateOrder {
        match self.net {
            Net::DeltaNet(_) => GateOrder::NormFirst,
            Net::Mamba2 { .. } => GateOrder::GateFirst,
        }
    }

    pub(super) fn layout(&self) -> Layout {
        match &self.net {
            Net::DeltaNet(net) => {
                let gate = net.channels();
                let per_head = gate + net.value_heads * net.value_dim;
                Layout {
                    conv: 0..gate,
                    gate: gate..per_head,
                    per_head,
                }
            }
            Net::Mamba2 { net, .. } => {
                let (inner, channels) = (net.inner(), net.channels());
                Layout {
                    conv: inner..inner + channels,
                    gate: 0..inner,
                    per_head: inner + channels,
                }
            }
        }
    }

    /// The recurrence by this crate's kernel, in place on the states of all spans. `input` is the
    /// convolution's output, and `rows` are those of the input projection.
    pub(super) fn run(
        &self,
        input: &Array,
        rows: &Array,
        states: &[SpanBuffer<'_>],
        stream: &Stream,
    ) -> Result<Array, Exception> {
        let from = |first| Columns { array: rows, first };
        let (input, per_head) = (Columns::all(input), self.layout().per_head);
        let (decay_rates, time_step_bias) = (&self.decay_rates, &self.time_step_bias);
        match &self.net {
            Net::DeltaNet(net) => {
                let inputs = recurrent::DeltaInputs {
                    qkv: input,
                    beta: from(per_head),
                    decay: from(per_head + net.value_heads),
                    decay_rates,
                    time_step_bias,
                };
                let sizes = recurrent::DeltaSizes {
                    key_heads: net.key_heads,
                    value_heads: net.value_heads,
                    key_dim: net.key_dim,
                    value_dim: net.value_dim,
                };
                recurrent::delta_net(sizes, inputs, states, stream)
            }
            Net::Mamba2 { net, skip } => {
                let inputs = recurrent::MambaInputs {
                    input,
                    time_steps: from(per_head),
                    decay_rates,
                    skip,
                    time_step_bias,
                };
                let sizes = recurrent::MambaSizes {
                    heads: net.heads,
                    head_dim: net.head_dim,
                    groups: net.groups,
                    state_size: net.state_size,
                    time_step_limits: net.time_step,
                };
                recurrent::mamba2(sizes, inputs, states, stream)
            }
        }
    }

    /// The recurrence of one span, composed of MLX's operations: its outputs and its next state.
    pub(super) fn compose(
        &self,
        input: &Array,
        rows: &Array,
        state: &Array,
    ) -> Result<(Array, Array), Exception> {
        let per_head = self.layout().per_head;
        let columns = |first, heads| composed::columns(rows, first, first + heads);
        match &self.net {
            Net::DeltaNet(net) => {
                let heads = net.value_heads;
                let inputs = composed::delta_net::Inputs {
                    qkv: input,
                    beta: &columns(per_head, heads)?,
                    decay: &columns(per_head + heads, heads)?,
                    decay_rate: &self.decay_rates,
                    time_step_bias: &self.time_step_bias,
                };
                composed::delta_net::delta_net(net, &inputs, state)
            }
            Net::Mamba2 { net, skip } => {
                let inputs = composed::mamba2::Inputs {
                    xbc: input,
                    time_steps: &columns(per_head, net.heads)?,
                    time_step_bias: &self.time_step_bias,
                    decay_rate: &self.decay_rates,
                    skip,
                };
                composed::mamba2::mamba2(net, &inputs, state)
            }
        }
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let skip = match &self.net {
            Net::DeltaNet(_) => None,
            Net::Mamba2 { skip, .. } => Some(skip),
        };
        let own = [&self.decay_rates, &self.time_step_bias];
        own.into_iter().chain(skip)
    }
}
