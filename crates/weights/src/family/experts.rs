//! Mixtures of experts, with the field names that families share.

use super::super::ModelError;
use super::super::blueprint::{Blueprint, Experts, Gated, Mlp, Routing};
use super::super::fields::Fields;
use super::super::limits::{DIMENSION_MAX, EXPERTS_MAX};
use super::super::settings::Settings;

/// Experts whose number is in `count` and whose width is in `inner`.
pub(super) fn experts(
    settings: &Settings<'_>,
    count: &str,
    inner: &str,
    routing: Routing,
) -> Result<Experts, ModelError> {
    Ok(Experts {
        count: settings.count_required(count, EXPERTS_MAX)?,
        chosen: settings.count_required("num_experts_per_tok", EXPERTS_MAX)?,
        expert: Gated {
            inner: settings.count_required(inner, DIMENSION_MAX)?,
            activation: settings.activation()?,
            bias: false,
        },
        routing,
        router_bias: false,
        shared: None,
    })
}

/// Replaces all MLPs by experts, as Mixtral has them.
pub(super) fn with_experts(
    settings: &Settings<'_>,
    blueprint: &mut Blueprint,
) -> Result<(), ModelError> {
    let (count, inner) = ("num_local_experts", "intermediate_size");
    let experts = experts(settings, count, inner, Routing::SoftmaxChosen)?;
    for layer in &mut blueprint.layers {
        layer.mlp = Mlp::Experts(experts);
    }
    Ok(())
}
