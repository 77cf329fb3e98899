//! The blocks that layers are made of: their weights, and their part of a forward pass.

mod attention;
mod composed;
mod delta_net;
mod experts;
mod gated_mlp;
mod limits;
mod mamba2;
mod recurrent;
mod short_conv;

use mlx_rs::Array;
use mlx_rs::error::Exception;

use self::attention::AttentionBlock;
use self::delta_net::DeltaNetBlock;
use self::experts::ExpertsBlock;
use self::gated_mlp::GatedMlp;
pub(super) use self::limits::unsupported;
use self::mamba2::Mamba2Block;
use self::short_conv::ShortConvBlock;
use super::attention::{Attentions, Plans};
use super::batch::Batch;
use super::groups::Arrays;
use super::ops::{Ops, concatenate};
use super::tail::TailWrites;
use super::weights::{BlockLoader, InputNorm, Matrix, WeightParts};
use crate::error::MlxError;
use crate::kernel_ops::layer_end::Projection;
use motet_weights::{Activation, Blueprint, Mixer, Mlp};

/// The block of a layer that sees other tokens.
#[derive(Clone, Debug)]
pub(crate) enum MixerBlock {
    Attention(AttentionBlock),
    ShortConv(ShortConvBlock),
    DeltaNet(DeltaNetBlock),
    Mamba2(Mamba2Block),
}

/// The block of a layer that sees each token alone.
#[derive(Clone, Debug)]
pub(crate) enum MlpBlock {
    Gated(GatedMlp),
    Experts(Box<ExpertsBlock>),
}

/// The parts of a step that its mixers share.
pub(crate) struct MixerStep<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) attentions: &'a Attentions,
    pub(crate) plans: &'a Plans<'a>,
    pub(crate) ops: &'a Ops,
    pub(crate) tails: &'a mut TailWrites,
}

impl MixerStep<'_> {
    /// Updates the layer's recurrent state, one span after another. `of_span` returns the span's
    /// outputs and next states, given its part of `rows` and its states.
    fn update_each(
        &mut self,
        layer: usize,
        rows: &Array,
        mut of_span: impl FnMut(&Array, &[Array]) -> Result<(Array, Arrays), Exception>,
    ) -> Result<Array, Exception> {
        let spans = &self.batch.spans;
        self.tails.update(layer, |states| {
            let (mut outputs, mut next) = (Vec::new(), Vec::new());
            for (span, states) in spans.iter().zip(states) {
                let rows = composed::rows(rows, span.rows.start, span.rows.end)?;
                let (output, states) = of_span(&rows, states)?;
                outputs.push(output);
                next.push(states);
            }
            Ok((concatenate(outputs, 0)?, next))
        })
    }
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
        Ok(match mixer {
            Mixer::Attention(attention) => {
                let (block, norm) = AttentionBlock::load(loader, attention)?;
                (Self::Attention(block), norm)
            }
            Mixer::ShortConv(conv) => {
                let (block, norm) = ShortConvBlock::load(loader, conv)?;
                (Self::ShortConv(block), norm)
            }
            Mixer::DeltaNet(net) => {
                let (block, norm) = DeltaNetBlock::load(loader, net, eps)?;
                (Self::DeltaNet(block), norm)
            }
            Mixer::Mamba2(net) => {
                let (block, norm) = Mamba2Block::load(loader, net, eps)?;
                (Self::Mamba2(block), norm)
            }
        })
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
            Self::ShortConv(block) => block.mix(step, layer, normed),
            Self::DeltaNet(block) => block.mix(step, layer, normed),
            Self::Mamba2(block) => block.mix(step, layer, normed),
        }
    }

    /// The matrix from mixed rows to the residual stream.
    pub(crate) fn output(&self) -> &Matrix {
        match self {
            Self::Attention(block) => &block.output,
            Self::ShortConv(block) => &block.output,
            Self::DeltaNet(block) => &block.output,
            Self::Mamba2(block) => &block.output,
        }
    }

    /// Adds all its parts except views of others.
    pub(crate) fn add_parts<'a>(&'a self, all: &mut WeightParts<'a>) {
        match self {
            Self::Attention(block) => block.add_parts(all),
            Self::ShortConv(block) => block.add_parts(all),
            Self::DeltaNet(block) => block.add_parts(all),
            Self::Mamba2(block) => block.add_parts(all),
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
