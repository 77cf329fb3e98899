//! `GET /openapi.json`: this server as OpenAPI 3.2 describes it.
//!
//! The description is built from the running server, not kept in a file: the valid values
//! of a field depend on the model and on the limits in force.
//!
//! | file | content |
//! |---|---|
//! | `operations.rs` | the parts of operations |
//! | `paths.rs` | operations, written here: crates that derive them know neither OpenAPI 3.2 nor its `itemSchema`, which describes the parts of a stream |
//! | `responses.rs` | those of the Responses API |
//! | `schemas.rs` | schemas of bodies and answers, derived from the structs that are parsed and serialized |
//!
//! `tests.rs` compares the operations with the routes of `routes.rs` and of the dialects. `cargo xtask clients` tests the
//! running server against the description with schemathesis.

mod operations;
mod paths;
mod responses;
mod schemas;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;

/// Answers with the description.
pub(crate) async fn describe(State(app): State<Arc<App>>) -> Json<Value> {
    Json(document(&app))
}

fn document(app: &App) -> Value {
    json!({
        "openapi": "3.2.0",
        "info": {
            "title": "Motet",
            "summary": "OpenAI's API, with the extensions of vLLM, and Anthropic's Messages API",
            "description": "Fields that are not listed are ignored. `null` is as good as \
                            not there.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "paths": paths::paths(app),
        "components": {
            "schemas": schemas::schemas(app),
            "responses": paths::errors(),
            "securitySchemes": {"key": {
                "type": "http", "scheme": "bearer",
                "description": "The header `x-api-key`, with the bare key, is as good",
            }},
        },
    })
}
