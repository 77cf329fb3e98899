//! Rotary embeddings and their scalings, from either container.

mod divisors;

use motet_protocol::ModelError;

use super::super::blueprint::{Rope, RopeScaling};
use super::super::fields::Fields;
use super::super::gguf::GgufMetadata;
use super::super::huggingface::{Folder, JsonObject};
use super::super::limits::CONTEXT_TOKENS_MAX;
use super::super::stored::Directory;
use super::Settings;

/// The base where a file sets none: the default of Transformers and llama.cpp.
const THETA_DEFAULT: f32 = 10_000.0;
/// YaRN's bounds where a file sets none.
const BETA_FAST_DEFAULT: f32 = 32.0;
const BETA_SLOW_DEFAULT: f32 = 1.0;
/// Sliding-window layers have the base of this field, and no scaling, in models that write
/// one set of parameters for the other layers only (Gemma 3).
const LOCAL_THETA: &str = "rope_local_base_freq";
const LOCAL_KIND: &str = "sliding_attention";
const ORIGINAL: &str = "original_max_position_embeddings";
const PART: &str = "partial_rotary_factor";

/// Reads `rope_parameters` (Transformers 5), which may hold an object for each kind of layers,
/// or `rope_theta` and `rope_scaling` (before).
pub(super) fn of_folder(
    settings: &Settings<'_>,
    folder: &Folder,
    kind: Option<&str>,
    head_dim: usize,
) -> Result<Rope, ModelError> {
    let (parameters, is_nested) = parameters(folder, kind)?;
    if kind == Some(LOCAL_KIND)
        && !is_nested
        && let Some(theta) = settings.positive(LOCAL_THETA)?
    {
        return Ok(plain(theta, head_dim));
    }
    let own = |name: &str| match &parameters {
        Some(parameters) => parameters.positive(name),
        None => Ok(None),
    };
    let theta = match own("rope_theta")? {
        Some(theta) => theta,
        None => {
            let local = kind == Some(LOCAL_KIND) && is_nested;
            let local = local.then(|| settings.positive(LOCAL_THETA));
            let theta = local.transpose()?.flatten();
            let theta = theta.map_or_else(|| settings.positive("rope_theta"), |t| Ok(Some(t)))?;
            theta.unwrap_or(THETA_DEFAULT)
        }
    };
    let part = match &parameters {
        Some(parameters) if parameters.mentions(PART) => {
            part(settings, parameters, parameters.number(PART)?)?
        }
        _ => part(settings, settings, settings.number(PART)?)?,
    };
    let Some(parameters) = parameters else {
        return rope(settings, settings, theta, head_dim, part, RopeScaling::None);
    };
    let scaling = scaling(settings, &parameters, head_dim, part)?;
    rope(settings, &parameters, theta, head_dim, part, scaling)
}

/// Reads `{architecture}.rope.*` and the tensors of divisors.
pub(super) fn of_gguf(
    settings: &Settings<'_>,
    metadata: &GgufMetadata,
    directory: &Directory,
    kind: Option<&str>,
    head_dim: usize,
) -> Result<Rope, ModelError> {
    if kind == Some(LOCAL_KIND)
        && let Some(theta) = settings.positive(LOCAL_THETA)?
    {
        return Ok(plain(theta, head_dim));
    }
    let theta = settings.positive("rope_theta")?.unwrap_or(THETA_DEFAULT);
    let name = "rope.dimension_count";
    let rotated = match settings.integer(name)? {
        None => head_dim,
        Some(found) if found == head_dim as u64 => head_dim,
        Some(found) if settings.rules.partial_rope && found < head_dim as u64 => found as usize,
        Some(found) => {
            return Err(settings.wrong(
                name,
                format!("found {found}"),
                format!("{head_dim}, the dimensions of a head"),
            ));
        }
    };
    if rotated == 0 || !rotated.is_multiple_of(2) && rotated != head_dim {
        return Err(settings.wrong(
            name,
            format!("found {rotated}"),
            "an even number, 2 or more",
        ));
    }
    let part = rotated as f64 / head_dim as f64;
    let scaling = gguf_scaling(settings, metadata, directory, rotated, theta)?;
    rope(settings, settings, theta, head_dim, part, scaling)
}

/// The original context of scaled embeddings, in tokens.
pub(super) fn original_context_tokens(settings: &Settings<'_>) -> Result<usize, ModelError> {
    if let super::Source::HuggingFace(folder) = settings.source
        && let Some(parameters) = parameters(folder, None)?.0
    {
        return original(settings, &parameters);
    }
    match settings.count(ORIGINAL, CONTEXT_TOKENS_MAX)? {
        Some(tokens) => Ok(tokens),
        None => settings.context_tokens_max(),
    }
}

/// Llama 4's factor, which models of other families use, too.
pub(super) fn position_beta(folder: &Folder) -> Result<Option<f32>, ModelError> {
    match parameters(folder, None)?.0 {
        Some(parameters) => parameters.positive("llama_4_scaling_beta"),
        None => Ok(None),
    }
}

