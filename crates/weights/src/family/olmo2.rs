//! OLMo 2: Llama with norms behind its blocks, and of whole rows of queries and keys.

use super::super::blueprint::{Norms, QkNorm};
use super::super::fields::Fields;
use super::super::settings::FieldDefault;
use super::llama::{attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "olmo2",
    classes: &["Olmo2ForCausalLM"],
    model_types: &["olmo2"],
    gguf: &["olmo2"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        if let Some(window) = settings.window()? {
            let expected = "no window, which only OLMo 3 has";
            return Err(settings.wrong("sliding_window", format!("found {window}"), expected));
        }
        blueprint
            .layers
            .iter_mut()
            .for_each(|layer| layer.norms = Norms::AFTER);
        attentions(&mut blueprint).for_each(|attention| attention.qk_norm = QkNorm::WholeRow);
        Ok(blueprint)
    },
    defaults: &[("rms_norm_eps", FieldDefault::Number(1e-5))],
    ..PLAIN
};
