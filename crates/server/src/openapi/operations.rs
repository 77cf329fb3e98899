//! The parts of operations.

use serde_json::{Map, Value, json};

/// Error statuses of every route.
const ALWAYS: [u16; 3] = [403, 421, 431];
/// Error statuses of routes with keys: the key is unknown, or at its limit.
const GUARDED: [u16; 2] = [401, 429];
/// Error statuses of routes with a body.
const BODY: [u16; 7] = [400, 408, 413, 415, 422, 500, 503];
/// Error statuses of routes that use the model.
pub(super) const GENERATED: [u16; 3] = [404, 503, 504];

/// An operation without a body.
pub(super) fn get(summary: &str, is_guarded: bool, schema: &str, errors: &[u16]) -> Value {
    let guarded: &[u16] = if is_guarded { &GUARDED } else { &[] };
    let mut responses = rejected(&[&ALWAYS, guarded, errors]);
    responses.insert("200".into(), json("As asked", schema));
    json!({"get": {"summary": summary, "responses": responses}})
}

/// An operation with a body.
pub(super) fn post(summary: &str, body: &str, schema: &str) -> Value {
    let mut responses = rejected(&[&ALWAYS, &GUARDED, &BODY]);
    responses.insert("200".into(), json("As asked", schema));
    let content = json!({"application/json": {"schema": reference(body)}});
    let body = json!({"required": true, "content": content});
    json!({"post": {"summary": summary, "requestBody": body, "responses": responses}})
}

/// A reference to a schema.
pub(super) fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// References to the errors with these statuses.
pub(super) fn rejected(statuses: &[&[u16]]) -> Map<String, Value> {
    let statuses = statuses.iter().copied().flatten();
    let references = statuses.map(|status| {
        let path = format!("#/components/responses/{status}");
        (status.to_string(), json!({"$ref": path}))
    });
    references.collect()
}

/// A JSON answer.
pub(super) fn json(description: &str, schema: &str) -> Value {
    json!({
        "description": description,
        "headers": {"x-request-id": {
            "description": "The request's, if it had one that can be printed, or a new one",
            "required": true,
            "schema": {"type": "string"},
        }},
        "content": {"application/json": {"schema": reference(schema)}},
    })
}
