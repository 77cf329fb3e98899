//! A mixture of experts (Shazeer et al. 2017), and the expert beside it that all tokens use.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use super::composed::experts as composed_experts;
use super::expert_stacks::{ExpertStacks, Stacks};
use super::gated_mlp::GatedMlp;
use crate::device::kernel_ops::experts::{
    self as kernel, ExpertOptions, ExpertWeights, StoredExperts,
};
use crate::device::ops::{Ops, kernel_activation};
use crate::device::profile::{self, Cost, Op};
use crate::error::MlxError;
use crate::weights::{BlockLoader, InputNorm, Matrix, WeightParts};
use motet_kernels::Arithmetic;
use motet_weights::{Experts, Role, Routing};

/// The experts of one layer.
#[derive(Clone, Debug)]
pub(crate) struct ExpertsBlock {
    experts: Experts,
    router: Matrix,
    stacks: Stacks,
    shared: Option<SharedMlp>,
}

/// The expert that every token uses.
#[derive(Clone, Debug)]
struct SharedMlp {
    mlp: GatedMlp,
    /// To the gate of its output, `[1, hidden]`.
    score: Option<Matrix>,
}

impl ExpertsBlock {
    pub(super) fn load(
        loader: &BlockLoader<'_>,
        experts: &Experts,
    ) -> Result<(Self, InputNorm), MlxError> {
        let router_bias: Vec<Role> = experts
            .router_bias
            .then_some(Role::RouterBias)
            .into_iter()
            .collect();
        let score = || loader.matrix(Op::RouterProduct, &[Role::SharedScore], &[]);
        let shared = match &experts.shared {
            None => None,
            Some(shared) => Some(SharedMlp {
                mlp: GatedMlp::load_shared(loader, &shared.mlp)?,
                score: shared.gated.then(score).transpose()?,
            }),
        };
        let block = Self {
            experts: *experts,
            router: loader.matrix(Op::RouterProduct, &[Role::Router], &router_bias)?,
            stacks: Stacks::load(loader, experts.expert.bias)?,
            shared,
        };
        Ok((block, loader.input_norm()?))
    }

    /// The mixture for every row of `[rows, hidden]`.
    pub(super) fn apply(&self, normed: &Array, ops: &Ops) -> Result<Array, Exception> {
        let logits = self.router.apply(normed, ops)?;
        let inputs = [normed, &logits];
        let weights = || self.cost(normed.dim(0) as usize);
        let mixed = profile::op_beside(Op::Experts, &inputs, weights, || {
            match (&self.stacks, &ops.kernels) {
                (_, Some(stream)) => self.run(normed, &logits, ops.arithmetic, stream),
                (Stacks::Arrays(stacks), None) => self.compose(stacks, normed, &logits, ops),
                (Stacks::Stored { .. }, None) => Err(Exception::custom(
                    "the experts are kept as stored, but there are no kernels",
                )),
            }
        })?;
        match &self.shared {
            Some(shared) => mixed.add(shared.apply(normed, ops)?),
            None => Ok(mixed),
        }
    }

    /// The cost of the experts that `rows` rows use, if no two of them choose the same one.
    fn cost(&self, rows: usize) -> Cost {
        let Experts { count, chosen, .. } = self.experts;
        let (bytes, numbers) = self.stacks.size();
        Cost {
            read_bytes: bytes / count * count.min(rows * chosen),
            flops: 2 * rows * chosen * (numbers / count),
        }
    }

    /// By this crate's kernel.
    fn run(
        &self,
        x: &Array,
        logits: &Array,
        arithmetic: Arithmetic,
        stream: &Stream,
    ) -> Result<Array, Exception> {
        let Experts {
            count,
            chosen,
            expert,
            routing,
            ..
        } = self.experts;
        let options = ExpertOptions {
            count,
            per_row: chosen,
            inner: expert.inner,
            routing: match routing {
                Routing::SoftmaxAll { normalised } => {
                    motet_kernels::experts::Routing::SoftmaxAll { normalised }
                }
                Routing::SoftmaxChosen => motet_kernels::experts::Routing::SoftmaxChosen,
            },
            activation: kernel_activation(expert.activation),
        };
        match &self.stacks {
            Stacks::Arrays(stacks) => {
                let weights = ExpertWeights {
                    gate: &stacks.gate,
                    up: &stacks.up,
                    down: &stacks.down,
                    biases: stacks.biases.as_ref().map(|biases| biases.each_ref()),
                };
                kernel::experts(options, x, logits, weights, stream)
            }
            Stacks::Stored {
                matrices,
                biases,
                output_scale,
            } => {
                let weights = StoredExperts {
                    matrices: matrices.clone(),
                    biases: biases.as_ref().map(|biases| biases.each_ref()),
                    output_scale: *output_scale,
                    arithmetic,
                };
                kernel::stored_experts(options, x, logits, weights, stream)
            }
        }
    }

    /// Composed of MLX's operations.
    fn compose(
        &self,
        stacks: &ExpertStacks,
        x: &Array,
        logits: &Array,
        ops: &Ops,
    ) -> Result<Array, Exception> {
        let shares = composed_experts::shares(&self.experts, logits)?;
        let activation = self.experts.expert.activation;
        composed_experts::mixture(x, &shares, stacks, |gate_up| ops.gated(gate_up, activation))
    }

    pub(super) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        all.add_matrix(&self.router);
        self.stacks.add_parts(all);
        if let Some(shared) = &self.shared {
            shared.mlp.add_parts(all);
            shared.score.iter().for_each(|score| all.add_matrix(score));
        }
    }
}

impl SharedMlp {
    fn apply(&self, normed: &Array, ops: &Ops) -> Result<Array, Exception> {
        let output = self.mlp.apply(normed, ops)?;
        match &self.score {
            Some(score) => {
                let gate = mlx_rs::ops::sigmoid(score.apply(normed, ops)?)?;
                output.multiply(gate)
            }
            None => Ok(output),
        }
    }
}
