//! Errors that clients act on: of each field and each type that it may wrongly have, of prompts
//! that are too long, and of token ids that no token has.

use std::collections::BTreeSet;

use crate::common::client::{Answer, CHAT, MESSAGES, Server, TEXT};
use crate::common::responses::RESPONSES;
use serde_json::{Map, Value, json};

/// Routes, the schemas of their bodies, and the smallest bodies that they answer.
fn routes() -> Vec<(&'static str, &'static str, Value)> {
    let messages = json!([{"role": "user", "content": "a"}]);
    vec![
        (
            CHAT,
            "ChatRequest",
            json!({"messages": messages, "max_tokens": 1}),
        ),
        (TEXT, "TextRequest", json!({"prompt": "a", "max_tokens": 1})),
        (
            RESPONSES,
            "ResponseRequest",
            json!({"input": "a", "max_output_tokens": 1}),
        ),
        (
            MESSAGES,
            "MessagesRequest",
            json!({"messages": messages, "max_tokens": 1}),
        ),
        (
            "/v1/messages/count_tokens",
            "CountTokens",
            json!({"messages": messages}),
        ),
        ("/v1/embeddings", "EmbeddingRequest", json!({"input": "a"})),
        ("/tokenize", "Tokenize", json!({"prompt": "a"})),
        ("/detokenize", "Detokenize", json!({"tokens": [1]})),
    ]
}

/// Values of every type of JSON.
fn values() -> Vec<Value> {
    let large = serde_json::from_str("123456789012345678901234567890").expect("a number");
    vec![
        json!(null),
        json!(true),
        json!(7),
        json!(-7),
        json!(1.5),
        json!(3.0),
        json!(1e30),
        large,
        json!("x"),
        json!(""),
        json!([]),
        json!([null]),
        json!(["x"]),
        json!([[1.5]]),
        json!([true]),
        json!({}),
        json!({"x": null}),
        json!({"type": 1}),
        json!({"type": "x", "x": [1]}),
    ]
}

/// Checks an answer to a body whose `field` has this value. The error of a value that the schema
/// does not allow names the field.
fn check(answer: &Answer, field: &str, is_allowed: bool, body: &Value) {
    let (status, error) = (answer.status.as_u16(), &answer.body["error"]);
    assert!(status < 500, "{status}: {body}: {}", answer.body);
    if is_allowed && status == 200 {
        return;
    }
    assert!(status >= 400, "{body} is accepted");
    let message = error["message"].as_str().expect("a message");
    assert!(!message.contains("not JSON"), "{body}: {message}");
    assert!(message.contains(field), "{body}: {message}");
    if let Some(param) = error.get("param") {
        let param = param
            .as_str()
            .unwrap_or_else(|| panic!("{body}: {message}"));
        assert!(param.starts_with(field), "{body}: {param}");
    }
}

/// The names of a body's fields.
fn fields(schemas: &Value, schema: &str) -> BTreeSet<String> {
    let schema = &schemas[schema];
    let own = schema["properties"].as_object();
    let own = own.into_iter().flat_map(Map::keys).cloned();
    let forms = schema["anyOf"].as_array().into_iter().flatten();
    let forms = forms.filter_map(|form| form["properties"].as_object());
    let all: BTreeSet<String> = own.chain(forms.flat_map(Map::keys).cloned()).collect();
    assert!(!all.is_empty(), "{schema}");
    all
}

#[tokio::test]
async fn each_field_of_another_type_is_named() {
    let server = Server::new().await;
    let components = server.get("/openapi.json").await.ok()["components"].clone();
    for (route, schema, base) in routes() {
        let root = json!({"$ref": format!("#/components/schemas/{schema}"),
                          "components": components});
        let validator = jsonschema::validator_for(&root).expect("a schema");
        for field in &fields(&components["schemas"], schema) {
            for value in values() {
                let mut body = base.clone();
                body[field] = value;
                let answer = server.post(route, &body).await;
                let is_allowed = validator.is_valid(&body);
                if body[field].is_null() {
                    // As good as no field, which another may have to stand in for.
                    assert!(answer.status.as_u16() < 500, "{body}: {}", answer.body);
                    continue;
                }
                check(&answer, field, is_allowed, &body);
            }
        }
    }
}

