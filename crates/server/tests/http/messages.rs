//! The Messages API on the oracle.

use crate::common::client::{Answer, MESSAGES, Server, post};
use axum::http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

const COUNT: &str = "/v1/messages/count_tokens";

/// A request with these additional fields.
fn message(more: Value) -> Value {
    let mut body = json!({
        "model": "oracle",
        "system": "You are an oracle. ".repeat(8),
        "messages": [{"role": "user", "content": "What will be?"}],
        "max_tokens": 60,
        "temperature": 0,
    });
    body.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("fields").clone());
    body
}

fn clock() -> Value {
    let zone = json!({"type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}},
                      "required": ["zone"], "additionalProperties": false});
    json!({"name": "clock", "description": "The time.", "input_schema": zone})
}

/// The blocks of a stream, joined as clients join them; checks the order of the events.
fn joined(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    let mut is_open = false;
    for (name, event) in events {
        assert_eq!(event["type"], json!(name));
        let last = message["content"]
            .as_array()
            .map_or(0, Vec::len)
            .saturating_sub(1);
        match name.as_str() {
            "message_start" => {
                assert!(message.is_null());
                message = event["message"].clone();
                assert_eq!(message["content"], json!([]));
                assert_eq!(message["stop_reason"], Value::Null);
            }
            "content_block_start" => {
                assert!(!is_open);
                is_open = true;
                let blocks = message["content"].as_array_mut().expect("a list");
                assert_eq!(event["index"], blocks.len());
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(is_open && event["index"] == last);
                add(&mut message["content"][last], &event["delta"]);
            }
            "content_block_stop" => {
                assert!(is_open && event["index"] == last);
                is_open = false;
                let block = &mut message["content"][last];
                if let Some(json) = block.as_object_mut().and_then(|block| block.remove("json")) {
                    let json = json.as_str().expect("text");
                    block["input"] = serde_json::from_str(json).expect("JSON");
                }
            }
            "message_delta" => {
                assert!(!is_open);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "ping" => assert!(!message.is_null()),
            "message_stop" => assert!(std::ptr::eq(event, &events[events.len() - 1].1)),
            other => panic!("{other}"),
        }
    }
    let last = events.last().map(|(name, _)| name.as_str());
    assert_eq!(last, Some("message_stop"));
    message
}

/// Adds a delta to a block.
fn add(block: &mut Value, delta: &Value) {
    let (field, more) = match delta["type"].as_str() {
        Some("text_delta") => ("text", &delta["text"]),
        Some("thinking_delta") => ("thinking", &delta["thinking"]),
        Some("signature_delta") => ("signature", &delta["signature"]),
        Some("input_json_delta") => ("json", &delta["partial_json"]),
        _ => panic!("{delta}"),
    };
    let before = block[field].as_str().unwrap_or_default();
    block[field] = json!(format!("{before}{}", more.as_str().expect("text")));
}

/// A message without what differs from one to the next.
fn comparable(mut message: Value) -> Value {
    message["id"] = Value::Null;
    message["usage"] = Value::Null;
    for block in message["content"].as_array_mut().expect("blocks") {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    message
}

#[tokio::test]
async fn whole_and_streamed_messages_agree() {
    let server = Server::new().await;
    let first = server.post(MESSAGES, &message(json!({}))).await.ok();
    assert_eq!(first["type"], "message");
    assert_eq!(first["role"], "assistant");
    assert_eq!(first["content"][0]["type"], "text");
    assert_eq!(first["usage"]["cache_read_input_tokens"], 0);
    let prompt_tokens = first["usage"]["input_tokens"].as_u64().expect("a number");
    let counted = server.post(COUNT, &message(json!({}))).await.ok();
    assert_eq!(counted["input_tokens"], prompt_tokens);

    let events = server
        .events(MESSAGES, &message(json!({"stream": true})))
        .await;
    let streamed = joined(&events);
    assert_eq!(
        events[0].1["message"]["usage"]["input_tokens"],
        prompt_tokens
    );
    // All but the prompt's last token, which is always evaluated.
    let usage = &streamed["usage"];
    assert_eq!(usage["cache_read_input_tokens"], prompt_tokens - 1);
    assert_eq!(usage["input_tokens"], 1);
    assert_eq!(usage["output_tokens"], first["usage"]["output_tokens"]);
    assert_eq!(comparable(streamed), comparable(first));
}

#[tokio::test]
async fn calls_and_results_go_both_ways() {
    let server = Server::new().await;
    let more = json!({
        "tools": [clock()], "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "max_tokens": 2000, "temperature": 1, "seed": 4,
    });
    let answer = server.post(MESSAGES, &message(more.clone())).await.ok();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let blocks = answer["content"].as_array().expect("blocks");
    assert_eq!(blocks.len(), 1, "{answer}");
    assert_eq!(blocks[0]["name"], "clock");
    let zone = blocks[0]["input"]["zone"].as_str().expect("a zone");
    assert!(["utc", "cet"].contains(&zone));

    let mut body = message(more);
    body["stream"] = json!(true);
    let streamed = joined(&server.events(MESSAGES, &body).await);
    assert_eq!(comparable(streamed), comparable(answer.clone()));

    let result = json!({"type": "tool_result", "tool_use_id": blocks[0]["id"], "content": "noon"});
    let conversation = json!([
        {"role": "user", "content": "What time?"},
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]);
    let more = json!({"messages": conversation, "tools": [clock()]});
    let next = server.post(MESSAGES, &message(more)).await.ok();
    assert!(next["usage"]["input_tokens"].as_u64() > Some(0));
}

#[tokio::test]
async fn thinking_is_a_block_of_its_own_within_its_budget() {
    let server = Server::new().await;
    let more = json!({
        "thinking": {"type": "enabled", "budget_tokens": 12}, "max_tokens": 400, "seed": 2,
    });
    let answer = server.post(MESSAGES, &message(more.clone())).await.ok();
    let thinking = &answer["content"][0];
    assert_eq!(thinking["type"], "thinking", "{answer}");
    let text = thinking["thinking"].as_str().expect("text");
    assert!((1..=12).contains(&text.chars().count()), "{answer}");
    assert_eq!(thinking["signature"].as_str().map(str::len), Some(64));
    let mut body = message(more);
    body["stream"] = json!(true);
    let streamed = joined(&server.events(MESSAGES, &body).await);
    assert_eq!(comparable(streamed), comparable(answer));
}

#[tokio::test]
async fn stop_sequences_and_lengths_are_different_reasons() {
    let server = Server::new().await;
    let free = server.post(MESSAGES, &message(json!({}))).await.ok();
    let text = free["content"][0]["text"].as_str().expect("text");
    let stop: String = text.chars().skip(5).take(3).collect();
    let body = message(json!({"stop_sequences": [stop]}));
    let stopped = server.post(MESSAGES, &body).await.ok();
    assert_eq!(stopped["stop_reason"], "stop_sequence", "{stopped}");
    assert_eq!(stopped["stop_sequence"], json!(stop));
    let body = message(json!({"max_tokens": 1}));
    let cut = server.post(MESSAGES, &body).await.ok();
    assert_eq!(cut["stop_reason"], "max_tokens");
    assert_eq!(cut["stop_sequence"], Value::Null);
}

#[tokio::test]
async fn text_follows_the_schema_of_the_output() {
    let server = Server::new().await;
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
                        "required": ["a"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "schema": schema}});
    let more = json!({"output_config": format, "max_tokens": 4000, "temperature": 1, "seed": 1});
    let answer = server.post(MESSAGES, &message(more)).await.ok();
    assert_eq!(answer["stop_reason"], "end_turn", "{answer}");
    let text = answer["content"][0]["text"].as_str().expect("text");
    let value: Value = serde_json::from_str(text).expect("JSON");
    assert!(value["a"] == "x" || value["a"] == "y", "{value}");
}

