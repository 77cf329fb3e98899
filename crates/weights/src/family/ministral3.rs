//! Ministral 3: Mistral with YaRN, and queries that grow with their position.

use super::super::blueprint::PositionScale;
use super::super::settings::FieldDefault;
use super::llama::{INTERLEAVED, attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "ministral3",
    classes: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
    model_types: &["ministral3"],
    gguf: &["mistral3"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        let window = settings.window()?;
        let original_tokens = settings.original_context_tokens()?;
        let beta = settings.position_beta()?;
        let position_scale = beta.map(|beta| PositionScale {
            beta,
            original_tokens,
        });
        for attention in attentions(&mut blueprint) {
            attention.window = window;
            attention.position_scale = position_scale;
        }
        Ok(blueprint)
    },
    names: INTERLEAVED,
    defaults: &[
        ("head_dim", FieldDefault::Count(128)),
        ("num_key_value_heads", FieldDefault::Count(8)),
        ("rms_norm_eps", FieldDefault::Number(1e-5)),
        ("rope_theta", FieldDefault::Number(1_000_000.0)),
    ],
    ..PLAIN
};
