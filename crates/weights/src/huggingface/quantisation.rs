//! `quantization` in `config.json`, as MLX's converter writes it.

use std::collections::HashMap;

use super::super::ModelError;
use super::super::fields::Fields;
use super::super::mlx::{Grouping, MlxQuantisation};
use super::json::JsonObject;

/// The fields of a form; all other fields of `quantization` are paths of modules.
const FIELDS: [&str; 3] = ["group_size", "bits", "mode"];

/// Reads the object `quantization`.
pub(super) fn read(json: &JsonObject) -> Result<MlxQuantisation, ModelError> {
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
    Ok(MlxQuantisation { default, modules })
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
