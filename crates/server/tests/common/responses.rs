//! Requests of the Responses API, and helpers for their answers.

use axum::http::{StatusCode, header};
use serde_json::{Value, json};

use super::client::{Answer, Server, post, whole};

pub(crate) const RESPONSES: &str = "/v1/responses";

/// A greedy request with these additional fields.
pub(crate) fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "oracle",
        "instructions": "You are an oracle. ".repeat(8),
        "input": "What will be?",
        "temperature": 0,
        "max_output_tokens": 40,
    });
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

/// A format whose texts are letters, so that they come back as the tokens that they were.
pub(crate) fn letters() -> Value {
    let schema = json!({"type": "string", "pattern": "^[a-z]{4,12}$"});
    json!({"format": {"type": "json_schema", "name": "letters", "schema": schema}})
}

pub(crate) fn clock() -> Value {
    let zone = json!({"type": "string", "enum": ["here", "there"]});
    let parameters = json!({
        "type": "object", "properties": {"zone": zone},
        "required": ["zone"], "additionalProperties": false,
    });
    json!({"type": "function", "name": "clock", "description": "Tells the time.",
           "parameters": parameters})
}

/// The events of a stream, each of which has the name of its type.
pub(crate) async fn events(server: &Server, body: &Value) -> Vec<Value> {
    let response = server.send(post(RESPONSES, body)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let kind = &response.headers()[header::CONTENT_TYPE];
    assert_eq!(kind, "text/event-stream");
    parsed(&whole(response).await)
}

pub(crate) fn parsed(text: &str) -> Vec<Value> {
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    let events = events.map(|event| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data = data.strip_prefix("data: ").expect("data");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(data["type"], name.strip_prefix("event: ").expect("a name"));
        data
    });
    let events: Vec<Value> = events.collect();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    events
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().expect("a type"))
        .collect();
    kinds.dedup();
    kinds
}

pub(crate) fn joined(events: &[Value], kind: &str) -> String {
    let deltas = events.iter().filter(|event| event["type"] == kind);
    let deltas = deltas.map(|event| event["delta"].as_str().expect("text"));
    deltas.collect()
}

/// A response without what differs between two answers to one request.
pub(crate) fn comparable(response: &Value) -> Value {
    let mut response = response.clone();
    for field in ["id", "created_at", "completed_at"] {
        response[field] = Value::Null;
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    for item in response["output"].as_array_mut().expect("items") {
        item["id"] = Value::Null;
        if !item["call_id"].is_null() {
            item["call_id"] = json!("call");
        }
    }
    response
}

pub(crate) fn text(response: &Value) -> &str {
    let text = &response["output"][0]["content"][0]["text"];
    text.as_str()
        .unwrap_or_else(|| panic!("no text: {response}"))
}

pub(crate) fn id(response: &Value) -> &str {
    response["id"].as_str().expect("an id")
}

#[track_caller]
pub(crate) fn assert_rejected(answer: &Answer, status: u16, field: &str) {
    assert_eq!(answer.status, status, "{field}: {}", answer.body);
    assert_eq!(answer.body["error"]["param"], field, "{}", answer.body);
    assert!(answer.body["error"]["message"].to_string().contains(field));
}
