//! `config.json` and `generation_config.json`, with Transformers' defaults for absent fields.

use std::path::Path;

use super::super::ModelError;
use super::super::config::{
    CONTEXT_TOKENS_MAX, DIMENSION_MAX, HEADS_MAX, LAYERS_MAX, LlamaConfig, ROPE_THETA_DEFAULT,
    RopeScaling, Spelling,
};
use super::super::fields::Fields;
use super::json::JsonObject;
use motet_core::TokenId;

/// Far above any real file, which has a few kilobytes.
const CONFIG_BYTES_MAX: usize = 1 << 20;

const SPELLING: Spelling = Spelling {
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    begin_token: "bos_token_id",
    end_tokens: "eos_token_id",
};

#[derive(Clone, Copy, PartialEq)]
enum Family {
    Llama,
    Mistral,
}

/// Reads the folder's configuration.
pub(super) fn read(folder: &Path) -> Result<LlamaConfig, ModelError> {
    let path = folder.join("config.json");
    let json = JsonObject::read(&path, "a model's config.json", CONFIG_BYTES_MAX)?;
    let family = family(&json)?;
    reject_variants(&json)?;
    let heads = json.count_required("num_attention_heads", HEADS_MAX)?;
    let hidden_size = json.count_required("hidden_size", DIMENSION_MAX)?;
    let (rope_theta, rope_scaling) = rope(&json)?;
    let mut config = LlamaConfig {
        architecture: match family {
            Family::Llama => "llama".to_owned(),
            Family::Mistral => "mistral".to_owned(),
        },
        name: folder_name(folder),
        vocab_size: json.count_required("vocab_size", DIMENSION_MAX)?,
        hidden_size,
        intermediate_size: json.count_required("intermediate_size", DIMENSION_MAX)?,
        layers: json.count_required("num_hidden_layers", LAYERS_MAX)?,
        heads,
        kv_heads: kv_heads(&json, family, heads)?,
        head_dim: head_dim(&json, hidden_size, heads)?,
        context_tokens_max: json.count_required("max_position_embeddings", CONTEXT_TOKENS_MAX)?,
        rms_norm_eps: json.positive("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        tied_embeddings: json.flag("tie_word_embeddings")?.unwrap_or(false),
        attention_bias: json.flag("attention_bias")?.unwrap_or(false),
        sliding_window: sliding_window(&json, family)?,
        end_tokens: end_tokens(&json)?.unwrap_or_default(),
        begin_token: json.token("bos_token_id")?,
    };
    config.check(&json, &SPELLING)?;
    if let Some(generation) = generation(folder)? {
        config.end_tokens = end_tokens(&generation)?.unwrap_or(config.end_tokens);
        config.begin_token = generation.token("bos_token_id")?.or(config.begin_token);
        config.check(&generation, &SPELLING)?;
    }
    Ok(config)
}

fn generation(folder: &Path) -> Result<Option<JsonObject>, ModelError> {
    let path = folder.join("generation_config.json");
    match JsonObject::read(&path, "a generation_config.json", CONFIG_BYTES_MAX) {
        Ok(json) => Ok(Some(json)),
        Err(ModelError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The class that Transformers would load, or else the model's type.
fn family(json: &JsonObject) -> Result<Family, ModelError> {
    let class = json
        .get("architectures")
        .and_then(|classes| classes.get(0)?.as_str());
    let (name, known) = match class {
        Some(class) => (class, "LlamaForCausalLM, MistralForCausalLM"),
        None => {
            let found = json.text("model_type")?;
            let expected = "`llama` or `mistral`";
            let name = json.required("model_type", found, expected)?;
            (name, "llama, mistral")
        }
    };
    match name {
        "LlamaForCausalLM" | "llama" => Ok(Family::Llama),
        "MistralForCausalLM" | "mistral" => Ok(Family::Mistral),
        _ => Err(ModelError::Architecture {
            path: json.path().to_owned(),
            found: name.to_owned(),
            known,
        }),
    }
}

/// Rejects variants of the architecture that would load and then compute wrong results.
fn reject_variants(json: &JsonObject) -> Result<(), ModelError> {
    if json.flag("mlp_bias")? == Some(true) {
        return Err(json.wrong("mlp_bias", "found true", "false"));
    }
    if let Some(activation) = json.text("hidden_act")?
        && !["silu", "swish"].contains(&activation)
    {
        return Err(json.wrong("hidden_act", format!("found `{activation}`"), "`silu`"));
    }
    if let Some(part) = json.number("partial_rotary_factor")?
        && part != 1.0
    {
        return Err(json.wrong("partial_rotary_factor", format!("found {part}"), "1"));
    }
    Ok(())
}

fn kv_heads(json: &JsonObject, family: Family, heads: usize) -> Result<usize, ModelError> {
    let name = SPELLING.kv_heads;
    let default = match family {
        Family::Mistral if !json.mentions(name) => 8,
        _ => heads,
    };
    Ok(json.count(name, HEADS_MAX)?.unwrap_or(default))
}

fn head_dim(json: &JsonObject, hidden_size: usize, heads: usize) -> Result<usize, ModelError> {
    if let Some(head_dim) = json.count(SPELLING.head_dim, HEADS_MAX)? {
        return Ok(head_dim);
    }
    if hidden_size.is_multiple_of(heads) {
        return Ok(hidden_size / heads);
    }
    Err(json.wrong(
        "num_attention_heads",
        format!("found {heads} without a head_dim"),
        format!("a divisor of hidden_size, {hidden_size}"),
    ))
}

fn sliding_window(json: &JsonObject, family: Family) -> Result<Option<usize>, ModelError> {
    let name = "sliding_window";
    match family {
        Family::Llama => Ok(None),
        Family::Mistral if !json.mentions(name) => Ok(Some(4096)),
        Family::Mistral => json.count(name, CONTEXT_TOKENS_MAX),
    }
}

/// One id or a list of ids.
fn end_tokens(json: &JsonObject) -> Result<Option<Vec<TokenId>>, ModelError> {
    let name = SPELLING.end_tokens;
    let Some(value) = json.get(name) else {
        return Ok(None);
    };
    let values = match value.as_array() {
        Some(values) => values.as_slice(),
        None => std::slice::from_ref(value),
    };
    let tokens: Option<Vec<TokenId>> = values
        .iter()
        .map(|value| value.as_u64().and_then(|id| TokenId::try_from(id).ok()))
        .collect();
    match tokens {
        Some(tokens) => Ok(Some(tokens)),
        None => Err(json.unlike(name, value, "a token id or an array of them")),
    }
}

/// Base and scaling of the rotary embeddings. Transformers 5 moved both into `rope_parameters`.
fn rope(json: &JsonObject) -> Result<(f32, Option<RopeScaling>), ModelError> {
    let parameters = json.object("rope_parameters")?;
    let theta = match &parameters {
        Some(parameters) => parameters.positive("rope_theta")?,
        None => None,
    };
    let theta = match theta {
        Some(theta) => theta,
        None => json.positive("rope_theta")?.unwrap_or(ROPE_THETA_DEFAULT),
    };
    let scaling = match parameters {
        Some(parameters) => Some(parameters),
        None => json.object("rope_scaling")?,
    };
    match scaling {
        Some(scaling) => Ok((theta, rope_scaling(&scaling)?)),
        None => Ok((theta, None)),
    }
}

fn rope_scaling(json: &JsonObject) -> Result<Option<RopeScaling>, ModelError> {
    // Older files call the field `type`.
    let (name, kind) = match json.text("rope_type")? {
        Some(kind) => ("rope_type", Some(kind)),
        None => ("type", json.text("type")?),
    };
    match kind {
        None | Some("default") => Ok(None),
        Some("linear") => Ok(Some(RopeScaling::Linear {
            factor: json.positive_required("factor")?,
        })),
        Some("llama3") => {
            let low_freq_factor = json.positive_required("low_freq_factor")?;
            let high_freq_factor = json.positive_required("high_freq_factor")?;
            if low_freq_factor >= high_freq_factor {
                return Err(json.wrong(
                    "high_freq_factor",
                    format!("found {high_freq_factor}"),
                    format!("more than low_freq_factor, {low_freq_factor}"),
                ));
            }
            Ok(Some(RopeScaling::Llama3 {
                factor: json.positive_required("factor")?,
                low_freq_factor,
                high_freq_factor,
                original_context_tokens: json
                    .count_required("original_max_position_embeddings", CONTEXT_TOKENS_MAX)?,
            }))
        }
        Some(other) => Err(json.wrong(
            name,
            format!("found `{other}`"),
            "`default`, `linear` or `llama3`",
        )),
    }
}

/// The folder's own name, even if the path is `.`.
fn folder_name(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    match whole.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => "model".to_owned(),
    }
}
