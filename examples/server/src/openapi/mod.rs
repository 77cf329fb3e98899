//! `GET /openapi.json`: this server as OpenAPI 3.2 describes it.
//!
//! The description is built from the running server, not kept in a file: the valid values
//! of a field depend on the model and on the limits in force.
//!
//! | file | content |
//! |---|---|
//! | `bodies.rs` | schemas of request bodies |
//! | `answers.rs` | schemas of answers |
//!
//! `tests.rs` compares it with the code: its routes with those of `app.rs`, its fields with
//! those that are parsed. `cargo xtask clients` tests the running server against it with
//! schemathesis.

mod answers;
mod bodies;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use crate::app::App;

/// Error statuses of every route.
const ALWAYS: [u16; 3] = [403, 421, 431];
/// Error statuses of routes with keys: the key is unknown, or at its limit.
const GUARDED: [u16; 2] = [401, 429];
/// The status of an operator's route for a request without a valid key.
const OPERATOR: u16 = 401;
/// Error statuses of routes with a body.
const BODY: [u16; 7] = [400, 408, 413, 415, 422, 500, 503];
/// Error statuses of routes that use the model.
const GENERATED: [u16; 3] = [404, 503, 504];

pub(crate) async fn describe(State(app): State<Arc<App>>) -> Json<Value> {
    Json(document(&app))
}

fn document(app: &App) -> Value {
    json!({
        "openapi": "3.2.0",
        "info": {
            "title": "Motet",
            "summary": "OpenAI's API, with the extensions of vLLM",
            "description": "Fields that are not listed are ignored. `null` is as good as \
                            not there.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "paths": paths(app),
        "components": {
            "schemas": schemas(app),
            "responses": answers::errors(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn schemas(app: &App) -> Map<String, Value> {
    let mut schemas = bodies::schemas(app);
    schemas.extend(answers::schemas());
    schemas
}

fn paths(app: &App) -> Value {
    let model = json!([{
        "name": "model", "in": "path", "required": true, "example": app.model,
        "schema": {"type": "string", "minLength": 1},
    }]);
    let mut one_model = get("One model", true, "Model", &[400, 404]);
    one_model["get"]["parameters"] = model;
    let chat = "Answer a conversation";
    let text = "Continue prompts";
    let mut paths = json!({
        "/v1/chat/completions": generate(chat, "ChatRequest", "Chat"),
        "/v1/completions": generate(text, "TextRequest", "Text"),
        "/v1/models": get("The models", true, "Models", &[]),
        "/v1/models/{model}": one_model,
        "/tokenize": post("Text or a conversation to tokens", "Tokenize", "Tokenized"),
        "/detokenize": post("Tokens to text", "Detokenize", "Detokenized"),
        "/health": state("Whether this process works; if not, restart it"),
        "/ready": state("Whether requests are accepted"),
        "/metrics": metrics(),
        "/openapi.json": description(),
    });
    if app.conduct.operator_open {
        for path in ["/metrics", "/openapi.json"] {
            let responses = paths[path]["get"]["responses"].as_object_mut();
            responses.map(|responses| responses.remove(&OPERATOR.to_string()));
        }
    }
    if app.keys.are_required() {
        guard(&mut paths);
    }
    paths
}

/// Marks the operations that need a key: those that may answer 401.
fn guard(paths: &mut Value) {
    let operations = paths.as_object_mut().into_iter().flatten();
    let operations = operations.flat_map(|(_, path)| path.as_object_mut().into_iter().flatten());
    for (_, operation) in operations {
        if operation["responses"].get("401").is_some() {
            operation["security"] = json!([{"key": []}]);
        }
    }
}

fn get(summary: &str, is_guarded: bool, schema: &str, errors: &[u16]) -> Value {
    let guarded: &[u16] = if is_guarded { &GUARDED } else { &[] };
    let mut responses = answers::rejected(&[&ALWAYS, guarded, errors]);
    responses.insert("200".into(), answers::json("As asked", schema));
    json!({"get": {"summary": summary, "responses": responses}})
}

fn post(summary: &str, body: &str, schema: &str) -> Value {
    let mut responses = answers::rejected(&[&ALWAYS, &GUARDED, &BODY]);
    responses.insert("200".into(), answers::json("As asked", schema));
    let content = json!({"application/json": {"schema": reference(body)}});
    let body = json!({"required": true, "content": content});
    json!({"post": {"summary": summary, "requestBody": body, "responses": responses}})
}

fn generate(summary: &str, body: &str, shape: &str) -> Value {
    let mut path = post(summary, body, &format!("{shape}Completion"));
    let responses = &mut path["post"]["responses"];
    responses["200"]["content"]["text/event-stream"] = answers::events(&format!("{shape}Part"));
    for (status, rejected) in answers::rejected(&[&GENERATED]) {
        responses[status] = rejected;
    }
    path
}

fn state(summary: &str) -> Value {
    let mut path = get(summary, false, "State", &[]);
    path["get"]["responses"]["503"] = answers::json("It is not", "State");
    path
}

fn metrics() -> Value {
    let mut path = get(
        "Prometheus' metrics, for the operator: see docs/metrics.md",
        false,
        "Error",
        &[OPERATOR, 404],
    );
    path["get"]["responses"]["200"]["content"] =
        json!({"text/plain": {"schema": {"type": "string"}}});
    path
}

fn description() -> Value {
    let summary = "This description, for the operator";
    let mut path = get(summary, false, "Error", &[OPERATOR]);
    path["get"]["responses"]["200"]["content"] =
        json!({"application/json": {"schema": {"type": "object"}}});
    path
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// An object of exactly these fields.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

fn described(mut schema: Value, description: &str) -> Value {
    schema["description"] = json!(description);
    schema
}
