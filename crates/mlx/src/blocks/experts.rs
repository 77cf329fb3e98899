//! A mixture of experts (Shazeer et al. 2017), and the expert beside it that all tokens use.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use super::composed::experts as composed_experts;
use super::gated_mlp::GatedMlp;
use crate::error::MlxError;
use crate::kernel_ops::experts::{self as kernel, ExpertOptions, ExpertWeights, StoredExperts};
use crate::ops::{Ops, kernel_activation};
use crate::profile::{self, Cost, Op};
use crate::stored_matrix::StoredMatrix;
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

/// The weights of all experts.
#[derive(Clone, Debug)]
enum Stacks {
    Arrays(ExpertStacks),
    /// As the files store them, for the kernel.
    Stored {
        /// Gate, up and down, those of all experts stacked.
        matrices: [StoredMatrix; 3],
        /// As in [`ExpertStacks`], without the factor of the output.
        biases: Option<[Array; 3]>,
        /// Factor of the output.
        output_scale: f32,
    },
}

/// The matrices and biases of all experts as arrays. Down contains the factor of the output.
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

impl Stacks {
    fn load(loader: &BlockLoader<'_>, with_biases: bool) -> Result<Self, MlxError> {
        let biases = |down: fn(&BlockLoader<'_>) -> Result<Array, MlxError>| {
            let [gate, up] = [Role::ExpertGateBias, Role::ExpertUpBias];
            let biases =
                || Ok::<_, MlxError>([loader.part(gate)?, loader.part(up)?, down(loader)?]);
            with_biases.then(biases).transpose()
        };
        let matrices = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
        let [gate, up, down] = matrices.map(|role| loader.stored(role));
        if let (Some(gate), Some(up), Some(down)) = (gate?, up?, down?) {
            return Ok(Self::Stored {
                matrices: [gate, up, down],
                biases: biases(|loader| loader.part(Role::ExpertDownBias))?,
                output_scale: loader.output_scale(),
            });
        }
        Ok(Self::Arrays(ExpertStacks {
            gate: loader.part(Role::ExpertGate)?,
            up: loader.part(Role::ExpertUp)?,
            down: loader.output_part(Role::ExpertDown)?,
            biases: biases(|loader| loader.output_part(Role::ExpertDownBias))?,
        }))
    }

    /// Bytes of everything, and numbers of the matrices.
    fn size(&self) -> (usize, usize) {
        let bytes_of = |biases: &Option<[Array; 3]>| -> usize {
            biases.iter().flatten().map(Array::nbytes).sum()
        };
        match self {
            Self::Arrays(stacks) => {
                let matrices = [&stacks.gate, &stacks.up, &stacks.down];
                let bytes: usize = matrices.iter().map(|matrix| matrix.nbytes()).sum();
                let numbers = matrices.iter().map(|matrix| matrix.size()).sum();
                (bytes + bytes_of(&stacks.biases), numbers)
            }
            Self::Stored {
                matrices, biases, ..
            } => {
                let bytes: usize = matrices.iter().map(StoredMatrix::bytes).sum();
                let numbers = matrices.iter().map(|one| one.rows() * one.columns());
                (bytes + bytes_of(biases), numbers.sum())
            }
        }
    }

    fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        let biases = match self {
            Self::Arrays(stacks) => {
                all.arrays.extend([&stacks.gate, &stacks.up, &stacks.down]);
                &stacks.biases
            }
            Self::Stored {
                matrices, biases, ..
            } => {
                all.stored.extend(matrices);
                biases
            }
        };
        all.arrays.extend(biases.iter().flatten());
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