#[tokio::test]
async fn errors_have_the_shape_of_the_api_and_name_the_field() {
    let server = Server::new().await;
    let check = async |more: Value, status: u16, field: &str| {
        let answer = server.post(MESSAGES, &message(more)).await;
        assert_eq!(answer.status.as_u16(), status, "{field}: {}", answer.body);
        assert_eq!(answer.body["type"], "error");
        let kind = if status == 404 {
            "not_found_error"
        } else {
            "invalid_request_error"
        };
        assert_eq!(answer.body["error"]["type"], kind, "{}", answer.body);
        let message = answer.body["error"]["message"].as_str().expect("text");
        assert!(
            message.contains(&format!("`{field}`")) || status == 404,
            "{field}: {message}"
        );
        assert!(answer.body["request_id"].is_string());
        assert!(answer.body["error"].get("param").is_none());
    };
    check(json!({"model": "other"}), 404, "model").await;
    check(json!({"max_tokens": null}), 400, "max_tokens").await;
    check(json!({"max_tokens": 0}), 400, "max_tokens").await;
    check(json!({"temperature": -1}), 400, "temperature").await;
    check(json!({"messages": []}), 400, "messages").await;
    check(json!({"stop_sequences": [""]}), 400, "stop_sequences").await;
    check(
        json!({"tools": [{"input_schema": {"type": "object"}}]}),
        400,
        "tools[0].name",
    )
    .await;
    check(json!({"tools": [clock(), clock()]}), 400, "tools[1].name").await;
    check(
        json!({"tools": [{"name": "a"}]}),
        400,
        "tools[0].input_schema",
    )
    .await;
    let server_tool = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    check(json!({"tools": server_tool}), 422, "tools[0].type").await;
    let no_grammar = json!({"type": "object", "properties": {"x": {"type": 7}}});
    let no_grammar = json!([{"name": "a", "input_schema": no_grammar}]);
    let any = json!({"type": "any"});
    check(
        json!({"tools": no_grammar, "tool_choice": any}),
        422,
        "tools[0].input_schema",
    )
    .await;
    check(json!({"tool_choice": any}), 400, "tool_choice").await;
    let other = json!({"type": "tool", "name": "other"});
    check(
        json!({"tools": [clock()], "tool_choice": other}),
        400,
        "tool_choice",
    )
    .await;
    let nameless = json!({"type": "tool"});
    check(
        json!({"tools": [clock()], "tool_choice": nameless}),
        400,
        "tool_choice.name",
    )
    .await;
    let result = json!([{"type": "tool_result", "tool_use_id": "c1", "content": "noon"}]);
    let result = json!({"messages": [{"role": "user", "content": result}]});
    check(result, 400, "messages[0].content[0].tool_use_id").await;

    let budget = "thinking.budget_tokens";
    let thinking =
        |kind: &str, tokens: u64| json!({"thinking": {"type": kind, "budget_tokens": tokens}});
    check(thinking("enabled", 60), 400, budget).await;
    check(thinking("disabled", 10), 400, budget).await;
    let mut contradictory = json!({"thinking": {"type": "enabled"}});
    contradictory["output_config"] = json!({"effort": "none"});
    check(contradictory, 400, "output_config.effort").await;
    let off = json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}});
    server.post(MESSAGES, &message(off)).await.ok();
    let format = json!({"format": {"type": "json_schema", "schema": {"type": 7}}});
    check(
        json!({"output_config": format}),
        422,
        "output_config.format",
    )
    .await;

    let missing = server.post("/v1/messages/other", &json!({})).await;
    assert_eq!(missing.body["error"]["type"], "not_found_error");
    let chat = server.post("/v1/chat/completions", &json!({})).await;
    assert_eq!(
        chat.body["error"]["param"], "messages",
        "others keep their shape"
    );
}

#[tokio::test]
async fn key_may_come_in_its_own_header() {
    let server = Server::with("", "ann secret-a 1\n").await;
    let ask = async |name: &'static str, key: &'static str| {
        let mut request = post(MESSAGES, &message(json!({})));
        request
            .headers_mut()
            .insert(name, HeaderValue::from_static(key));
        let version = HeaderValue::from_static("2023-06-01");
        request.headers_mut().insert("anthropic-version", version);
        Answer::of(server.send(request).await).await
    };
    assert_eq!(ask("x-api-key", "secret-a").await.status, StatusCode::OK);
    let bearer = ask(header::AUTHORIZATION.as_str(), "Bearer secret-a").await;
    assert_eq!(bearer.status, StatusCode::OK);
    let rejected = ask("x-api-key", "other").await;
    assert_eq!(rejected.status, StatusCode::UNAUTHORIZED);
    assert_eq!(rejected.body["error"]["type"], "authentication_error");
}

#[tokio::test]
async fn draining_server_is_overloaded() {
    let server = Server::new().await;
    server.app.drain().await;
    let rejected = server.post(MESSAGES, &message(json!({}))).await;
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rejected.body["error"]["type"], "overloaded_error");
}
