//! Operations, with their errors.

use serde_json::{Map, Value, json};

use super::operations::{GENERATED, get, json, post, reference, rejected};
use super::responses;
use crate::app::App;

/// The status of an operator's route for a request without a valid key.
const OPERATOR: u16 = 401;
/// Every status of an error, and its description.
const ERRORS: [(u16, &str); 15] = [
    (
        400,
        "A field is invalid: `param` names it. Or the body is not a JSON object",
    ),
    (401, "No valid API key"),
    (
        403,
        "The route needs another key, the class is too high, or the request is from another site's page",
    ),
    (404, "There is no such route, model or response"),
    (
        408,
        "The body took too long to come, or the answer was not read",
    ),
    (413, "The body is too long"),
    (415, "The body is not `application/json`"),
    (421, "`Host` is not a name of this server"),
    (
        422,
        "The request is valid, but this server or its model cannot serve it",
    ),
    (
        429,
        "A queue is full, or the key has as many concurrent requests as it may have",
    ),
    (431, "The headers are too long"),
    (500, "A fault of the server or the model's device"),
    (
        503,
        "The server shuts down, its device is lost or out of memory, or there is no memory for \
         the body",
    ),
    (504, "The request's time limit has passed"),
    (
        OVERLOADED,
        "The device is out of memory, or there is no memory for the body",
    ),
];

/// The status of an overloaded server in Anthropic's API. Other routes have 503.
const OVERLOADED: u16 = 529;

pub(super) fn paths(app: &App) -> Value {
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
        "/v1/embeddings": embeddings(),
        "/v1/messages": messages(),
        "/v1/messages/count_tokens": count_tokens(),
        "/v1/models": get("The models", true, "Models", &[]),
        "/v1/models/{model}": one_model,
        "/tokenize": post("Text or a conversation to tokens", "Tokenize", "Tokenized"),
        "/detokenize": post("Tokens to text", "Detokenize", "Detokenized"),
        "/health": state("Whether this process works; if not, restart it"),
        "/ready": state("Whether requests are accepted"),
        "/metrics": metrics(),
        "/openapi.json": description(),
    });
    for (path, operations) in responses::paths() {
        paths[path] = operations;
    }
    if app.access.operator_open {
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

/// The errors by status.
pub(super) fn errors() -> Map<String, Value> {
    let shapes = [("", "Error"), (MESSAGES, "MessagesError")];
    let all = shapes
        .into_iter()
        .flat_map(|shape| ERRORS.map(|error| (shape, error)))
        .filter(|((prefix, _), (status, _))| *status != OVERLOADED || *prefix == MESSAGES);
    let responses = all.map(|((prefix, schema), (status, when))| {
        let mut response = json(when, schema);
        if status == 429 {
            response["headers"]["retry-after"] = json!({
                "description": "Seconds", "required": true,
                "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"},
            });
        }
        (format!("{prefix}{status}"), response)
    });
    responses.collect()
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

fn generate(summary: &str, body: &str, shape: &str) -> Value {
    let mut path = post(summary, body, &format!("{shape}Completion"));
    let responses = &mut path["post"]["responses"];
    responses["200"]["content"]["text/event-stream"] = events(&format!("{shape}Part"));
    for (status, rejected) in rejected(&[&GENERATED]) {
        responses[status] = rejected;
    }
    path
}

fn embeddings() -> Value {
    let mut path = post("Vectors of texts", "EmbeddingRequest", "Embeddings");
    for (status, rejected) in rejected(&[&GENERATED]) {
        path["post"]["responses"][status] = rejected;
    }
    path
}

fn messages() -> Value {
    let summary = "Answer a conversation, as Anthropic's API does";
    let mut path = post(summary, "MessagesRequest", "AnthropicMessage");
    let responses = &mut path["post"]["responses"];
    responses["200"]["content"]["text/event-stream"] = message_events();
    for (status, rejected) in rejected(&[&GENERATED]) {
        responses[status] = rejected;
    }
    with_errors_of_messages(path)
}

fn count_tokens() -> Value {
    let summary = "The number of tokens of a conversation";
    let mut path = post(summary, "CountTokens", "CountedTokens");
    for (status, rejected) in rejected(&[&[404]]) {
        path["post"]["responses"][status] = rejected;
    }
    with_errors_of_messages(path)
}

/// The prefix of responses in the shape of Anthropic's API.
const MESSAGES: &str = "messages_";

/// Gives a path's errors the shape of Anthropic's API.
fn with_errors_of_messages(mut path: Value) -> Value {
    path["post"]["responses"][OVERLOADED.to_string()] = json!({"$ref": ""});
    let responses = path["post"]["responses"].as_object_mut();
    for (status, response) in responses.into_iter().flatten() {
        if response.get("$ref").is_some() {
            *response = json!({"$ref": format!("#/components/responses/{MESSAGES}{status}")});
        }
    }
    path
}

fn state(summary: &str) -> Value {
    let mut path = get(summary, false, "State", &[]);
    path["get"]["responses"]["503"] = json("It is not", "State");
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

/// A streamed answer.
fn events(part: &str) -> Value {
    let chunk = json!({
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [reference(part), reference("Error")]},
    });
    json!({"itemSchema": {
        "type": "object",
        "description": "With `stream`. The last is `[DONE]`, or the error that ended it",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, chunk]}},
        "required": ["data"],
    }})
}

/// A streamed message.
fn message_events() -> Value {
    let data = json!({
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [reference("MessageEvent"), reference("MessagesError")]},
    });
    json!({"itemSchema": {
        "type": "object",
        "description": "With `stream`. `event` is the type of `data`. The last is `message_stop`, \
                        or the error that ended the stream",
        "properties": {"event": {"type": "string"}, "data": data},
        "required": ["event", "data"],
    }})
}
