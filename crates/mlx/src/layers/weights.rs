//! The weights of all layers.

use mlx_rs::{Array, Dtype};

use super::blocks::{MixerBlock, MlpBlock};
use crate::device::profile::Op;
use crate::device::stored_matrix::StoredMatrix;
use crate::error::MlxError;
use crate::weights::{InputNorm, Loader, Matrix, MatrixForm, WeightParts};
use motet_weights::{Blueprint, Layer, ModelFiles, Role};

/// Everything that a forward pass multiplies with.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<LayerWeights>,
    /// The norm before the output head. Not folded in, because the head may be the embedding. Its
    /// weight contains the factor of the logits.
    pub(crate) norm: InputNorm,
    /// None when the head is the embedding.
    head: Option<Matrix>,
}

/// One layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerWeights {
    pub(crate) norms: NormWeights,
    pub(crate) mixer: MixerBlock,
    pub(crate) mlp: MlpBlock,
}

/// The weights of a layer's norms.
#[derive(Clone, Debug)]
pub(crate) struct NormWeights {
    pub(crate) before_mixer: InputNorm,
    pub(crate) after_mixer: Option<Array>,
    pub(crate) before_mlp: InputNorm,
    pub(crate) after_mlp: Option<Array>,
}

impl Weights {
    /// Loads, folds and evaluates all weights, in `dtype`, on the current stream.
    ///
    /// # Errors
    ///
    /// The errors of [`ModelFiles::tensor`], and [`ModelError::Device`](motet_protocol::ModelError::Device).
    pub(crate) fn load(
        files: &ModelFiles,
        dtype: Dtype,
        form: MatrixForm,
    ) -> Result<Self, MlxError> {
        let loader = Loader::new(files, dtype, form);
        let blueprint = files.blueprint();
        let table = |role| loader.table(Op::HeadProduct, role);
        let has_head = !blueprint.stem.tied_embeddings;
        let head = has_head.then(|| table(Role::Head)).transpose()?;
        let layers = blueprint.layers.iter().enumerate();
        Ok(Self {
            embedding: table(Role::Embedding)?,
            layers: layers
                .map(|(index, layer)| LayerWeights::load(&loader, blueprint, index, layer))
                .collect::<Result<_, _>>()?,
            norm: InputNorm::Weight(loader.scaled(
                None,
                Role::FinalNorm,
                blueprint.stem.logit_scale,
            )?),
            head,
        })
    }

    /// All parts except views of others.
    pub(crate) fn parts(&self) -> WeightParts<'_> {
        let mut all = WeightParts::default();
        for matrix in [&self.embedding].into_iter().chain(&self.head) {
            all.add_matrix(matrix);
        }
        for layer in &self.layers {
            all.arrays.extend(layer.norms.arrays());
            layer.mixer.add_parts(&mut all);
            layer.mlp.add_parts(&mut all);
        }
        all.arrays.extend(self.norm.weight());
        all
    }

    /// Bytes of matrices that are mapped from their files.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let stored = self.parts().stored.into_iter();
        stored.map(StoredMatrix::mapped_bytes).sum()
    }

    /// The matrix that turns a row into logits.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

impl LayerWeights {
    fn load(
        loader: &Loader<'_>,
        blueprint: &Blueprint,
        index: usize,
        layer: &Layer,
    ) -> Result<Self, MlxError> {
        let norms = &layer.norms;
        let post_norm = |present: bool, role| {
            let vector = || loader.scaled(Some(index), role, layer.residual_scale);
            present.then(vector).transpose()
        };
        let (after_mixer, after_mlp) = (
            post_norm(norms.after_mixer, Role::MixerPostNorm)?,
            post_norm(norms.after_mlp, Role::MlpPostNorm)?,
        );
        // A norm of the output would undo a factor of it.
        let scale_of = |post_norm: &Option<Array>| match post_norm {
            Some(_) => 1.0,
            None => layer.residual_scale,
        };
        let mixer_norm = norms.before_mixer.then_some(Role::MixerNorm);
        let mixer_loader = loader.layer(index, mixer_norm, scale_of(&after_mixer));
        let (mixer, before_mixer) = MixerBlock::load(&mixer_loader, blueprint, &layer.mixer)?;
        let mlp_norm = norms.before_mlp.then_some(Role::MlpNorm);
        let mlp_loader = loader.layer(index, mlp_norm, scale_of(&after_mlp));
        let (mlp, before_mlp) = MlpBlock::load(&mlp_loader, &layer.mlp)?;
        Ok(Self {
            norms: NormWeights {
                before_mixer,
                after_mixer,
                before_mlp,
                after_mlp,
            },
            mixer,
            mlp,
        })
    }
}

impl NormWeights {
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let inputs = [&self.before_mixer, &self.before_mlp].into_iter();
        let inputs = inputs.filter_map(|norm| norm.weight());
        inputs.chain(&self.after_mixer).chain(&self.after_mlp)
    }
}
