//! The Responses API on the oracle: answers, their events, the store, and bad input.

mod common;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use common::client::{Answer, CHAT, Server, post, whole};
use motet::Shutdown;
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";

/// A greedy request with these additional fields.
fn ask(more: Value) -> Value {
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
fn letters() -> Value {
    let schema = json!({"type": "string", "pattern": "^[a-z]{4,12}$"});
    json!({"format": {"type": "json_schema", "name": "letters", "schema": schema}})
}

fn clock() -> Value {
    let zone = json!({"type": "string", "enum": ["here", "there"]});
    let parameters = json!({
        "type": "object", "properties": {"zone": zone},
        "required": ["zone"], "additionalProperties": false,
    });
    json!({"type": "function", "name": "clock", "description": "Tells the time.",
           "parameters": parameters})
}

/// The events of a stream, each of which has the name of its type.
async fn events(server: &Server, body: &Value) -> Vec<Value> {
    let response = server.send(post(RESPONSES, body)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let kind = &response.headers()[header::CONTENT_TYPE];
    assert_eq!(kind, "text/event-stream");
    parsed(&whole(response).await)
}

fn parsed(text: &str) -> Vec<Value> {
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

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().expect("a type"))
        .collect();
    kinds.dedup();
    kinds
}

fn joined(events: &[Value], kind: &str) -> String {
    let deltas = events.iter().filter(|event| event["type"] == kind);
    let deltas = deltas.map(|event| event["delta"].as_str().expect("text"));
    deltas.collect()
}

/// A response without what differs between two answers to one request.
fn comparable(response: &Value) -> Value {
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

fn text(response: &Value) -> &str {
    let text = &response["output"][0]["content"][0]["text"];
    text.as_str()
        .unwrap_or_else(|| panic!("no text: {response}"))
}

fn id(response: &Value) -> &str {
    response["id"].as_str().expect("an id")
}

#[track_caller]
fn assert_rejected(answer: &Answer, status: u16, field: &str) {
    assert_eq!(answer.status, status, "{field}: {}", answer.body);
    assert_eq!(answer.body["error"]["param"], field, "{}", answer.body);
    assert!(answer.body["error"]["message"].to_string().contains(field));
}

#[tokio::test]
async fn streamed_and_whole_responses_agree() {
    let server = Server::new().await;
    let response = server.post(RESPONSES, &ask(json!({}))).await.ok();
    assert_eq!(response["object"], "response");
    assert_eq!(response["output"][0]["type"], "message");
    assert_eq!(response["output"][0]["role"], "assistant");
    let usage = &response["usage"];
    let tokens = |field: &str| usage[field].as_u64().expect("a number");
    assert_eq!(
        tokens("total_tokens"),
        tokens("input_tokens") + tokens("output_tokens")
    );
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
    let (status, last) = match response["status"].as_str() {
        Some("completed") => ("completed", "response.completed"),
        _ => ("incomplete", "response.incomplete"),
    };
    assert_eq!(response["status"], status);

    let events = events(&server, &ask(json!({"stream": true}))).await;
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        last,
    ];
    assert_eq!(kinds(&events), expected);
    assert_eq!(
        joined(&events, "response.output_text.delta"),
        text(&response)
    );
    let ended = &events.last().expect("an end")["response"];
    assert_eq!(comparable(ended), comparable(&response));
    let begun = &events[0]["response"];
    assert_eq!(begun["status"], "in_progress");
    assert_eq!((&begun["id"], &begun["output"]), (&ended["id"], &json!([])));
    assert_ne!(begun["id"], response["id"]);
}

#[tokio::test]
async fn response_repeats_the_request_with_its_defaults() {
    let server = Server::new().await;
    let response = server
        .post(RESPONSES, &json!({"input": "x", "max_output_tokens": 1}))
        .await;
    let response = response.ok();
    for (field, expected) in [
        ("model", json!("oracle")),
        ("status", json!("incomplete")),
        ("incomplete_details", json!({"reason": "max_output_tokens"})),
        ("error", Value::Null),
        ("store", json!(true)),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("text", json!({"format": {"type": "text"}})),
        ("truncation", json!("disabled")),
        ("metadata", json!({})),
        ("max_output_tokens", json!(1)),
        ("temperature", json!(1.0)),
        ("previous_response_id", Value::Null),
    ] {
        assert_eq!(response[field], expected, "{field}");
    }
    let body = ask(json!({
        "metadata": {"a": "b"}, "tools": [clock()], "tool_choice": "none", "text": letters(),
        "reasoning": {"effort": "low", "summary": "auto"}, "store": false, "user": "ann",
        "parallel_tool_calls": false, "top_p": 0.5, "include": ["reasoning.encrypted_content"],
    }));
    let response = server.post(RESPONSES, &body).await.ok();
    for field in [
        "metadata",
        "tool_choice",
        "reasoning",
        "store",
        "user",
        "top_p",
        "instructions",
    ] {
        assert_eq!(response[field], body[field], "{field}");
    }
    assert_eq!(
        response["text"]["format"]["schema"],
        body["text"]["format"]["schema"]
    );
    assert_eq!(
        response["tools"][0]["parameters"],
        body["tools"][0]["parameters"]
    );
    assert_eq!(response["status"], "completed");
}

/// A request whose answer is reasoning and a call.
fn required_call() -> Value {
    ask(json!({
        "tools": [clock()], "tool_choice": "required", "parallel_tool_calls": false,
        "reasoning": {"effort": "low", "summary": "auto"}, "thinking_token_budget": 16,
        "max_output_tokens": 2000,
    }))
}

#[tokio::test]
async fn reasoning_and_call_are_streamed_items() {
    let server = Server::new().await;
    let response = server.post(RESPONSES, &required_call()).await.ok();
    assert_eq!(response["status"], "completed", "{response}");
    let (reasoning, call) = (&response["output"][0], &response["output"][1]);
    assert_eq!(reasoning["type"], "reasoning");
    assert_eq!(reasoning["content"][0]["type"], "reasoning_text");
    assert_eq!(
        reasoning["summary"][0]["text"],
        reasoning["content"][0]["text"]
    );
    let details = &response["usage"]["output_tokens_details"];
    assert!(details["reasoning_tokens"].as_u64() > Some(0), "{response}");
    let expected = (&json!("function_call"), &json!("clock"));
    assert_eq!((&call["type"], &call["name"]), expected);
    let arguments = call["arguments"].as_str().expect("text");
    let parsed: Value = serde_json::from_str(arguments).expect("JSON");
    assert!(["here", "there"].contains(&parsed["zone"].as_str().expect("a zone")));

    let mut streamed = required_call();
    streamed["stream"] = json!(true);
    let events = events(&server, &streamed).await;
    let text = joined(&events, "response.reasoning_text.delta");
    assert_eq!(text, reasoning["content"][0]["text"]);
    let summary = joined(&events, "response.reasoning_summary_text.delta");
    assert_eq!(summary, text);
    let deltas = joined(&events, "response.function_call_arguments.delta");
    assert_eq!(deltas, arguments);
    let expected = [
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    let kinds = kinds(&events);
    assert_eq!(kinds[kinds.len() - expected.len()..], expected);
    let ended = &events.last().expect("an end")["response"];
    assert_eq!(comparable(ended), comparable(&response));
}

#[tokio::test]
async fn call_is_answered_by_the_store_or_by_the_clients_own_items() {
    let server = Server::new().await;
    let response = server.post(RESPONSES, &required_call()).await.ok();
    let (reasoning, call) = (&response["output"][0], &response["output"][1]);
    let result = |call_id: &Value| json!({"type": "function_call_output", "call_id": call_id, "output": "noon"});
    let next = |input: Value, previous: Option<&str>| {
        ask(json!({"input": input, "previous_response_id": previous, "text": letters()}))
    };
    let own = async |more: &[&Value]| {
        let mut items = vec![json!({"role": "user", "content": "What will be?"})];
        items.extend(more.iter().copied().cloned());
        items.push(result(&call["call_id"]));
        server.post(RESPONSES, &next(json!(items), None)).await.ok()
    };
    let body = next(json!([result(&call["call_id"])]), Some(id(&response)));
    let stored = server.post(RESPONSES, &body).await.ok();
    let same = own(&[reasoning, call]).await;
    assert_eq!(
        stored["usage"]["input_tokens"],
        same["usage"]["input_tokens"]
    );
    assert_eq!(text(&stored), text(&same));
    // Reasoning is a part of the prompt.
    let without = own(&[call]).await;
    assert!(without["usage"]["input_tokens"].as_u64() < same["usage"]["input_tokens"].as_u64());

    let body = next(json!([result(&json!("other"))]), Some(id(&response)));
    let answer = server.post(RESPONSES, &body).await;
    assert_rejected(&answer, 400, "input[0].call_id");
}

#[tokio::test]
async fn cached_tokens_grow_by_turn() {
    let server = Server::new().await;
    let mut previous: Option<Value> = None;
    let mut messages = vec![json!({"role": "system", "content": "You are an oracle. ".repeat(8)})];
    for turn in 0..4 {
        let question = format!("Question {turn}?");
        let before = previous.as_ref().map(|response| id(response).to_owned());
        let more = json!({"input": question, "previous_response_id": before, "text": letters()});
        let response = server.post(RESPONSES, &ask(more)).await.ok();
        assert_eq!(response["status"], "completed", "{response}");
        let tokens = |response: &Value, pointer: &str| {
            let tokens = response.pointer(&format!("/usage/{pointer}"));
            tokens.and_then(Value::as_u64).expect(pointer)
        };
        let cached = tokens(&response, "input_tokens_details/cached_tokens");
        if let Some(previous) = &previous {
            // A byte is a token. All of the last prompt and of its answer are cached.
            let history = tokens(previous, "input_tokens") + text(previous).len() as u64;
            assert!(cached + 1 >= history, "turn {turn}: {cached} of {history}");
        }
        // The prompt is that of chat completions.
        messages.push(json!({"role": "user", "content": question}));
        let chat = json!({"messages": messages, "max_tokens": 1, "temperature": 0});
        let chat = server.post(CHAT, &chat).await.ok();
        assert_eq!(
            chat["usage"]["prompt_tokens"],
            response["usage"]["input_tokens"]
        );
        let cached = &chat["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached.as_u64(), Some(tokens(&response, "input_tokens") - 1));
        messages.push(json!({"role": "assistant", "content": text(&response)}));
        previous = Some(response);
    }
}

#[tokio::test]
async fn text_follows_its_format() {
    let server = Server::new().await;
    let response = server
        .post(RESPONSES, &ask(json!({"text": letters()})))
        .await
        .ok();
    let letters: String = serde_json::from_str(text(&response)).expect("JSON");
    assert!((4..=12).contains(&letters.len()) && letters.bytes().all(|b| b.is_ascii_lowercase()));
}

#[tokio::test]
async fn log_probabilities_belong_to_the_text() {
    let server = Server::new().await;
    let more = json!({
        "text": letters(), "include": ["message.output_text.logprobs"], "top_logprobs": 2,
    });
    let response = server.post(RESPONSES, &ask(more.clone())).await.ok();
    let logprobs = response["output"][0]["content"][0]["logprobs"].as_array();
    let logprobs = logprobs.expect("as asked");
    let tokens: String = logprobs
        .iter()
        .filter_map(|entry| entry["token"].as_str())
        .collect();
    assert!(tokens.starts_with(text(&response)), "{tokens}");
    assert!(
        logprobs
            .iter()
            .all(|entry| entry["top_logprobs"].as_array().map(Vec::len) == Some(2))
    );

    let mut more = more;
    more["stream"] = json!(true);
    let events = events(&server, &ask(more)).await;
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    let streamed: Vec<&Value> = deltas
        .flat_map(|event| event["logprobs"].as_array().expect("a list"))
        .collect();
    assert_eq!(streamed, logprobs.iter().collect::<Vec<_>>());

    let without = server.post(RESPONSES, &ask(json!({}))).await.ok();
    assert_eq!(without["output"][0]["content"][0]["logprobs"], json!([]));
}

#[tokio::test]
async fn stored_response_is_read_and_deleted() {
    let server = Server::new().await;
    let input = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "What will be?"}]},
    ]);
    let response = server
        .post(RESPONSES, &ask(json!({"input": input})))
        .await
        .ok();
    let path = format!("{RESPONSES}/{}", id(&response));
    assert_eq!(server.get(&path).await.ok(), response);

    let items = server
        .get(&format!("{path}/input_items?order=asc"))
        .await
        .ok();
    let texts: Vec<_> = items["data"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| (&item["role"], &item["content"][0]["text"]))
        .collect();
    let expected = [
        (&json!("developer"), &json!("Be brief.")),
        (&json!("user"), &json!("What will be?")),
    ];
    assert_eq!(texts, expected);
    assert_eq!(items["has_more"], false);
    assert_eq!(items["first_id"], items["data"][0]["id"]);
    let page = server
        .get(&format!("{path}/input_items?limit=1"))
        .await
        .ok();
    assert_eq!(page["data"], json!([items["data"][1]]));
    assert_eq!(page["has_more"], true);
    let wrong = server.get(&format!("{path}/input_items?limit=0")).await;
    assert_rejected(&wrong, 400, "limit");
    let streamed = server.get(&format!("{path}?stream=true")).await;
    assert_rejected(&streamed, 422, "stream");

    // An item is found by its id.
    let reference = json!([
        {"type": "item_reference", "id": response["output"][0]["id"]},
        {"role": "user", "content": "Why?"},
    ]);
    server
        .post(RESPONSES, &ask(json!({"input": reference})))
        .await
        .ok();

    let delete = || {
        let request = Request::builder().method(Method::DELETE).uri(&path);
        server.send(request.body(Body::empty()).expect("a request"))
    };
    let deleted = Answer::of(delete().await).await.ok();
    let expected = json!({"id": id(&response), "object": "response", "deleted": true});
    assert_eq!(deleted, expected);
    assert_eq!(
        Answer::of(delete().await).await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(server.get(&path).await.status, StatusCode::NOT_FOUND);
    let answer = server
        .post(RESPONSES, &ask(json!({"input": reference})))
        .await;
    assert_rejected(&answer, 400, "input[0].id");
}

