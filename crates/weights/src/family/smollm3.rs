//! SmolLM3: Llama without rotary embeddings in every fourth layer.

use super::super::fields::Fields;
use super::super::limits::LAYERS_MAX;
use super::super::settings::FieldDefault;
use super::llama::{INTERLEAVED, attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "smollm3",
    classes: &["SmolLM3ForCausalLM"],
    model_types: &["smollm3"],
    gguf: &["smollm3"],
    read: |settings| {
        settings.require_flag("use_sliding_window", false)?;
        let mut blueprint = llama(settings)?;
        // Despite its name, the list has a 1 for each layer with rotary embeddings.
        let listed = settings.counts("no_rope_layers", blueprint.layers.len())?;
        let interval = settings.count_required("no_rope_layer_interval", LAYERS_MAX)?;
        for (index, attention) in attentions(&mut blueprint).enumerate() {
            let turns = match &listed {
                Some(listed) => listed[index] != 0,
                None => !(index + 1).is_multiple_of(interval),
            };
            attention.rope = attention.rope.take().filter(|_| turns);
        }
        Ok(blueprint)
    },
    names: INTERLEAVED,
    defaults: &[
        ("no_rope_layer_interval", FieldDefault::Count(4)),
        ("num_key_value_heads", FieldDefault::Count(4)),
        ("rope_theta", FieldDefault::Number(2_000_000.0)),
        ("tie_word_embeddings", FieldDefault::Flag(true)),
    ],
    ..PLAIN
};
