//! Schemas of answers.

use serde_json::{Map, Value, json};

use super::{described, object, reference};

/// Every status of an error, and its description.
const ERRORS: [(u16, &str); 14] = [
    (
        400,
        "A field is invalid: `param` names it. Or the body is not a JSON object",
    ),
    (401, "No valid API key"),
    (
        403,
        "The route needs another key, the class is too high, or the request is from another site's page",
    ),
    (404, "There is no such route or model"),
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
];

/// The errors by status.
pub(super) fn errors() -> Map<String, Value> {
    let responses = ERRORS.into_iter().map(|(status, when)| {
        let mut response = json(when, "Error");
        if status == 429 {
            response["headers"]["retry-after"] = json!({
                "description": "Seconds", "required": true,
                "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"},
            });
        }
        (status.to_string(), response)
    });
    responses.collect()
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

/// A streamed answer.
pub(super) fn events(part: &str) -> Value {
    let chunk = json!({
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [reference(part), reference("Error")]},
    });
    let event = object(
        json!({"data": {"anyOf": [{"const": "[DONE]"}, chunk]}}),
        &["data"],
    );
    let when = "With `stream`. The last is `[DONE]`, or the error that ended it";
    json!({"itemSchema": described(event, when)})
}

pub(super) fn schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    for (name, mut schema) in all() {
        if schema["type"] == "object" {
            schema["additionalProperties"] = json!(false);
        }
        schemas.insert(name.to_owned(), schema);
    }
    schemas
}

fn all() -> Vec<(&'static str, Value)> {
    let count = json!({"type": "integer", "minimum": 0});
    let text = json!({"type": "string"});
    vec![
        ("Error", error()),
        ("Usage", usage(&count)),
        (
            "ChatCompletion",
            completion("chat.completion", chat_choice(), true),
        ),
        (
            "ChatPart",
            completion("chat.completion.chunk", chat_delta(), false),
        ),
        (
            "TextCompletion",
            completion("text_completion", text_choice(), true),
        ),
        (
            "TextPart",
            completion("text_completion", text_choice(), false),
        ),
        ("ChatLogprobs", chat_logprobs()),
        ("TextLogprobs", text_logprobs()),
        ("Model", model(&count)),
        (
            "Models",
            object(
                json!({"object": {"const": "list"}, "data": array(&reference("Model"))}),
                &["object", "data"],
            ),
        ),
        (
            "Tokenized",
            object(
                json!({"count": count, "max_model_len": count, "tokens": array(&count)}),
                &["count", "max_model_len", "tokens"],
            ),
        ),
        ("Detokenized", object(json!({"prompt": text}), &["prompt"])),
        ("State", state(&count)),
    ]
}

fn error() -> Value {
    let optional = json!({"type": ["string", "null"]});
    let fields = json!({
        "message": {"type": "string"},
        "type": {"enum": [
            "invalid_request_error", "authentication_error", "permission_error",
            "rate_limit_error", "server_error",
        ]},
        "param": optional,
        "code": {"enum": [
            null, "invalid_api_key", "model_not_found", "queue_full", "draining", "broken",
            "out_of_memory", "wrong_api_key", "no_operator", "priority_not_allowed",
            "unknown_host", "foreign_origin",
        ]},
    });
    let error = object(fields, &["message", "type", "param", "code"]);
    object(json!({"error": error}), &["error"])
}

fn usage(count: &Value) -> Value {
    let details = object(json!({"cached_tokens": count}), &["cached_tokens"]);
    let fields = json!({
        "prompt_tokens": count,
        "completion_tokens": count,
        "total_tokens": count,
        "prompt_tokens_details": details,
    });
    let required = [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
    ];
    object(fields, &required)
}

/// The progress of a prompt, for streams that ask for it.
fn prompt_progress() -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    let fields = json!({
        "index": count,
        "total": count,
        "cache": count,
        "processed": count,
    });
    object(fields, &["index", "total", "cache", "processed"])
}

/// A complete answer, which has its usage, or a part of one, which may have it.
fn completion(kind: &str, choice: Value, is_whole: bool) -> Value {
    let fields = json!({
        "id": {"type": "string"},
        "object": {"const": kind},
        "created": {"type": "integer", "description": "Seconds since 1970"},
        "model": {"type": "string"},
        "choices": array(&choice),
        "usage": reference("Usage"),
    });
    let mut fields = fields;
    if !is_whole {
        fields["prompt_progress"] = prompt_progress();
    }
    let mut required = vec!["id", "object", "created", "model", "choices"];
    required.extend(is_whole.then_some("usage"));
    object(fields, &required)
}

fn choice(mut fields: Value, content: &str, logprobs: &str) -> Value {
    fields["index"] = json!({"type": "integer", "minimum": 0});
    fields["finish_reason"] = json!({"enum": ["stop", "length", null]});
    fields["logprobs"] = json!({"anyOf": [reference(logprobs), {"type": "null"}]});
    object(fields, &["index", content, "logprobs", "finish_reason"])
}

fn chat_choice() -> Value {
    let message = json!({
        "role": {"const": "assistant"},
        "content": {"type": "string"},
        "refusal": {"type": "null"},
    });
    let message = object(message, &["role", "content", "refusal"]);
    choice(json!({"message": message}), "message", "ChatLogprobs")
}

fn chat_delta() -> Value {
    let delta = json!({"role": {"const": "assistant"}, "content": {"type": "string"}});
    choice(
        json!({"delta": object(delta, &[])}),
        "delta",
        "ChatLogprobs",
    )
}

fn text_choice() -> Value {
    choice(json!({"text": {"type": "string"}}), "text", "TextLogprobs")
}

fn chat_logprobs() -> Value {
    let mut token = json!({
        "token": {"type": "string"},
        "logprob": {"type": "number"},
        "bytes": array(&json!({"type": "integer", "minimum": 0, "maximum": 255})),
    });
    let top = object(token.clone(), &["token", "logprob", "bytes"]);
    token["top_logprobs"] = array(&top);
    let token = object(token, &["token", "logprob", "bytes", "top_logprobs"]);
    let fields = json!({"content": array(&token), "refusal": {"type": "null"}});
    object(fields, &["content", "refusal"])
}

fn text_logprobs() -> Value {
    let number = json!({"type": "number"});
    let fields = json!({
        "tokens": array(&json!({"type": "string"})),
        "token_logprobs": array(&number),
        "top_logprobs": array(&json!({"type": "object", "additionalProperties": number})),
        "text_offset": array(&json!({"type": "integer", "minimum": 0})),
    });
    let required = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    object(fields, &required)
}

fn model(count: &Value) -> Value {
    let fields = json!({
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": count,
        "owned_by": {"type": "string"},
        "max_model_len": count,
    });
    let required = ["id", "object", "created", "owned_by", "max_model_len"];
    object(fields, &required)
}

fn state(count: &Value) -> Value {
    let states = [
        "ready",
        "busy",
        "draining",
        "stopped",
        "recovering",
        "broken",
        "dead",
    ];
    let fields = json!({
        "state": described(
            json!({"enum": states}),
            "The other fields are for the operator; others see `busy` as `ready`",
        ),
        "reason": {"type": ["string", "null"]},
        "running": count,
        "waiting": count,
        "paused": count,
        "disk_degraded": {"type": "boolean"},
        "pager_lost": {"type": "boolean"},
    });
    object(fields, &["state"])
}

fn array(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}
