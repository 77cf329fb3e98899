//! Why answers with calls end: a call is the reason only if it is complete, whole and streamed, in
//! all dialects.

use crate::common::client::{CHAT, MESSAGES, Server, chat};
use crate::common::responses::{RESPONSES, ask, events};
use serde_json::{Value, json};

/// A tool with one argument of these two values.
fn schema(name: &str, values: [&str; 2]) -> Value {
    json!({"type": "object", "properties": {name: {"enum": values}}, "required": [name],
           "additionalProperties": false})
}

/// A conversation whose answer is calls of two tools.
fn calling(seed: u64, more: Value) -> Value {
    let tool = |name: &str, parameters: Value| {
        let function = json!({"name": name, "parameters": parameters});
        json!({"type": "function", "function": function})
    };
    let tools = [
        tool("clock", schema("zone", ["utc", "cet"])),
        tool("turn", schema("side", ["left", "right"])),
    ];
    let mut body = chat(json!({
        "tools": tools, "tool_choice": "required", "temperature": 1, "seed": seed,
        "max_tokens": 2000,
    }));
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

/// The same for Messages.
fn messages(seed: u64, more: Value) -> Value {
    let tools = json!([
        {"name": "clock", "input_schema": schema("zone", ["utc", "cet"])},
        {"name": "turn", "input_schema": schema("side", ["left", "right"])},
    ]);
    let mut body = json!({
        "max_tokens": 2000, "messages": [{"role": "user", "content": "What will be?"}],
        "tools": tools, "tool_choice": {"type": "any"}, "temperature": 1, "seed": seed,
    });
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

/// Names and arguments of the calls, and the reason of the end, of one choice.
fn outcome(choice: &Value) -> (Vec<(String, String)>, String) {
    let calls = choice["message"]["tool_calls"].as_array();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let calls = calls.into_iter().flatten().map(|call| {
        let function = &call["function"];
        (text(&function["name"]), text(&function["arguments"]))
    });
    (calls.collect(), text(&choice["finish_reason"]))
}

/// The same of a stream with one choice.
async fn streamed(server: &Server, mut body: Value) -> (Vec<(String, String)>, String) {
    body["stream"] = json!(true);
    let mut calls: Vec<(String, String)> = Vec::new();
    let mut reason = String::new();
    for event in server.stream(CHAT, &body).await {
        let choice = &event["choices"][0];
        for delta in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let function = &delta["function"];
            if let Some(name) = function["name"].as_str() {
                calls.push((name.to_owned(), String::new()));
            }
            let more = function["arguments"].as_str().expect("text");
            calls.last_mut().expect("a call").1.push_str(more);
        }
        reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    (calls, reason)
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

#[tokio::test]
async fn stop_string_within_a_call_is_the_reason() {
    let server = Server::new().await;
    for seed in 0..3 {
        let body = calling(seed, json!({"stop": ["zone", "side"]}));
        let answer = server.post(CHAT, &body).await.ok();
        let (calls, reason) = outcome(&answer["choices"][0]);
        assert_eq!(reason, "stop", "{answer}");
        assert!(calls.len() == 1 && !is_json(&calls[0].1), "{calls:?}");
        assert_eq!(streamed(&server, body).await, (calls, reason));
    }
}

/// A value that a later call has and no call before it: a stop string that cuts that call off.
fn later_value(calls: &[(String, String)]) -> Option<&'static str> {
    let first = |value: &str| {
        calls
            .iter()
            .position(|(_, arguments)| arguments.contains(value))
    };
    let values = ["utc", "cet", "left", "right"].into_iter();
    values
        .max_by_key(|value| first(value))
        .filter(|value| first(value) > Some(0))
}

#[tokio::test]
async fn complete_call_is_the_reason_though_the_next_is_cut() {
    let server = Server::new().await;
    let mut found = 0;
    for seed in 0..60 {
        let whole = server.post(CHAT, &calling(seed, json!({}))).await.ok();
        let (calls, reason) = outcome(&whole["choices"][0]);
        assert_eq!(reason, "tool_calls");
        let Some(stop) = later_value(&calls) else {
            continue;
        };
        found += 1;
        let body = calling(seed, json!({"stop": stop}));
        let answer = server.post(CHAT, &body).await.ok();
        let (calls, reason) = outcome(&answer["choices"][0]);
        assert_eq!(reason, "tool_calls", "{answer}");
        let (last, before) = calls.split_last().expect("calls");
        assert!(!is_json(&last.1) && !before.is_empty(), "{calls:?}");
        assert!(before.iter().all(|call| is_json(&call.1)), "{calls:?}");
        assert_eq!(streamed(&server, body).await, (calls, reason));
        if found == 3 {
            return;
        }
    }
    panic!("no seed makes two calls that differ");
}

#[tokio::test]
async fn each_of_several_answers_has_its_own_reason() {
    let server = Server::new().await;
    let body = calling(
        1,
        json!({"n": 6, "stop": "side", "parallel_tool_calls": false}),
    );
    let answer = server.post(CHAT, &body).await.ok();
    for choice in answer["choices"].as_array().expect("choices") {
        let (calls, reason) = outcome(choice);
        let expected = if is_json(&calls[0].1) {
            "tool_calls"
        } else {
            "stop"
        };
        assert_eq!((calls.len(), &*reason), (1, expected), "{answer}");
    }
}

/// The type, the name and the input of each block of a stream, as clients collect them.
fn collected(events: &[(String, Value)]) -> (Vec<Value>, Value) {
    let mut blocks = Vec::new();
    let mut stop = Value::Null;
    for (name, event) in events {
        match &**name {
            "content_block_start" => blocks.push(event["content_block"]["name"].clone()),
            "message_delta" => stop = event["delta"]["stop_reason"].clone(),
            _ => {}
        }
    }
    (blocks, stop)
}

#[tokio::test]
async fn messages_have_the_same_reasons_and_blocks_whole_and_streamed() {
    let server = Server::new().await;
    let stopped = json!({"stop_sequences": ["zone", "side"]});
    for (more, expected) in [
        (stopped, "stop_sequence"),
        (json!({"max_tokens": 36}), "max_tokens"),
        (json!({}), "tool_use"),
    ] {
        let mut body = messages(2, more);
        let answer = server.post(MESSAGES, &body).await.ok();
        assert_eq!(answer["stop_reason"], expected, "{answer}");
        let blocks = answer["content"].as_array().expect("blocks");
        let names: Vec<Value> = blocks.iter().map(|block| block["name"].clone()).collect();
        assert!(
            blocks.iter().all(|block| block["type"] == "tool_use"),
            "{answer}"
        );
        assert!(
            blocks.iter().all(|block| block["input"].is_object()),
            "{answer}"
        );
        body["stream"] = json!(true);
        let streamed = collected(&server.events(MESSAGES, &body).await);
        assert_eq!(streamed, (names, json!(expected)));
    }
}

#[tokio::test]
async fn call_of_a_response_is_completed_or_incomplete() {
    let server = Server::new().await;
    let tool =
        json!({"type": "function", "name": "clock", "parameters": schema("zone", ["utc", "cet"])});
    for (most, status) in [(36, "incomplete"), (2000, "completed")] {
        let mut body = ask(json!({
            "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
            "max_output_tokens": most,
        }));
        let answer = server.post(RESPONSES, &body).await.ok();
        assert_eq!(answer["status"], status, "{answer}");
        let call = &answer["output"][0];
        assert_eq!(call["status"], status, "{answer}");
        let arguments = call["arguments"].as_str().expect("text");
        assert_eq!(is_json(arguments), status == "completed", "{answer}");
        body["stream"] = json!(true);
        let events = events(&server, &body).await;
        let done = events
            .iter()
            .find(|event| event["type"] == "response.output_item.done");
        let item = &done.expect("an item")["item"];
        assert_eq!(
            (&item["status"], &item["arguments"]),
            (&call["status"], &call["arguments"])
        );
    }
}
