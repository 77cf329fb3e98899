//! llguidance's own options in a schema.

use serde_json::{Map, Value, json};

/// Escapes in strings. llguidance compares names of members as they are written; with `\u…` among the
/// escapes, `"\u0061"` would be another name than `"a"`. Control characters that have no other
/// escape cannot be written.
const ESCAPES: &str = "nrbtf\\\"";

/// Sets the escapes that strings may have.
pub(in crate::grammar) fn set_escapes(schema: &mut Value) {
    set_option(schema, "json_allowed_escapes", json!(ESCAPES));
}

/// Sets one of llguidance's options, unless the caller has set it.
pub(in crate::grammar) fn set_option(schema: &mut Value, name: &str, value: Value) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    let options = fields
        .entry("x-guidance")
        .or_insert_with(|| Map::new().into());
    if let Some(options) = options.as_object_mut() {
        options.entry(name).or_insert(value);
    }
}