#[tokio::test]
async fn streamed_response_is_stored_and_others_are_not() {
    let server = Server::new().await;
    let all = events(&server, &ask(json!({"stream": true}))).await;
    let response = &all.last().expect("an end")["response"];
    let path = format!("{RESPONSES}/{}", id(response));
    assert_eq!(server.get(&path).await.ok(), *response);

    let response = server
        .post(RESPONSES, &ask(json!({"store": false})))
        .await
        .ok();
    assert_eq!(response["store"], false);
    let path = format!("{RESPONSES}/{}", id(&response));
    let unknown = server.get(&path).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(unknown.body["error"]["code"], "response_not_found");
}

#[tokio::test]
async fn store_forgets_and_says_so() {
    let server = Server::with("--stored-responses-max 2", "").await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let more = json!({"previous_response_id": ids.last()});
        let response = server.post(RESPONSES, &ask(more)).await.ok();
        ids.push(id(&response).to_owned());
    }
    let forgotten = server.get(&format!("{RESPONSES}/{}", ids[0])).await;
    assert_eq!(forgotten.status, StatusCode::NOT_FOUND);
    let message = forgotten.body["error"]["message"].to_string();
    let expected = "unknown or forgotten; the store keeps at most 2 responses / 67108864 bytes";
    assert!(message.contains(expected), "{message}");
    let more = ask(json!({"previous_response_id": ids[0]}));
    for answer in [
        server.post(RESPONSES, &more).await,
        server
            .post(RESPONSES, &ask(json!({"previous_response_id": "resp_1"})))
            .await,
    ] {
        assert_rejected(&answer, 400, "previous_response_id");
        assert_eq!(answer.body["error"]["code"], "previous_response_not_found");
    }
    // The newest still continues the whole conversation.
    let last = server.get(&format!("{RESPONSES}/{}", ids[2])).await.ok();
    let next = server
        .post(RESPONSES, &ask(json!({"previous_response_id": ids[2]})))
        .await
        .ok();
    assert!(next["usage"]["input_tokens"].as_u64() > last["usage"]["input_tokens"].as_u64());
}

