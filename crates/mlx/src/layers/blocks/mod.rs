//! The blocks that layers are made of: their weights, and their part of a forward pass.
//!
//! | file | content |
//! |---|---|
//! | `limits.rs` | the sizes that this crate's kernels support |
//! | `composed/` | recurrences and experts, composed of MLX's operations |
//! | `step.rs` | the parts of a step that its blocks share |
//! | `attention.rs` | attention with its projections |
//! | `conv_weights.rs`, `recurrence.rs`, `recurrent.rs` | recurrent blocks: their convolutions, their recurrences, and their frame |
//! | `gated_mlp.rs` | MLPs |
//! | `expert_stacks.rs`, `experts.rs` | the weights of experts; their mixture |

mod attention;
mod composed;
mod conv_weights;
mod expert_stacks;
mod experts;
mod gated_mlp;
mod limits;
mod recurrence;
mod recurrent;
mod step;

use mlx_rs::Array;
use mlx_rs::error::Exception;

use self::attention::AttentionBlock;
use self::experts::ExpertsBlock;
use self::gated_mlp::GatedMlp;
pub(crate) use self::limits::unsupported;
use self::recurrent::RecurrentBlock;
pub(crate) use self::step::MixerStep;
use crate::device::kernel_ops::layer_end::Projection;
use crate::device::ops::Ops;
use crate::error::MlxError;
use crate::state::tail::TailWrites;
use crate::weights::{BlockLoader, InputNorm, Matrix, WeightParts};
use motet_weights::{Activation, Blueprint, Mixer, Mlp};

/// The block of a layer that sees other tokens.
#[derive(Clone, Debug)]
pub(crate) enum MixerBlock {
    Attention(AttentionBlock),
    Recurrent(Box<RecurrentBlock>),
}

/// The block of a layer that sees each token alone.
#[derive(Clone, Debug)]
pub(crate) enum MlpBlock {
    Gated(GatedMlp),
    Experts(Box<ExpertsBlock>),
}

impl MixerBlock {
    /// Loads the block. Returns the norm that must still be applied to its
    /// input.
    pub(crate) fn load(
        loader: &BlockLoader<'_>,
        blueprint: &Blueprint,
        mixer: &Mixer,
    ) -> Result<(Self, InputNorm), MlxError> {
        let eps = blueprint.stem.norm_eps;
        let (block, norm) = match mixer {
            Mixer::Attention(attention) => {
                let (block, norm) = AttentionBlock::load(loader, attention)?;
                return Ok((Self::Attention(block), norm));
            }
            Mixer::ShortConv(conv) => RecurrentBlock::short_conv(loader, conv)?,
            Mixer::DeltaNet(net) => RecurrentBlock::delta_net(loader, net, eps)?,
            Mixer::Mamba2(net) => RecurrentBlock::mamba2(loader, net, eps)?,
        };
        Ok((Self::Recurrent(Box::new(block)), norm))
    }

    /// Mixes past and present tokens: the input of the block's [output](Self::output) matrix, for
    /// every row. Writes the layer's new state to the tails. Must be called for the layers in
    /// order.
    pub(crate) fn mix(
        &self,
        step: &mut MixerStep<'_>,
        layer: usize,
        normed: &Array,
    ) -> Result<Array, Exception> {
        match self {
            Self::Attention(block) => block.mix(step, layer, normed),
            Self::Recurrent(block) => block.mix(step, layer, normed),
        }
    }

    /// Changes the recurrent state of the layer by `rows`, which its block's input projection has
    /// given before. Must be called for the recurrent layers in order.
    pub(crate) fn replay(
        &self,
        layer: usize,
        rows: &Array,
        ops: &Ops,
        tails: &mut TailWrites,
    ) -> Result<(), Exception> {
        match self {
            Self::Attention(_) => unreachable!("attention has no recurrent state"),
            // Nothing computes the part of it that the state does not need.
            Self::Recurrent(block) => block.recur(tails, ops, layer, rows).map(drop),
        }
    }

    /// The matrix from mixed rows to the residual stream.
    pub(crate) fn output(&self) -> &Matrix {
        match self {
            Self::Attention(block) => &block.output,
            Self::Recurrent(block) => &block.output,
        }
    }

    /// Adds all its parts except views of others.
    pub(crate) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        match self {
            Self::Attention(block) => block.add_parts(all),
            Self::Recurrent(block) => block.add_parts(all),
        }
    }
}

impl MlpBlock {
    /// Loads the block. Returns the norm that must still be applied to its
    /// input.
    pub(crate) fn load(loader: &BlockLoader<'_>, mlp: &Mlp) -> Result<(Self, InputNorm), MlxError> {
        Ok(match mlp {
            Mlp::Gated(gated) => {
                let (block, norm) = GatedMlp::load(loader, gated)?;
                (Self::Gated(block), norm)
            }
            Mlp::Experts(experts) => {
                let (block, norm) = ExpertsBlock::load(loader, experts)?;
                (Self::Experts(Box::new(block)), norm)
            }
        })
    }

    /// The products of a gated MLP, to both halves and behind them, and the activation between
    /// them. None if the block is another, or a matrix is not kept as stored.
    pub(crate) fn gated(&self) -> Option<([Projection<'_>; 2], Activation)> {
        match self {
            Self::Gated(block) => Some((block.projections()?, block.activation())),
            Self::Experts(_) => None,
        }
    }

    /// The block's output for every row, `[rows, hidden]`.
    pub(crate) fn apply(&self, normed: &Array, ops: &Ops) -> Result<Array, Exception> {
        match self {
            Self::Gated(block) => block.apply(normed, ops),
            Self::Experts(block) => block.apply(normed, ops),
        }
    }

    /// Adds all its parts except views of others.
    pub(crate) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        match self {
            Self::Gated(block) => block.add_parts(all),
            Self::Experts(block) => block.add_parts(all),
        }
    }
}
