//! A mixture of experts (Shazeer et al. 2017), and the expert beside it that all tokens use.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use super::composed::experts as composed_experts;
use super::gated_mlp::GatedMlp;
use crate::error::MlxError;
use crate::kernel_ops::experts::{self as kernel, ExpertOptions, ExpertWeights};
use crate::ops::{Ops, kernel_activation};
use crate::profile::{self, Cost, Op};
use crate::weights::{BlockLoader, InputNorm, Matrix};
use motet_weights::{Experts, Role, Routing};

/// The experts of one layer.
#[derive(Clone, Debug)]
pub(crate) struct ExpertsBlock {
    experts: Experts,
    router: Matrix,
    stacks: ExpertStacks,
    shared: Option<SharedMlp>,
}

/// The matrices and biases of all experts.
#[derive(Clone, Debug)]
pub(super) struct ExpertStacks {
    /// `[experts, inner, hidden]`.
    pub(super) gate: Array,
    /// `[experts, inner, hidden]`.
    pub(super) up: Array,
    /// `[experts, hidden, inner]`.
    pub(super) down: Array,
    /// The biases of gate, up and down: `[experts, inner]`, `[experts, inner]`, `[experts, hidden]`.
    pub(super) biases: Option<[Array; 3]>,
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
        let biases = || -> Result<_, MlxError> {
            Ok([
                loader.part(Role::ExpertGateBias)?,
                loader.part(Role::ExpertUpBias)?,
                loader.output_part(Role::ExpertDownBias)?,
            ])
        };
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
            stacks: ExpertStacks {
                gate: loader.part(Role::ExpertGate)?,
                up: loader.part(Role::ExpertUp)?,
                down: loader.output_part(Role::ExpertDown)?,
                biases: experts.expert.bias.then(biases).transpose()?,
            },
            shared,
        };
        Ok((block, loader.input_norm()?))
    }

    /// The mixture for every row of `[rows, hidden]`.
    pub(super) fn apply(&self, normed: &Array, ops: &Ops) -> Result<Array, Exception> {
        let logits = self.router.apply(normed, ops)?;
        let inputs = [normed, &logits];
        let weights = || self.cost(normed.dim(0) as usize);
        let mixed = profile::op_beside(Op::Experts, &inputs, weights, || match &ops.kernels {
            Some(stream) => self.run(normed, &logits, stream),
            None => self.compose(normed, &logits, ops),
        })?;
        match &self.shared {
            Some(shared) => mixed.add(shared.apply(normed, ops)?),
            None => Ok(mixed),
        }
    }

    /// The cost of the experts that `rows` rows use, if no two of them choose the same one.
    fn cost(&self, rows: usize) -> Cost {
        let Experts { count, chosen, .. } = self.experts;
        let bytes: usize = self.stacks.arrays().map(Array::nbytes).sum();
        let numbers = self.stacks.gate.size() + self.stacks.up.size() + self.stacks.down.size();
        Cost {
            read_bytes: bytes / count * count.min(rows * chosen),
            flops: 2 * rows * chosen * (numbers / count),
        }
    }

    /// By this crate's kernel.
    fn run(&self, x: &Array, logits: &Array, stream: &Stream) -> Result<Array, Exception> {
        let ExpertStacks {
            gate,
            up,
            down,
            biases,
        } = &self.stacks;
        let weights = ExpertWeights {
            gate,
            up,
            down,
            biases: biases.as_ref().map(|biases| biases.each_ref()),
        };
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
        kernel::experts(options, x, logits, weights, stream)
    }

    /// Composed of MLX's operations.
    fn compose(&self, x: &Array, logits: &Array, ops: &Ops) -> Result<Array, Exception> {
        let shares = composed_experts::shares(&self.experts, logits)?;
        let activation = self.experts.expert.activation;
        composed_experts::mixture(x, &shares, &self.stacks, |gate_up| {
            ops.gated(gate_up, activation)
        })
    }

    pub(super) fn add_arrays<'a>(&'a self, all: &mut Vec<&'a Array>) {
        all.extend(self.router.own_arrays());
        all.extend(self.stacks.arrays());
        if let Some(shared) = &self.shared {
            shared.mlp.add_arrays(all);
            all.extend(shared.score.iter().flat_map(Matrix::own_arrays));
        }
    }
}

impl ExpertStacks {
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let biases = self.biases.iter().flatten();
        [&self.gate, &self.up, &self.down].into_iter().chain(biases)
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
