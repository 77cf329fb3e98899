//! Granite 3: Llama with factors of the embedding, the scores, both blocks and the logits.

use super::super::ModelError;
use super::super::blueprint::Blueprint;
use super::super::fields::Fields;
use super::super::settings::Settings;
use super::llama::{INTERLEAVED, attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "granite",
    classes: &["GraniteForCausalLM"],
    model_types: &["granite"],
    gguf: &["granite"],
    read: |settings| granite(settings),
    names: INTERLEAVED,
    ..PLAIN
};

/// The common part of Granite 3 and 4.
pub(super) fn granite(settings: &Settings<'_>) -> Result<Blueprint, ModelError> {
    let factor =
        |name: &str| -> Result<f32, ModelError> { Ok(settings.positive(name)?.unwrap_or(1.0)) };
    let mut blueprint = llama(settings)?;
    blueprint.stem.embedding_scale = factor("embedding_multiplier")?;
    blueprint.stem.logit_scale = factor("logits_scaling")?.recip();
    let residual_scale = factor("residual_multiplier")?;
    for layer in &mut blueprint.layers {
        layer.residual_scale = residual_scale;
    }
    let scale = match settings.positive("attention_multiplier")? {
        // llama.cpp takes the usual scale where the file has none, Transformers takes 1.
        None if settings.is_gguf() => None,
        found => Some(found.unwrap_or(1.0)),
    };
    // GGUF files say by this field that positions are not encoded.
    let has_rope = !settings.is_gguf() || settings.flag("rope.scaling.finetuned")? != Some(false);
    for attention in attentions(&mut blueprint) {
        attention.scale = scale.unwrap_or(attention.scale);
        attention.rope = attention.rope.take().filter(|_| has_rope);
    }
    Ok(blueprint)
}
