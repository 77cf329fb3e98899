//! Softmax attention over cached keys and values, with its projections.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::step::MixerStep;
use crate::device::profile::Op;
use crate::error::MlxError;
use crate::layers::attention::{LayerRows, LayerVectors};
use crate::weights::{BlockLoader, InputNorm, Matrix, WeightParts};
use motet_weights::{Attention, Biases, QkNorm, Role};

/// Attention of one layer.
#[derive(Clone, Debug)]
pub(crate) struct AttentionBlock {
    /// To `[queries | keys | values]`, and to the output's gate if there is one.
    packed: Matrix,
    pub(super) output: Matrix,
    vectors: LayerVectors,
    /// The first column of the output's gate.
    gate_column: Option<usize>,
}

impl AttentionBlock {
    pub(super) fn load(
        loader: &BlockLoader<'_>,
        attention: &Attention,
    ) -> Result<(Self, InputNorm), MlxError> {
        let mut inputs = vec![Role::Query, Role::Key, Role::Value];
        if attention.output_gate {
            inputs.push(Role::OutputGate);
        }
        let biases: &[Role] = match attention.biases {
            Biases::None => &[],
            Biases::QueryKeyValue | Biases::All => {
                &[Role::QueryBias, Role::KeyBias, Role::ValueBias]
            }
        };
        let (packed, norm) = loader.input(Op::PackedProduct, &inputs, biases)?;
        let output_bias = (attention.biases == Biases::All).then_some(Role::MixerOutputBias);
        let has_norms = attention.qk_norm != QkNorm::None;
        let heads = attention.heads + 2 * attention.kv_heads;
        let block = Self {
            packed,
            output: loader.output(Op::OutputProduct, Role::MixerOutput, output_bias)?,
            vectors: LayerVectors {
                query_norm: has_norms
                    .then(|| loader.part(Role::QueryNorm))
                    .transpose()?,
                key_norm: has_norms.then(|| loader.part(Role::KeyNorm)).transpose()?,
                sinks: attention
                    .sinks
                    .then(|| loader.tensor(Role::Sinks))
                    .transpose()?,
            },
            gate_column: attention.output_gate.then_some(heads * attention.head_dim),
        };
        Ok((block, norm))
    }

    pub(super) fn mix(
        &self,
        step: &mut MixerStep<'_>,
        layer: usize,
        normed: &Array,
    ) -> Result<Array, Exception> {
        let packed = self.packed.apply(normed, step.ops)?;
        let rows = LayerRows {
            packed: &packed,
            vectors: &self.vectors,
        };
        let attended = step
            .attentions
            .attend(step.batch, step.plans, layer, rows, step.tails)?;
        match self.gate_column {
            Some(column) => step.ops.sigmoid_mul(&attended, &packed, column),
            None => Ok(attended),
        }
    }

    pub(super) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        for matrix in [&self.packed, &self.output] {
            all.add_matrix(matrix);
        }
        all.arrays.extend(self.vectors.arrays());
    }
}
