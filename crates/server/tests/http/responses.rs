//! The Responses API on the oracle: answers, their events, and bad input.

use crate::common::client::{CHAT, Server, post, whole};
use crate::common::responses::{
    RESPONSES, ask, assert_rejected, clock, comparable, events, id, joined, kinds, letters, parsed,
    text,
};
use axum::http::StatusCode;
use motet::Shutdown;
use serde_json::{Value, json};

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

/// A message counts the written tokens as its `input_tokens`.
#[tokio::test]
async fn tokens_that_were_not_cached_are_written_to_the_cache() {
    let server = Server::new().await;
    let question = "What is a motet? ".repeat(8);
    let body = ask(json!({"input": question, "stream": false}));
    let parted = |usage: &Value| {
        let details = &usage["input_tokens_details"];
        let tokens = |value: &Value| value.as_u64().expect("a number");
        let (cached, written) = (&details["cached_tokens"], &details["cache_write_tokens"]);
        let (cached, written) = (tokens(cached), tokens(written));
        assert_eq!(cached + written, tokens(&usage["input_tokens"]));
        (cached, written)
    };
    let first = server.post(RESPONSES, &body).await.ok();
    let (cached, prompt_tokens) = parted(&first["usage"]);
    assert_eq!(cached, 0);
    assert!(prompt_tokens > question.len() as u64);

    // The last token is computed again, since its logits are needed.
    let second = server.post(RESPONSES, &body).await.ok();
    assert_eq!(parted(&second["usage"]), (prompt_tokens - 1, 1));

    let more = question.clone() + "And what is a madrigal?";
    let added = (more.len() - question.len()) as u64;
    let more = json!({"input": more, "stream": true});
    let events = events(&server, &ask(more)).await;
    let (cached, written) = parted(&events.last().expect("an end")["response"]["usage"]);
    assert!(
        cached >= question.len() as u64,
        "{cached} tokens of the question"
    );
    assert!((added..prompt_tokens).contains(&written), "{written}");

    let message = json!({
        "max_tokens": 1,
        "system": "You are an oracle. ".repeat(8),
        "messages": [{"role": "user", "content": question}],
    });
    let message = server.post("/v1/messages", &message).await.ok();
    assert_eq!(message["usage"]["input_tokens"], 1);
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
    check(json!({"input": "x".repeat(9000)}), 400, "input").await;
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
    check(
        json!({"background": true, "store": false}),
        422,
        "background",
    )
    .await;
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
    check(json!({"top_logprobs": 21}), 400, "top_logprobs").await;
    check(
        json!({"reasoning": {"effort": "huge"}}),
        400,
        "reasoning.effort",
    )
    .await;
    check(
        json!({"text": {"format": {"type": "json_schema"}}}),
        400,
        "text.format.schema",
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
