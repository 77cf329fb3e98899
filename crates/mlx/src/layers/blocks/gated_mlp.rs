//! The gated MLP (SwiGLU and its kin, Shazeer 2020).

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::device::kernel_ops::layer_end::Projection;
use crate::device::ops::Ops;
use crate::device::profile::Op;
use crate::error::MlxError;
use crate::weights::{BlockLoader, InputNorm, Matrix, WeightParts};
use motet_weights::{Activation, Gated, Role};

/// `down(activation(gate(x)) * up(x))`.
#[derive(Clone, Debug)]
pub(crate) struct GatedMlp {
    /// To `[gate | up]`.
    gate_up: Matrix,
    down: Matrix,
    activation: Activation,
}

impl GatedMlp {
    pub(super) fn load(
        loader: &BlockLoader<'_>,
        gated: &Gated,
    ) -> Result<(Self, InputNorm), MlxError> {
        let biases: &[Role] = if gated.bias {
            &[Role::GateBias, Role::UpBias]
        } else {
            &[]
        };
        let inputs = [Role::Gate, Role::Up];
        let (gate_up, norm) = loader.input(Op::GateUpProduct, &inputs, biases)?;
        let down_bias = gated.bias.then_some(Role::DownBias);
        let mlp = Self {
            gate_up,
            down: loader.output(Op::DownProduct, Role::Down, down_bias)?,
            activation: gated.activation,
        };
        Ok((mlp, norm))
    }

    /// The MLP that every token uses beside chosen experts. Its input is normalised already.
    pub(super) fn load_shared(loader: &BlockLoader<'_>, gated: &Gated) -> Result<Self, MlxError> {
        Ok(Self {
            gate_up: loader.matrix(Op::GateUpProduct, &[Role::SharedGate, Role::SharedUp], &[])?,
            down: loader.output(Op::DownProduct, Role::SharedDown, None)?,
            activation: gated.activation,
        })
    }

    /// The MLP of every row of `[rows, hidden]`.
    pub(super) fn apply(&self, normed: &Array, ops: &Ops) -> Result<Array, Exception> {
        let gated = ops.gated(&self.gate_up.apply(normed, ops)?, self.activation)?;
        self.down.apply(&gated, ops)
    }

    /// The MLP's two products. None if a matrix is not kept as stored.
    pub(super) fn projections(&self) -> Option<[Projection<'_>; 2]> {
        Some([self.gate_up.projection()?, self.down.projection()?])
    }

    pub(super) fn activation(&self) -> Activation {
        self.activation
    }

    pub(super) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        for matrix in [&self.gate_up, &self.down] {
            all.add_matrix(matrix);
        }
    }
}
