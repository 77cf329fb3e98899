//! Schemas of tokens and stop strings.

use std::borrow::Cow;

use motet_text::StopStrings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The schema of a token id: below the vocabulary of the running model.
pub(crate) struct Token;

impl JsonSchema for Token {
    fn schema_name() -> Cow<'static, str> {
        "Token".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": 0})
    }
}

/// The schema of a list of stop strings.
pub(crate) struct StopList;

impl JsonSchema for StopList {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "StopList".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let text = stop_string();
        json_schema!({"type": "array", "items": text, "maxItems": StopStrings::COUNT_MAX})
    }
}

/// The schema of a stop string.
pub(crate) fn stop_string() -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": StopStrings::BYTES_MAX})
}