/// Fields within fields: the body's fields around a value, and the path of the value.
fn nested(value: &Value) -> Vec<(&'static str, Value, &'static str)> {
    let message = |field: &str| {
        let mut message = json!({"role": "user", "content": "a"});
        message[field] = value.clone();
        json!({"messages": [message]})
    };
    let function = |field: &str| {
        let mut function = json!({"name": "f", "parameters": {}});
        function[field] = value.clone();
        json!({"tools": [{"type": "function", "function": function}]})
    };
    let block = |kind: &str, field: &str| {
        let mut block = json!({"type": kind, "text": "a", "id": "1", "name": "f", "input": {}});
        block[field] = value.clone();
        json!({"messages": [{"role": "assistant", "content": [block]},
                            {"role": "user", "content": "a"}]})
    };
    let item = |field: &str| {
        let mut item = json!({"type": "message", "role": "user", "content": "a"});
        item[field] = value.clone();
        json!({"input": [item]})
    };
    vec![
        (CHAT, message("role"), "messages[0]"),
        (CHAT, message("content"), "messages[0].content"),
        (CHAT, json!({"messages": [value]}), "messages[0]"),
        (CHAT, function("name"), "tools[0].function.name"),
        (CHAT, function("parameters"), "tools[0].function.parameters"),
        (CHAT, function("strict"), "tools[0].function.strict"),
        (
            CHAT,
            json!({"response_format": {"type": value}}),
            "response_format",
        ),
        (
            CHAT,
            json!({"stream_options": {"include_usage": value}}),
            "stream_options.include_usage",
        ),
        (CHAT, json!({"logit_bias": {"1": value}}), "logit_bias"),
        (CHAT, json!({"stop": ["a", value]}), "stop"),
        (TEXT, json!({"prompt": [value]}), "prompt"),
        (TEXT, json!({"stop_token_ids": [value]}), "stop_token_ids"),
        (MESSAGES, message("role"), "messages[0]"),
        (MESSAGES, message("content"), "messages[0].content"),
        (
            MESSAGES,
            block("text", "type"),
            "messages[0].content[0].type",
        ),
        (MESSAGES, block("text", "text"), "messages[0].content"),
        (MESSAGES, block("tool_use", "input"), "messages[0].content"),
        (MESSAGES, json!({"thinking": {"type": value}}), "thinking"),
        (
            MESSAGES,
            json!({"thinking": {"type": "enabled", "budget_tokens": value}}),
            "thinking",
        ),
        (
            MESSAGES,
            json!({"metadata": {"user_id": value}}),
            "metadata.user_id",
        ),
        (
            MESSAGES,
            json!({"output_config": {"effort": value}}),
            "output_config",
        ),
        (
            MESSAGES,
            json!({"tool_choice": {"type": value}}),
            "tool_choice",
        ),
        (
            MESSAGES,
            json!({"tools": [{"name": value, "input_schema": {}}]}),
            "tools[0].name",
        ),
        (RESPONSES, item("role"), "input[0]"),
        (RESPONSES, item("content"), "input[0]"),
        (RESPONSES, item("type"), "input[0]"),
        (
            RESPONSES,
            json!({"reasoning": {"summary": value}}),
            "reasoning",
        ),
        (
            RESPONSES,
            json!({"reasoning": {"effort": value}}),
            "reasoning",
        ),
        (
            RESPONSES,
            json!({"text": {"format": {"type": value}}}),
            "text.format",
        ),
        (RESPONSES, json!({"include": [value]}), "include"),
        (RESPONSES, json!({"metadata": {"a": value}}), "metadata"),
        (
            RESPONSES,
            json!({"tools": [{"type": "function", "name": value}]}),
            "tools[0].name",
        ),
    ]
}

#[tokio::test]
async fn fields_within_fields_are_named_by_their_path() {
    let server = Server::new().await;
    let base: Map<String, Value> = routes()
        .into_iter()
        .map(|(route, _, base)| (route.to_owned(), base))
        .collect();
    for value in values() {
        for (route, more, path) in nested(&value) {
            let mut body = base[route].clone();
            let more = more.as_object().expect("fields").clone();
            body.as_object_mut().expect("an object").extend(more);
            check(&server.post(route, &body).await, path, true, &body);
        }
    }
}

