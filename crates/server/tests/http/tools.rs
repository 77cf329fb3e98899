//! Tools, calls and reasoning in chat completions, on the oracle.

use crate::common::client::{CHAT, Server, chat};
use serde_json::{Value, json};

/// Two tools, whose calls are short.
fn tools() -> Value {
    let zone = json!({"type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}},
                      "required": ["zone"], "additionalProperties": false});
    let side = json!({"type": "object", "properties": {"side": {"enum": ["left", "right"]}},
                      "required": ["side"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "clock", "description": "The time.",
                                          "parameters": zone}},
        {"type": "function", "function": {"name": "turn", "parameters": side}},
    ])
}

/// A conversation with the tools, sampled.
fn with_tools(more: Value) -> Value {
    let mut body = chat(json!({
        "tools": tools(), "temperature": 1, "seed": 3, "max_tokens": 2000,
    }));
    body.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("fields").clone());
    body
}

#[track_caller]
fn check_call(call: &Value) {
    let id = call["id"].as_str().expect("an id");
    assert_eq!(id.len(), 9, "{call}");
    assert!(
        id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{call}"
    );
    assert_eq!(call["type"], "function");
    let arguments = call["function"]["arguments"].as_str().expect("text");
    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
    match call["function"]["name"].as_str() {
        Some("clock") => {
            assert!(["utc", "cet"].contains(&arguments["zone"].as_str().expect("text")))
        }
        Some("turn") => {
            assert!(["left", "right"].contains(&arguments["side"].as_str().expect("text")))
        }
        _ => panic!("{call}"),
    }
}

/// The calls of a stream's deltas, joined as clients join them.
fn joined_calls(events: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for event in events {
        let deltas = event["choices"][0]["delta"]["tool_calls"].as_array();
        for delta in deltas.into_iter().flatten() {
            let index = delta["index"].as_u64().expect("an index") as usize;
            let more = delta["function"]["arguments"].as_str().expect("text");
            if index == calls.len() {
                let mut call = delta.clone();
                call.as_object_mut().expect("an object").remove("index");
                calls.push(call);
                continue;
            }
            assert_eq!(index + 1, calls.len(), "one call after the other");
            assert!(delta.get("id").is_none() && delta["function"].get("name").is_none());
            let arguments = &mut calls[index]["function"]["arguments"];
            *arguments = json!(format!("{}{more}", arguments.as_str().expect("text")));
        }
    }
    calls
}

#[tokio::test]
async fn required_calls_are_the_same_whole_and_streamed() {
    let server = Server::new().await;
    let body = with_tools(json!({"tool_choice": "required"}));
    let answer = server.post(CHAT, &body).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let calls = choice["message"]["tool_calls"].as_array().expect("calls");
    calls.iter().for_each(check_call);

    let events = server
        .stream(
            CHAT,
            &with_tools(json!({"tool_choice": "required", "stream": true})),
        )
        .await;
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let last = events.last().expect("an event");
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    let streamed = joined_calls(&events);
    streamed.iter().for_each(check_call);
    let functions = |calls: &[Value]| -> Vec<Value> {
        calls.iter().map(|call| call["function"].clone()).collect()
    };
    assert_eq!(functions(&streamed), functions(calls));
}

