//! Mistral: Llama with a window on all layers. GGUF files call it `llama`.

use super::super::settings::FieldDefault;
use super::llama::{attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    classes: &["MistralForCausalLM", "Mistral3ForConditionalGeneration"],
    model_types: &["mistral"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        let window = settings.window()?;
        attentions(&mut blueprint).for_each(|attention| attention.window = window);
        Ok(blueprint)
    },
    defaults: &[
        ("num_key_value_heads", FieldDefault::Count(8)),
        ("sliding_window", FieldDefault::Count(4096)),
    ],
    ..PLAIN
};
