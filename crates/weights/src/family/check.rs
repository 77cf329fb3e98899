//! Checks of a description that hold for every family.

use super::super::ModelError;
use super::super::blueprint::{Attention, Blueprint, DeltaNet, Experts, Mamba2, Mixer, Mlp, Rope};
use super::super::fields::Fields;
use super::super::limits::HEADS_MAX;
use super::super::settings::Settings;

/// Checks that the sizes of a description fit one another. Each alone was checked when it was
/// read.
pub(crate) fn check(settings: &Settings<'_>, blueprint: &Blueprint) -> Result<(), ModelError> {
    for layer in &blueprint.layers {
        match &layer.mixer {
            Mixer::Attention(attention) => {
                of_attention(settings, attention, blueprint.context_tokens_max)?;
            }
            Mixer::DeltaNet(delta) => of_delta_net(settings, delta)?,
            Mixer::Mamba2(mamba) => of_mamba2(settings, mamba)?,
            Mixer::ShortConv(_) => {}
        }
        if let Mlp::Experts(experts) = &layer.mlp {
            of_experts(settings, experts)?;
        }
    }
    Ok(())
}

fn of_attention(
    settings: &Settings<'_>,
    attention: &Attention,
    context_tokens_max: usize,
) -> Result<(), ModelError> {
    let (heads, kv_heads) = (attention.heads, attention.kv_heads);
    let name = "num_key_value_heads";
    if !(1..=HEADS_MAX).contains(&kv_heads) {
        let expected = format!("a whole number from 1 to {HEADS_MAX}");
        return Err(settings.wrong(name, format!("found {kv_heads}"), expected));
    }
    if !heads.is_multiple_of(kv_heads) {
        return Err(settings.wrong(
            name,
            format!("found {kv_heads} for {heads} query heads"),
            "a divisor of the number of query heads",
        ));
    }
    if !attention.head_dim.is_multiple_of(2) {
        return Err(settings.wrong(
            "head_dim",
            format!("found {}", attention.head_dim),
            "an even number, since rotary embeddings rotate pairs",
        ));
    }
    if let Some(rope) = &attention.rope {
        of_rope(settings, rope)?;
    }
    // A window from the family's defaults may be longer than the context.
    let name = "sliding_window";
    match attention.window {
        Some(window) if window > context_tokens_max && settings.states(name) => Err(settings
            .wrong(
                name,
                format!("found {window}"),
                format!("at most the context of {context_tokens_max} tokens"),
            )),
        _ => Ok(()),
    }
}

/// A base of 1 in YaRN, for example, divides by 0.
fn of_rope(settings: &Settings<'_>, rope: &Rope) -> Result<(), ModelError> {
    let frequencies = rope.frequencies();
    let mut radians = frequencies.radians_per_token.iter();
    if frequencies.magnitude.is_finite() && radians.all(|one| (*one as f32).is_finite()) {
        return Ok(());
    }
    Err(settings.wrong(
        "rope_theta",
        format!("found {}, and a scaling that does not fit", rope.theta),
        "finite frequencies of rotary embeddings",
    ))
}

fn of_delta_net(settings: &Settings<'_>, delta: &DeltaNet) -> Result<(), ModelError> {
    if delta.value_heads.is_multiple_of(delta.key_heads) {
        return Ok(());
    }
    Err(settings.wrong(
        "linear_num_key_heads",
        format!(
            "found {} for {} value heads",
            delta.key_heads, delta.value_heads
        ),
        "a divisor of the number of value heads",
    ))
}

fn of_mamba2(settings: &Settings<'_>, mamba: &Mamba2) -> Result<(), ModelError> {
    if mamba.heads.is_multiple_of(mamba.groups) {
        return Ok(());
    }
    Err(settings.wrong(
        "mamba_n_groups",
        format!("found {} for {} heads", mamba.groups, mamba.heads),
        "a divisor of the number of heads",
    ))
}

fn of_experts(settings: &Settings<'_>, experts: &Experts) -> Result<(), ModelError> {
    if (1..=experts.count).contains(&experts.chosen) {
        return Ok(());
    }
    Err(settings.wrong(
        "num_experts_per_tok",
        format!("found {}", experts.chosen),
        format!(
            "a whole number from 1 to {}, the number of experts",
            experts.count
        ),
    ))
}
