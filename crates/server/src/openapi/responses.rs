//! The operations of the Responses API.

use serde_json::{Value, json};

use super::operations::{GENERATED, get, post, reference, rejected};
use crate::responses::stored::{LIMIT, LIMIT_MAX};

/// The paths and their operations.
pub(super) fn paths() -> [(&'static str, Value); 4] {
    let mut one = get("A response", true, "Response", &[400, 404, 422]);
    one["get"]["responses"]["200"]["content"]["text/event-stream"] = events();
    let stream = "Its events, while it is in the background and for some time after its end";
    let after = "The number of the event after which they begin";
    one["get"]["parameters"] = json!([
        named(),
        query("stream", stream, &json!({"type": "boolean"})),
        query(
            "starting_after",
            after,
            &json!({"type": "integer", "minimum": 0})
        ),
    ]);
    one["delete"] = delete();
    [
        ("/v1/responses", create()),
        ("/v1/responses/{id}", one),
        ("/v1/responses/{id}/cancel", cancel()),
        ("/v1/responses/{id}/input_items", input_items()),
    ]
}

fn create() -> Value {
    let mut path = post("Answer a conversation", "ResponseRequest", "Response");
    let responses = &mut path["post"]["responses"];
    responses["200"]["content"]["text/event-stream"] = events();
    for (status, error) in rejected(&[&GENERATED]) {
        responses[status] = error;
    }
    path
}

fn delete() -> Value {
    let summary = "Forget a response. Later responses that continue it keep its conversation";
    let mut deletion = get(summary, true, "ResponseDeleted", &[400, 404])["get"].take();
    deletion["parameters"] = json!([named()]);
    deletion
}

fn cancel() -> Value {
    let summary = "End a response that is in the background";
    let mut cancelled = get(summary, true, "Response", &[400, 404])["get"].take();
    cancelled["parameters"] = json!([named()]);
    json!({"post": cancelled})
}

fn input_items() -> Value {
    let summary = "The items of a stored response's request";
    let mut path = get(summary, true, "ResponseItems", &[400, 404]);
    let limit = json!({"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT});
    let order = json!({"enum": ["asc", "desc"], "default": "desc"});
    path["get"]["parameters"] = json!([
        named(),
        query("limit", "Most items of the list", &limit),
        query(
            "order",
            "Whether the newest item is the first or the last",
            &order
        ),
        query(
            "after",
            "The id of the item before the list",
            &json!({"type": "string"})
        ),
    ]);
    path
}

fn named() -> Value {
    json!({
        "name": "id", "in": "path", "required": true,
        "schema": {"type": "string", "minLength": 1},
    })
}

fn query(name: &str, description: &str, schema: &Value) -> Value {
    json!({"name": name, "in": "query", "description": description, "schema": schema})
}

/// A streamed answer.
fn events() -> Value {
    let data = json!({
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": reference("ResponseEvent"),
    });
    json!({"itemSchema": {
        "type": "object",
        "description": "With `stream`. The name of an event is its type",
        "properties": {"event": {"type": "string"}, "data": data},
        "required": ["event", "data"],
    }})
}