#[tokio::test]
async fn conversation_longer_than_the_store_is_answered_and_not_kept() {
    let server = Server::with("--stored-bytes-max 8000", "").await;
    let short = server.post(RESPONSES, &ask(json!({}))).await.ok();
    let long = ask(json!({"input": "x".repeat(7000)}));
    let long = server.post(RESPONSES, &long).await.ok();
    let status = |response: &Value| {
        let path = format!("{RESPONSES}/{}", id(response));
        let server = &server;
        async move { server.get(&path).await.status }
    };
    assert_eq!(status(&long).await, StatusCode::NOT_FOUND);
    assert_eq!(status(&short).await, StatusCode::OK);
}

#[tokio::test]
async fn store_can_be_turned_off() {
    let server = Server::with("--stored-responses-max 0", "").await;
    let response = server.post(RESPONSES, &ask(json!({}))).await.ok();
    assert_eq!(response["store"], false);
    let answer = server.post(RESPONSES, &ask(json!({"store": true}))).await;
    assert_rejected(&answer, 422, "store");
}

#[tokio::test]
async fn key_sees_only_its_own_responses() {
    let server = Server::with("", "ann secret-a\nbob secret-b").await;
    let send = async |method: Method, path: &str, key: &str, body: Option<&Value>| {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, format!("Bearer {key}"))
            .header(header::CONTENT_TYPE, "application/json");
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        Answer::of(server.send(request.body(body).expect("a request")).await).await
    };
    let body = ask(json!({}));
    let response = send(Method::POST, RESPONSES, "secret-a", Some(&body))
        .await
        .ok();
    let path = format!("{RESPONSES}/{}", id(&response));
    let items = format!("{path}/input_items");
    for (method, path) in [
        (Method::GET, &path),
        (Method::GET, &items),
        (Method::DELETE, &path),
    ] {
        let answer = send(method, path, "secret-b", None).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
    }
    let next = ask(json!({"previous_response_id": id(&response)}));
    let answer = send(Method::POST, RESPONSES, "secret-b", Some(&next)).await;
    assert_rejected(&answer, 400, "previous_response_id");
    let reference = json!([{"type": "item_reference", "id": response["output"][0]["id"]}]);
    let reference = ask(json!({"input": reference}));
    let answer = send(Method::POST, RESPONSES, "secret-b", Some(&reference)).await;
    assert_rejected(&answer, 400, "input[0].id");
    let answer = send(Method::GET, &path, "secret-c", None).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);

    send(Method::GET, &path, "secret-a", None).await.ok();
    send(Method::POST, RESPONSES, "secret-a", Some(&next))
        .await
        .ok();
    send(Method::DELETE, &path, "secret-a", None).await.ok();
}

