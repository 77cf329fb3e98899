//! Tensors of the files that no role uses.
//!
//! Whole parts of a model that text does not need are skipped. Any other tensor that no role uses
//! is an error: without it the model would compute something else.

use std::path::Path;

use motet_protocol::ModelError;

use super::blueprint::Blueprint;
use super::locate::Search;

/// A part of the files that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The purpose of the tensors, such as `vision`.
    pub part: &'static str,
    /// Number of tensors.
    pub tensors: usize,
    /// One of them.
    pub example: String,
}

const VISION: &str = "vision";
const AUDIO: &str = "audio";
const FURTHER_TOKENS: &str = "prediction of further tokens";
const FREQUENCIES: &str = "frequencies that follow from the configuration";
const MASKS: &str = "masks that follow from the configuration";
const TIED_HEAD: &str = "an output head that is the embedding";

/// Parts of names, and the purpose of tensors with them.
const PARTS: [(&str, &str); 10] = [
    ("visual.", VISION),
    ("vision_tower.", VISION),
    ("vision_model.", VISION),
    ("multi_modal_projector.", VISION),
    ("mm_projector.", VISION),
    ("audio_tower.", AUDIO),
    ("mtp.", FURTHER_TOKENS),
    ("nextn.", FURTHER_TOKENS),
    ("rotary_emb.", FREQUENCIES),
    ("masked_bias", MASKS),
];

/// Parts of names inside the layers.
const LAYER_PARTS: [(&str, &str); 2] = [("rotary_emb.", FREQUENCIES), ("masked_bias", MASKS)];

/// Starts of names in GGUF files.
const GGUF_STARTS: [(&str, &str); 5] = [
    ("v.", VISION),
    ("mm.", VISION),
    ("a.", AUDIO),
    ("mtp.", FURTHER_TOKENS),
    ("nextn.", FURTHER_TOKENS),
];

/// Names of a head, which some folders have beside a tied embedding.
const HEADS: [&str; 2] = ["lm_head", "language_model.lm_head"];

/// The tensors of a head, which may be quantised.
const HEAD_PARTS: [&str; 3] = ["weight", "scales", "biases"];

/// Divisors of GGUF files, which are read with the configuration.
const DIVISORS: [&str; 3] = [
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
];

/// The unused parts of the files. `further_layers` layers behind those of the model may predict
/// further tokens.
pub(super) fn find(
    search: &Search<'_>,
    blueprint: &Blueprint,
    further_layers: usize,
) -> Result<Vec<Skipped>, ModelError> {
    let mut parts: Vec<Skipped> = Vec::new();
    let is_tensor = |name: &&str| !(search.is_gguf() && DIVISORS.contains(name));
    let mut unused: Vec<&str> = search.unused().filter(is_tensor).collect();
    unused.sort_unstable();
    for name in unused {
        let Some(part) = part_of(name, search, blueprint, further_layers) else {
            return Err(ModelError::TensorExtra {
                path: Path::to_owned(search.file_of(name)),
                tensor: name.to_owned(),
            });
        };
        match parts.iter_mut().find(|known| known.part == part) {
            Some(known) => known.tensors += 1,
            None => parts.push(Skipped {
                part,
                tensors: 1,
                example: name.to_owned(),
            }),
        }
    }
    Ok(parts)
}

/// The purpose of a tensor that may be skipped.
fn part_of(
    name: &str,
    search: &Search<'_>,
    blueprint: &Blueprint,
    further_layers: usize,
) -> Option<&'static str> {
    let layers = blueprint.layers.len();
    match search.layer_of(name) {
        Some(layer) if layer < layers => with_part(name, &LAYER_PARTS),
        Some(layer) if layer - layers < further_layers => Some(FURTHER_TOKENS),
        Some(_) => None,
        None if blueprint.stem.tied_embeddings && is_head(name) => Some(TIED_HEAD),
        None if search.is_gguf() => {
            let mut starts = GGUF_STARTS.iter();
            let found = starts.find(|(start, _)| name.starts_with(start));
            found.map(|(_, part)| *part)
        }
        None => with_part(name, &PARTS),
    }
}

fn is_head(name: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(path, part)| HEADS.contains(&path) && HEAD_PARTS.contains(&part))
}

fn with_part(name: &str, parts: &[(&str, &'static str)]) -> Option<&'static str> {
    let is_part =
        |(text, _): &&(&str, _)| name.starts_with(text) || name.contains(&format!(".{text}"));
    parts.iter().find(is_part).map(|(_, part)| *part)
}