#[tokio::test]
async fn values_of_peers_have_their_meaning() {
    let server = Server::with("--class-max urgent", "").await;
    let messages = json!([{"role": "user", "content": "a"}]);
    for more in [
        json!({"max_tokens": 3.0}),
        json!({"top_k": -1.0}),
        json!({"seed": -3.0}),
        json!({"stop": null}),
        json!({"priority": 0}),
        json!({"priority": -1}),
        json!({"priority": 5.0}),
        json!({"priority": null}),
    ] {
        let mut body = json!({"messages": messages, "max_tokens": 1});
        let more = more.as_object().expect("fields").clone();
        body.as_object_mut().expect("an object").extend(more);
        server.post(CHAT, &body).await.ok();
    }
    let server = Server::new().await;
    let urgent = json!({"messages": messages, "max_tokens": 1, "priority": -1});
    let rejected = server.post(CHAT, &urgent).await;
    assert_eq!(
        (rejected.status.as_u16(), &rejected.body["error"]["param"]),
        (403, &json!("priority"))
    );
}

#[tokio::test]
async fn prompt_that_is_too_long_has_the_error_that_agents_expect() {
    let server = Server::new().await;
    let context = server.app.engine().model().context_tokens_max;
    // By its tokens, and by its bytes.
    for words in [context, context * 11] {
        let text = "a ".repeat(words);
        let messages = json!([{"role": "user", "content": text}]);
        let openai = [
            (CHAT, json!({"messages": messages}), "messages"),
            (TEXT, json!({"prompt": text}), "prompt"),
            (RESPONSES, json!({"input": text}), "input"),
        ];
        for (route, body, field) in openai {
            let answer = server.post(route, &body).await;
            let error = &answer.body["error"];
            assert_eq!(answer.status, 400, "{route}: {error}");
            assert_eq!(error["code"], "context_length_exceeded", "{route}: {error}");
            assert_eq!(error["param"], field, "{route}: {error}");
            let message = error["message"].as_str().expect("text");
            assert!(message.contains("maximum context length is"), "{message}");
        }
        let counted = (words > context).then_some("/v1/messages/count_tokens");
        for route in [MESSAGES].into_iter().chain(counted) {
            let body = json!({"messages": messages, "max_tokens": 1});
            let answer = server.post(route, &body).await;
            let error = &answer.body["error"];
            assert_eq!(answer.status, 400, "{error}");
            assert_eq!(error["type"], "invalid_request_error");
            let message = error["message"].as_str().expect("text");
            let numbers = message.strip_prefix("prompt is too long: ").expect(message);
            let (tokens, rest) = numbers.split_once(" tokens > ").expect(message);
            let (most, _) = rest.split_once(" maximum").expect(message);
            let [tokens, most] =
                [tokens, most].map(|number| number.parse::<usize>().expect(message));
            assert!(tokens > most && most == context - 1, "{message}");
        }
    }
}

#[tokio::test]
async fn token_ids_outside_the_vocabulary_are_named() {
    let server = Server::new().await;
    let unknown = server.app.engine().model().vocab_size;
    for (route, body, field) in [
        (TEXT, json!({"prompt": [1, unknown]}), "prompt"),
        (TEXT, json!({"prompt": [[1], [unknown]]}), "prompt"),
        (TEXT, json!({"prompt": [unknown], "echo": true}), "prompt"),
        (
            TEXT,
            json!({"prompt": [unknown], "echo": true, "logprobs": 1}),
            "prompt",
        ),
        (
            TEXT,
            json!({"prompt": "a", "stop_token_ids": [unknown]}),
            "stop_token_ids",
        ),
        (
            TEXT,
            json!({"prompt": "a", "logit_bias": {unknown.to_string(): 1}}),
            "logit_bias",
        ),
        ("/v1/embeddings", json!({"input": [unknown]}), "input"),
        ("/detokenize", json!({"tokens": [unknown]}), "tokens"),
    ] {
        let answer = server.post(route, &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert_eq!(
            answer.body["error"]["param"], field,
            "{body}: {}",
            answer.body
        );
    }
}
