//! The weights of a layer's experts.

use mlx_rs::Array;

use crate::device::stored_matrix::StoredMatrix;
use crate::error::MlxError;
use crate::weights::{BlockLoader, WeightParts};
use motet_weights::Role;

/// The weights of all experts.
#[derive(Clone, Debug)]
pub(super) enum Stacks {
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

impl Stacks {
    pub(super) fn load(loader: &BlockLoader<'_>, with_biases: bool) -> Result<Self, MlxError> {
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
    pub(super) fn size(&self) -> (usize, usize) {
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

    pub(super) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
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