#[tokio::test]
async fn failure_is_the_end_of_a_stream() {
    let server = Server::new().await;
    let schema = json!({"type": "string", "minLength": 5000});
    let format = json!({"format": {"type": "json_schema", "name": "long", "schema": schema}});
    let body = ask(json!({"stream": true, "text": format, "max_output_tokens": 8000}));
    let response = server.send(post(RESPONSES, &body)).await;
    assert_eq!(response.status(), StatusCode::OK);
    server.app.engine().shutdown(Shutdown::Abort).await;
    let events = parsed(&whole(response).await);
    let kinds = kinds(&events);
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    assert_eq!(kinds[kinds.len() - 2..], ["error", "response.failed"]);
    let error = &events[events.len() - 2];
    assert_eq!(error["code"], "draining");
    let failed = &events[events.len() - 1]["response"];
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["error"]["code"], "server_error");
    assert_eq!(failed["error"]["message"], error["message"]);
}

#[tokio::test]
async fn bad_input_is_rejected_by_field() {
    let server = Server::new().await;
    let check = async |more: Value, status: u16, field: &str| {
        let answer = server.post(RESPONSES, &ask(more)).await;
        assert_rejected(&answer, status, field);
    };
    check(json!({"input": null}), 400, "input").await;
    check(json!({"input": []}), 400, "input").await;
    check(
        json!({"input": [{"role": "robot", "content": "x"}]}),
        400,
        "input[0].role",
    )
    .await;
    check(
        json!({"input": [{"type": "computer_call", "id": "x"}]}),
        422,
        "input[0].type",
    )
    .await;
    check(json!({"background": true}), 422, "background").await;
    check(json!({"truncation": "auto"}), 422, "truncation").await;
    check(json!({"truncation": "some"}), 400, "truncation").await;
    check(json!({"conversation": "conv_1"}), 422, "conversation").await;
    check(json!({"prompt": {"id": "p"}}), 422, "prompt").await;
    check(json!({"include": ["everything"]}), 400, "include[0]").await;
    check(json!({"metadata": {"a": 1}}), 400, "metadata.a").await;
    check(json!({"metadata": {"a": "x".repeat(513)}}), 400, "metadata").await;
    check(json!({"model": "other"}), 404, "model").await;
    check(json!({"max_output_tokens": 0}), 400, "max_output_tokens").await;
    check(json!({"top_p": 2}), 400, "top_p").await;
    check(json!({"top_logprobs": 21}), 400, "logprobs").await;
    check(
        json!({"reasoning": {"effort": "huge"}}),
        400,
        "reasoning.effort",
    )
    .await;
    check(
        json!({"text": {"format": {"type": "json_schema"}}}),
        400,
        "text.format",
    )
    .await;
    let schema = json!({"type": "json_schema", "name": "x", "schema": {"type": "nothing"}});
    check(json!({"text": {"format": schema}}), 422, "text.format").await;
    check(
        json!({"tools": [{"type": "web_search"}]}),
        422,
        "tools[0].type",
    )
    .await;
    check(
        json!({"tools": [{"type": "function"}]}),
        400,
        "tools[0].name",
    )
    .await;
    check(json!({"tools": [clock(), clock()]}), 400, "tools[1].name").await;
    check(json!({"tool_choice": "required"}), 400, "tool_choice").await;
    let other = json!({"type": "function", "name": "other"});
    check(
        json!({"tools": [clock()], "tool_choice": other}),
        400,
        "tool_choice",
    )
    .await;
    check(
        json!({"tools": [clock()], "tool_choice": {"type": "mcp"}}),
        422,
        "tool_choice.type",
    )
    .await;
}