/// The parameters of layers of this kind, and whether they are of that kind alone.
fn parameters(
    folder: &Folder,
    kind: Option<&str>,
) -> Result<(Option<JsonObject>, bool), ModelError> {
    let Some(moved) = folder.text().object("rope_parameters")? else {
        return Ok((folder.text().object("rope_scaling")?, false));
    };
    match moved.object(kind.unwrap_or("full_attention"))? {
        Some(own) => Ok((Some(own), true)),
        None => Ok((Some(moved), false)),
    }
}

fn plain(theta: f32, head_dim: usize) -> Rope {
    Rope {
        theta,
        rotated: head_dim,
        scaling: RopeScaling::None,
    }
}

/// Checks the rotated part of a head.
fn part(
    settings: &Settings<'_>,
    fields: &impl Fields,
    found: Option<f64>,
) -> Result<f64, ModelError> {
    match found {
        None | Some(1.0) => Ok(1.0),
        Some(part) if settings.rules.partial_rope && part > 0.0 && part < 1.0 => Ok(part),
        Some(part) => {
            let expected = if settings.rules.partial_rope {
                "more than 0, and at most 1"
            } else {
                "1"
            };
            Err(fields.wrong(PART, format!("found {part}"), expected))
        }
    }
}

/// The rotated dimensions of a head: 64 for a part of 0.25, written with few digits, of 256.
fn rotated_dimensions(head_dim: usize, part: f64) -> usize {
    (head_dim as f64 * part + 1e-6) as usize
}

fn rope(
    settings: &Settings<'_>,
    fields: &impl Fields,
    theta: f32,
    head_dim: usize,
    part: f64,
    scaling: RopeScaling,
) -> Result<Rope, ModelError> {
    let rotated = match scaling {
        RopeScaling::Proportional { .. } => head_dim,
        _ => rotated_dimensions(head_dim, part),
    };
    if rotated == 0 || !rotated.is_multiple_of(2) {
        if part == 1.0 {
            return Err(settings.wrong(
                "head_dim",
                format!("found {head_dim}"),
                "an even number, since rotary embeddings rotate pairs",
            ));
        }
        return Err(fields.wrong(
            PART,
            format!("found {part}, of heads of {head_dim}"),
            "a part of an even number of dimensions",
        ));
    }
    Ok(Rope {
        theta,
        rotated,
        scaling,
    })
}

/// Reads an object with a `rope_type`, which older files call `type`.
fn scaling(
    settings: &Settings<'_>,
    json: &JsonObject,
    head_dim: usize,
    part: f64,
) -> Result<RopeScaling, ModelError> {
    let (name, kind) = match json.text("rope_type")? {
        Some(kind) => ("rope_type", Some(kind)),
        None => ("type", json.text("type")?),
    };
    match kind {
        None | Some("default" | "mrope") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear {
            factor: json.positive_required("factor")?,
        }),
        Some("llama3") => llama3(settings, json),
        Some("yarn") => yarn(settings, json),
        Some("longrope" | "su") => long(settings, json, rotated_dimensions(head_dim, part)),
        Some("proportional") => Ok(RopeScaling::Proportional {
            pairs: rotated_dimensions(head_dim, part) / 2,
            factor: json.positive("factor")?.unwrap_or(1.0),
        }),
        Some(other) => Err(json.wrong(
            name,
            format!("found `{other}`"),
            "`default`, `linear`, `llama3`, `yarn`, `longrope` or `proportional`",
        )),
    }
}

fn llama3(settings: &Settings<'_>, json: &JsonObject) -> Result<RopeScaling, ModelError> {
    let low_freq_factor = json.positive_required("low_freq_factor")?;
    let high_freq_factor = json.positive_required("high_freq_factor")?;
    if low_freq_factor >= high_freq_factor {
        return Err(json.wrong(
            "high_freq_factor",
            format!("found {high_freq_factor}"),
            format!("more than low_freq_factor, {low_freq_factor}"),
        ));
    }
    Ok(RopeScaling::Llama3 {
        factor: json.positive_required("factor")?,
        low_freq_factor,
        high_freq_factor,
        original_context_tokens: original(settings, json)?,
    })
}

fn yarn(settings: &Settings<'_>, json: &JsonObject) -> Result<RopeScaling, ModelError> {
    let original_context_tokens = original(settings, json)?;
    let factor = factor(settings, json, original_context_tokens)?;
    let mscales = (json.positive("mscale")?, json.positive("mscale_all_dim")?);
    let magnitude = match (json.positive("attention_factor")?, mscales) {
        (Some(magnitude), _) => magnitude,
        (None, (Some(own), Some(all))) => yarn_magnitude(factor, own) / yarn_magnitude(factor, all),
        (None, _) => yarn_magnitude(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: json.positive("beta_fast")?.unwrap_or(BETA_FAST_DEFAULT),
        beta_slow: json.positive("beta_slow")?.unwrap_or(BETA_SLOW_DEFAULT),
        truncate: json.flag("truncate")?.unwrap_or(true),
        magnitude,
        original_context_tokens,
    })
}