#[tokio::test]
async fn named_tool_is_called_once_without_parallel_calls() {
    let server = Server::new().await;
    for seed in 0..8 {
        let choice = json!({"type": "function", "function": {"name": "turn"}});
        let more = json!({"tool_choice": choice, "parallel_tool_calls": false, "seed": seed});
        let answer = server.post(CHAT, &with_tools(more)).await.ok();
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
        let calls = calls.expect("calls");
        assert_eq!(calls.len(), 1, "{answer}");
        check_call(&calls[0]);
        assert_eq!(calls[0]["function"]["name"], "turn");
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[tokio::test]
async fn several_outputs_have_calls_of_their_own() {
    let server = Server::new().await;
    let more = json!({"tool_choice": "required", "parallel_tool_calls": false, "n": 3});
    let answer = server.post(CHAT, &with_tools(more)).await.ok();
    let choices = answer["choices"].as_array().expect("choices");
    let mut ids: Vec<&str> = Vec::new();
    for choice in choices {
        let call = &choice["message"]["tool_calls"][0];
        check_call(call);
        ids.push(call["id"].as_str().expect("an id"));
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[tokio::test]
async fn cut_off_call_has_the_length_as_its_reason() {
    let server = Server::new().await;
    let more = json!({"tool_choice": "required", "max_tokens": 3, "stream": true});
    let events = server.stream(CHAT, &with_tools(more)).await;
    let last = events.last().expect("an event");
    assert_eq!(last["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn log_probabilities_cover_calls_and_reasoning() {
    let server = Server::new().await;
    let forced = json!({
        "tool_choice": "required", "logprobs": true, "parallel_tool_calls": false, "seed": 1,
    });
    let answer = server.post(CHAT, &with_tools(forced)).await.ok();
    let content = answer["choices"][0]["logprobs"]["content"].as_array();
    let tokens = content.expect("log probabilities").len();
    // The server cancels the rest of an answer that has its only call. The brace behind the arguments
    // and the end token may have come before.
    let usage = answer["usage"]["completion_tokens"]
        .as_u64()
        .expect("usage") as usize;
    assert!((tokens..=tokens + 2).contains(&usage), "{answer}");
}

#[tokio::test]
async fn reasoning_is_parted_from_the_answer() {
    let server = Server::new().await;
    let variables = json!({"enable_thinking": true});
    let body = chat(json!({
        "chat_template_kwargs": variables, "thinking_token_budget": 12, "max_tokens": 60,
        "ignore_eos": true, "seed": 5,
    }));
    let answer = server.post(CHAT, &body).await.ok();
    let message = &answer["choices"][0]["message"];
    let reasoning = message["reasoning_content"].as_str().expect("reasoning");
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    let content = message["content"].as_str().expect("text");
    assert!(!reasoning.is_empty() && !content.is_empty(), "{answer}");
    assert!(!content.contains("</think>") && !reasoning.contains("</think>"));
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 12, "{answer}");

    let mut body = body;
    body["stream"] = json!(true);
    let events = server.stream(CHAT, &body).await;
    let join = |field: &str| -> String {
        let deltas = events
            .iter()
            .map(|event| &event["choices"][0]["delta"][field]);
        deltas.filter_map(Value::as_str).collect()
    };
    assert_eq!(join("reasoning_content"), reasoning);
    assert_eq!(join("reasoning"), reasoning);
    assert_eq!(join("content"), content);
    let has = |event: &Value, field: &str| {
        let text = event["choices"][0]["delta"][field].as_str();
        text.is_some_and(|text| !text.is_empty())
    };
    let last_thought = events
        .iter()
        .rposition(|event| has(event, "reasoning_content"));
    let first_text = events.iter().position(|event| has(event, "content"));
    assert!(last_thought < first_text, "the reasoning comes first");
}

#[tokio::test]
async fn effort_turns_reasoning_on_and_off() {
    let server = Server::new().await;
    let spell = async |body: Value| {
        let tokens = server.post("/tokenize", &body).await.ok();
        let tokens = json!({"tokens": tokens["tokens"]});
        let text = server.post("/detokenize", &tokens).await.ok();
        text["prompt"].as_str().expect("text").to_owned()
    };
    let messages = json!([{"role": "user", "content": "x"}]);
    let on = spell(json!({"messages": messages, "reasoning_effort": "high"})).await;
    assert!(on.ends_with("assistant: <think>"), "{on}");
    let off = spell(json!({"messages": messages, "reasoning_effort": "none"})).await;
    assert!(off.ends_with("assistant: "), "{off}");
    let before = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y", "reasoning": "z"},
        {"role": "user", "content": "x"},
    ]);
    let before = spell(json!({"messages": before})).await;
    assert!(
        before.contains("assistant: <think>z</think>y\n"),
        "{before}"
    );
}

#[tokio::test]
async fn invalid_tools_calls_and_settings_are_rejected_by_name() {
    let server = Server::new().await;
    let check = async |more: Value, status: u16, param: &str| {
        let body = chat(more);
        let answer = server.post(CHAT, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{param}: {}", answer.body);
        assert_eq!(answer.body["error"]["param"], param, "{}", answer.body);
        let message = answer.body["error"]["message"].as_str().expect("text");
        assert!(message.contains(param), "{message}");
    };
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    let with_schema = |schema: Value| tool(json!({"name": "a", "parameters": schema}));
    let name = "tools[0].function.name";
    check(json!({"tools": tool(json!({}))}), 400, name).await;
    check(json!({"tools": tool(json!({"name": ""}))}), 400, name).await;
    check(json!({"tools": tool(json!({"name": "a b"}))}), 400, name).await;
    check(json!({"tools": [{"type": "custom"}]}), 400, "tools[0].type").await;
    let twice = json!([tools()[0], tools()[0]]);
    check(json!({"tools": twice}), 400, "tools[1].function.name").await;
    let parameters = "tools[0].function.parameters";
    check(json!({"tools": with_schema(json!([]))}), 400, parameters).await;
    check(
        json!({"tools": with_schema(json!({"type": "string"}))}),
        400,
        parameters,
    )
    .await;
    let no_grammar = with_schema(json!({"type": "object", "properties": {"x": {"type": 7}}}));
    check(
        json!({"tools": no_grammar, "tool_choice": "required"}),
        422,
        parameters,
    )
    .await;
    check(json!({"tool_choice": "required"}), 400, "tool_choice").await;
    check(
        json!({"tools": tools(), "tool_choice": "any"}),
        400,
        "tool_choice",
    )
    .await;
    let named = json!({"type": "function", "function": {"name": "other"}});
    check(
        json!({"tools": tools(), "tool_choice": named}),
        400,
        "tool_choice",
    )
    .await;
    let format = json!({"type": "json_object"});
    check(
        json!({"tools": tools(), "response_format": format}),
        422,
        "response_format",
    )
    .await;

    let result = |id: Value| {
        json!({"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": id, "content": "noon"},
        ]})
    };
    let id = "messages[2].tool_call_id";
    check(result(json!("c2")), 400, id).await;
    check(result(Value::Null), 400, id).await;
    server.post(CHAT, &chat(result(json!("c1")))).await.ok();

    let effort = "reasoning_effort";
    check(json!({"reasoning_effort": "much"}), 400, effort).await;
    let on = json!({"enable_thinking": true});
    check(
        json!({"reasoning_effort": "none", "chat_template_kwargs": on}),
        400,
        effort,
    )
    .await;
    let other = json!({"reasoning_effort": "low"});
    check(
        json!({"reasoning_effort": "high", "chat_template_kwargs": other}),
        400,
        effort,
    )
    .await;
    let budget = "thinking_token_budget";
    check(
        json!({"reasoning_effort": "none", "thinking_token_budget": 4}),
        400,
        budget,
    )
    .await;
    check(
        json!({"logprobs": true, "thinking_token_budget": 4}),
        422,
        budget,
    )
    .await;
    let off = json!({"enable_thinking": false});
    check(
        json!({"chat_template_kwargs": off, "thinking_token_budget": 4}),
        400,
        budget,
    )
    .await;
}
