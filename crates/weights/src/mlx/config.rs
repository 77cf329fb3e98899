//! `quantization` in `config.json`.

use std::collections::HashMap;
use std::fmt;

use motet_core::protocol::ModelError;

use crate::fields::Fields;
use crate::huggingface::JsonObject;

/// The fields of a form; all other fields of `quantization` are paths of modules.
const FIELDS: [&str; 3] = ["group_size", "bits", "mode"];

/// The forms of a folder's quantised modules.
#[derive(Debug)]
pub(crate) struct MlxQuantisation {
    /// The form of modules that are not listed.
    pub(crate) default: Grouping,
    /// The forms of single modules, by their paths. None for those that are not quantised.
    pub(crate) modules: HashMap<String, Option<Grouping>>,
}

/// The form of a quantised matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    Affine { bits: usize, group: usize },
    Mxfp4,
}

impl Grouping {
    /// Bits of an element.
    pub(crate) fn bits(self) -> usize {
        match self {
            Self::Affine { bits, .. } => bits,
            Self::Mxfp4 => 4,
        }
    }

    /// Elements with the same scale.
    pub(crate) fn group(self) -> usize {
        match self {
            Self::Affine { group, .. } => group,
            Self::Mxfp4 => 32,
        }
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affine { bits, group } => write!(f, "{bits} bits in groups of {group}"),
            Self::Mxfp4 => write!(f, "MXFP4"),
        }
    }
}

impl MlxQuantisation {
    /// Reads the object `quantization`.
    pub(crate) fn read(json: &JsonObject) -> Result<Self, ModelError> {
        for name in ["group_size", "bits"] {
            json.required(name, json.get(name), "a whole number")?;
        }
        let default = grouping(json)?;
        let mut modules = HashMap::new();
        for (path, value) in json.entries() {
            if FIELDS.contains(&path) {
                continue;
            }
            let form = match value {
                serde_json::Value::Bool(quantised) => quantised.then_some(default),
                serde_json::Value::Object(_) => {
                    let own = json.object(path)?;
                    Some(grouping(&json.required(path, own, "an object")?)?)
                }
                other => {
                    let expected = "the form of a module: an object, true or false";
                    return Err(json.unlike(path, other, expected));
                }
            };
            modules.insert(path.to_owned(), form);
        }
        Ok(Self { default, modules })
    }
}

/// The form in an object. Fields that are missing have the values of MLX's `to_quantized`.
fn grouping(json: &JsonObject) -> Result<Grouping, ModelError> {
    let is_affine = match json.text("mode")? {
        None | Some("affine") => true,
        Some("mxfp4") => false,
        Some(other) => {
            return Err(json.wrong("mode", format!("found `{other}`"), "affine or mxfp4"));
        }
    };
    let field = |name: &str, default: u64, known: &[u64], expected: &str| {
        let found = json.integer(name)?.unwrap_or(default);
        if known.contains(&found) {
            return Ok(found as usize);
        }
        Err(json.wrong(name, format!("found {found}"), expected))
    };
    if is_affine {
        let bits = field("bits", 4, &[2, 3, 4, 5, 6, 8], "2, 3, 4, 5, 6 or 8")?;
        let group = field("group_size", 64, &[32, 64, 128], "32, 64 or 128")?;
        return Ok(Grouping::Affine { bits, group });
    }
    field("bits", 4, &[4], "4, as mxfp4 has")?;
    field("group_size", 32, &[32], "32, as mxfp4 has")?;
    Ok(Grouping::Mxfp4)
}