/// Chooses the divisors by the model's own context, so that a model has one identity. llama.cpp
/// and vLLM choose by the context that the engine is started with. Transformers chooses by the
/// length of each text, and gives tokens other keys once a text has become longer than the
/// original context.
fn long(
    settings: &Settings<'_>,
    json: &JsonObject,
    rotated: usize,
) -> Result<RopeScaling, ModelError> {
    let original = original(settings, json)?;
    let factor = factor(settings, json, original)?;
    let name = if settings.context_tokens_max()? > original {
        "long_factor"
    } else {
        "short_factor"
    };
    let found = json.get(name);
    let value = json.required(name, found, "an array of numbers")?;
    let numbers = value.as_array().filter(|all| all.len() == rotated / 2);
    let numbers = numbers.and_then(|all| {
        let number = |one: &serde_json::Value| one.as_f64().map(|one| one as f32);
        let numbers: Option<Vec<f32>> = all.iter().map(number).collect();
        numbers.filter(|all| all.iter().all(|one| is_divisor(*one)))
    });
    let Some(divisors) = numbers else {
        let expected = format!("an array of {} finite numbers above 0", rotated / 2);
        return Err(json.unlike(name, value, &expected));
    };
    let magnitude = json.positive("attention_factor")?;
    Ok(RopeScaling::Long {
        divisors,
        magnitude: magnitude.unwrap_or_else(|| long_magnitude(factor, original)),
    })
}

fn original(settings: &Settings<'_>, json: &JsonObject) -> Result<usize, ModelError> {
    // Phi-3 writes it outside the object, and Transformers prefers that place.
    if let Some(tokens) = settings.count(ORIGINAL, CONTEXT_TOKENS_MAX)? {
        return Ok(tokens);
    }
    match json.count(ORIGINAL, CONTEXT_TOKENS_MAX)? {
        Some(tokens) => Ok(tokens),
        None => settings.context_tokens_max(),
    }
}

fn factor(settings: &Settings<'_>, json: &JsonObject, original: usize) -> Result<f32, ModelError> {
    match json.positive("factor")? {
        Some(factor) => Ok(factor),
        None => Ok((settings.context_tokens_max()? as f64 / original as f64) as f32),
    }
}

fn is_divisor(number: f32) -> bool {
    number.is_finite() && number > 0.0
}

fn yarn_magnitude(factor: f32, mscale: f32) -> f32 {
    if factor <= 1.0 {
        return 1.0;
    }
    (0.1 * f64::from(mscale) * f64::from(factor).ln() + 1.0) as f32
}

fn long_magnitude(factor: f32, original: usize) -> f32 {
    if factor <= 1.0 {
        return 1.0;
    }
    (1.0 + f64::from(factor).ln() / (original as f64).ln()).sqrt() as f32
}

fn gguf_scaling(
    settings: &Settings<'_>,
    metadata: &GgufMetadata,
    directory: &Directory,
    rotated: usize,
    theta: f32,
) -> Result<RopeScaling, ModelError> {
    let name = "rope.scaling.type";
    match settings.text(name)? {
        None => {
            // llama.cpp begins with `linear`.
            if let Some(factor) = settings.positive("rope.scaling.factor")? {
                return Ok(RopeScaling::Linear { factor });
            }
        }
        Some("none") => {}
        Some("linear") => {
            return Ok(RopeScaling::Linear {
                factor: settings.positive_required("rope.scaling.factor")?,
            });
        }
        Some("yarn") => return gguf_yarn(settings),
        Some("longrope") => return divisors::long(settings, metadata, directory, rotated),
        Some(other) => {
            return Err(settings.wrong(
                name,
                format!("found `{other}`"),
                "`none`, `linear`, `yarn` or `longrope`",
            ));
        }
    }
    // Files from before `rope.scaling.*` existed.
    if let Some(factor) = settings.positive("rope.scale_linear")? {
        return Ok(RopeScaling::Linear { factor });
    }
    if directory.contains_key(divisors::LONG) {
        return divisors::long(settings, metadata, directory, rotated);
    }
    divisors::llama3(metadata, directory, rotated, theta)
}

fn gguf_yarn(settings: &Settings<'_>) -> Result<RopeScaling, ModelError> {
    let number = |name: &str, default: f32| -> Result<f32, ModelError> {
        Ok(settings.positive(name)?.unwrap_or(default))
    };
    let factor = settings.positive_required("rope.scaling.factor")?;
    let magnitude = match settings.positive("rope.scaling.yarn_log_multiplier")? {
        Some(all) => yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, all),
        None => yarn_magnitude(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: number("rope.scaling.yarn_beta_fast", BETA_FAST_DEFAULT)?,
        beta_slow: number("rope.scaling.yarn_beta_slow", BETA_SLOW_DEFAULT)?,
        // GGUF has no field for it.
        truncate: settings.flag("truncate")?.unwrap_or(true),
        magnitude: magnitude * number("rope.scaling.attn_factor", 1.0)?,
        original_context_tokens: original_context_tokens(settings)?,
    })
}
