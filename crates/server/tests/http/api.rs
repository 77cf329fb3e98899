//! The whole server without its socket, on the oracle: requests and their answers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::client::{Answer, CHAT, Server, TEXT, chat, post, whole};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};

#[tokio::test]
async fn streamed_and_whole_chat_answers_agree() {
    let server = Server::new().await;
    let first = server.post(CHAT, &chat(json!({}))).await.ok();
    assert_eq!(first["object"], "chat.completion");
    assert_eq!(first["model"], "oracle");
    let assistant_text = &first["choices"][0]["message"];
    assert_eq!(assistant_text["role"], "assistant");
    let usage = &first["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(usage["completion_tokens"].as_u64() <= Some(40));

    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut events = server.stream(CHAT, &chat(options)).await;
    let last = events.pop().expect("its usage");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"]["completion_tokens"],
        usage["completion_tokens"]
    );
    // All but the prompt's last token, which is always evaluated.
    let cached = last["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(
        cached,
        usage["prompt_tokens"].as_u64().map(|tokens| tokens - 1)
    );

    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let parts = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["content"]);
    let text: String = parts.filter_map(Value::as_str).collect();
    assert_eq!(json!(text), assistant_text["content"]);
    let reasons = events
        .iter()
        .map(|event| &event["choices"][0]["finish_reason"]);
    let reasons: Vec<_> = reasons.filter(|reason| !reason.is_null()).collect();
    assert_eq!(reasons, [&first["choices"][0]["finish_reason"]]);
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
    assert_ne!(events[0]["id"], first["id"]);
}

#[tokio::test]
async fn outputs_of_several_prompts_are_indexed() {
    let server = Server::new().await;
    let body = json!({
        "prompt": ["one ", [1, 2]], "n": 2
    });
    let mixed = server.post(TEXT, &body).await;
    assert_eq!(
        mixed.status,
        StatusCode::BAD_REQUEST,
        "one kind of prompt at a time"
    );

    let body = json!({
        "prompt": ["one ", "two "], "n": 2, "max_tokens": 12, "seed": 7, "temperature": 1.5,
        "ignore_eos": true,
    });
    let answer = server.post(TEXT, &body).await.ok();
    let choices = answer["choices"].as_array().expect("choices");
    let numbers: Vec<_> = choices.iter().map(|choice| &choice["index"]).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert!(
        choices
            .iter()
            .all(|choice| choice["finish_reason"] == "length")
    );
    // A shared prompt is charged once.
    assert_eq!(answer["usage"]["prompt_tokens"], 2 * "one ".len());
    assert_eq!(answer["usage"]["completion_tokens"], 4 * 12);

    let mut streamed = BTreeMap::<u64, String>::new();
    let mut body = body;
    body["stream"] = json!(true);
    for event in server.stream(TEXT, &body).await {
        let choice = &event["choices"][0];
        let number = choice["index"].as_u64().expect("a number");
        let text = choice["text"].as_str().expect("text");
        streamed.entry(number).or_default().push_str(text);
    }
    let texts = choices
        .iter()
        .map(|choice| choice["text"].as_str().expect("text"));
    assert!(
        streamed.values().eq(texts),
        "the same seed gives the same output"
    );

    let tokens = server
        .post(TEXT, &json!({"prompt": [[1, 2, 3], [4]]}))
        .await
        .ok();
    assert_eq!(tokens["usage"]["prompt_tokens"], 4);
}

#[tokio::test]
async fn echo_repeats_the_prompt() {
    let server = Server::new().await;
    let body = json!({
        "prompt": ["one ", "two "], "n": 2, "max_tokens": 12, "seed": 7, "temperature": 1.5,
    });
    let texts = async |body: &Value| -> Vec<String> {
        let answer = server.post(TEXT, body).await.ok();
        let choices = answer["choices"].as_array().expect("choices").iter();
        let texts = choices.map(|choice| choice["text"].as_str().expect("text").to_owned());
        texts.collect()
    };
    let outputs = texts(&body).await;
    let prompts = ["one ", "one ", "two ", "two "];
    let expected = prompts.iter().zip(&outputs);
    let expected: Vec<String> = expected
        .map(|(prompt, assistant_text)| format!("{prompt}{assistant_text}"))
        .collect();
    let mut body = body;
    body["echo"] = json!(true);
    assert_eq!(texts(&body).await, expected);

    body["stream"] = json!(true);
    let mut streamed = BTreeMap::<u64, String>::new();
    for event in server.stream(TEXT, &body).await {
        let choice = &event["choices"][0];
        let number = choice["index"].as_u64().expect("a number");
        let text = choice["text"].as_str().expect("text");
        streamed.entry(number).or_default().push_str(text);
    }
    assert!(streamed.values().eq(&expected), "{streamed:?}");

    let tokens = server
        .post("/tokenize", &json!({"prompt": "a\0ü"}))
        .await
        .ok();
    let tokens = json!({"prompt": tokens["tokens"], "echo": true});
    assert!(texts(&tokens).await[0].starts_with("a\0ü"));
}

#[tokio::test]
async fn best_of_chooses_for_each_prompt() {
    let server = Server::new().await;
    let request_body = json!({
        "prompt": ["one ", "two "], "max_tokens": 12, "seed": 7, "temperature": 1.5,
        "ignore_eos": true, "n": 5, "logprobs": 0,
    });
    let all = server.post(TEXT, &request_body).await.ok();
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array();
        let logprobs = logprobs.expect("as asked").iter();
        logprobs
            .map(|logprob| logprob.as_f64().expect("a number"))
            .sum::<f64>()
            / 12.0
    };
    let mut best: Vec<Value> = Vec::new();
    for candidates in all["choices"].as_array().expect("choices").chunks(5) {
        let mut candidates = candidates.to_vec();
        candidates.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        best.extend(
            candidates
                .into_iter()
                .take(2)
                .map(|choice| choice["text"].clone()),
        );
    }

    let mut chosen = request_body;
    chosen["n"] = json!(2);
    chosen["best_of"] = json!(5);
    chosen["logprobs"] = Value::Null;
    let chosen = server.post(TEXT, &chosen).await.ok();
    let choices = chosen["choices"].as_array().expect("choices");
    let texts: Vec<_> = choices
        .iter()
        .map(|choice| choice["text"].clone())
        .collect();
    assert_eq!(texts, best);
    assert!(choices.iter().all(|choice| choice["logprobs"].is_null()));
    // All generated outputs are charged.
    assert_eq!(chosen["usage"]["completion_tokens"], 2 * 5 * 12);
}

#[tokio::test]
async fn arbitrary_bodies_are_parsed_or_rejected() {
    let server = Server::new().await;
    let send = async |kind: &str, body: &[u8]| {
        let request = Request::post(TEXT).header(header::CONTENT_TYPE, kind);
        let request = request.body(Body::from(body.to_vec())).expect("a request");
        Answer::of(server.send(request).await).await
    };
    let json = "application/json";
    let deep = [b"{\"prompt\": ".as_slice(), &b"[".repeat(100_000)].concat();
    for (kind, body, status) in [
        (
            "Application/JSON; charset=utf-8",
            br#"{"prompt": "x"}"#.as_slice(),
            200,
        ),
        ("application/jsonp", br#"{"prompt": "x"}"#, 415),
        ("text/plain", br#"{"prompt": "x"}"#, 415),
        (
            json,
            "{\"prompt\": \"\\u0000 \u{1F3B5} e\u{301}\"}".as_bytes(),
            200,
        ),
        (json, b"{\"prompt\": \"\xff\"}", 400),
        (json, br#"{"prompt": "\ud800"}"#, 400),
        (json, b"{\"prompt\": \"\0\"}", 400),
        (json, b"", 400),
        (json, &deep, 400),
        (json, br#"{"prompt": "x", "max_tokens": 1e400}"#, 400),
        (
            json,
            br#"{"prompt": "x", "max_tokens": 99999999999999999999999}"#,
            400,
        ),
        (json, br#"{"prompt": "x", "temperature": 1e300}"#, 400),
        (
            json,
            br#"{"prompt": "x", "max_tokens": 18446744073709551615, "stop": "a"}"#,
            200,
        ),
    ] {
        let answer = send(kind, body).await;
        let sent = String::from_utf8_lossy(&body[..body.len().min(80)]);
        assert_eq!(answer.status.as_u16(), status, "{sent}: {}", answer.body);
        assert!(status == 200 || answer.body["error"]["message"].is_string());
    }
    let torn = server.get("/v1/models/%ff").await;
    assert_eq!(torn.status, StatusCode::BAD_REQUEST);
    assert!(torn.body["error"]["message"].is_string(), "{}", torn.body);
    let nested = server.get("/v1/models/some/other").await;
    assert_eq!(nested.body["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn methods_follow_http_and_no_cors_headers_are_sent() {
    let server = Server::new().await;
    let send = async |method: Method, path: &str| {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::HOST, "localhost");
        let request = request.header(header::ORIGIN, "http://localhost");
        let response = server
            .send(request.body(Body::empty()).expect("a request"))
            .await;
        let allows_others = response
            .headers()
            .contains_key("access-control-allow-origin");
        assert!(!allows_others, "{path}");
        response
    };
    let head = send(Method::HEAD, "/health").await;
    assert_eq!(head.status(), StatusCode::OK);
    assert_eq!(whole(head).await, "");
    for method in [Method::OPTIONS, Method::GET, Method::DELETE] {
        let rejected = send(method, CHAT).await;
        assert_eq!(rejected.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(rejected.headers()[header::ALLOW], "POST");
    }
}

#[tokio::test]
async fn logprobs_are_returned_for_each_token() {
    let server = Server::new().await;
    let request_body = json!({"logprobs": true, "top_logprobs": 3, "logit_bias": {"256": -100}});
    let answer = server.post(CHAT, &chat(request_body)).await.ok();
    let content = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("logprobs");
    assert_eq!(json!(content.len()), answer["usage"]["completion_tokens"]);
    for token in content {
        assert_eq!(token["top_logprobs"].as_array().map(Vec::len), Some(3));
        assert_eq!(
            token["top_logprobs"][0]["token"], token["token"],
            "it is greedy"
        );
        assert!(token["logprob"].as_f64() <= Some(0.0));
    }
    let bytes = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"));
    let bytes = bytes
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect::<Vec<_>>();
    let text = String::from_utf8_lossy(&bytes);
    assert_eq!(answer["choices"][0]["message"]["content"], json!(text));

    let body = json!({"prompt": "ab", "logprobs": 2, "temperature": 0, "ignore_eos": true});
    let answer = server.post(TEXT, &body).await.ok();
    let logprobs = &answer["choices"][0]["logprobs"];
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            logprobs[field].as_array().map(Vec::len),
            Some(16),
            "{field}"
        );
    }
}

#[tokio::test]
async fn stop_strings_and_schemas_are_respected() {
    let server = Server::new().await;
    let free = server
        .post(CHAT, &chat(json!({"ignore_eos": true})))
        .await
        .ok();
    let assistant_text = free["choices"][0]["message"]["content"]
        .as_str()
        .expect("text")
        .to_owned();
    assert_eq!(free["choices"][0]["finish_reason"], "length");

    let stop: String = assistant_text.chars().skip(10).take(3).collect();
    let request_body = json!({"stop": stop, "ignore_eos": true});
    let stopped = server.post(CHAT, &chat(request_body)).await.ok();
    let end = assistant_text.find(&stop).expect("it is in there");
    assert_eq!(
        stopped["choices"][0]["message"]["content"],
        json!(&assistant_text[..end])
    );
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");

    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
                        "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let held = chat(json!({"response_format": format, "max_tokens": 400}));
    let held = server.post(CHAT, &held).await.ok();
    let content = held["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    if held["choices"][0]["finish_reason"] == "stop" {
        let value: Value = serde_json::from_str(content).expect("JSON");
        assert!(value["a"] == "x" || value["a"] == "y", "{value}");
    } else {
        // The oracle may produce white space for long; the rest begins an object.
        assert!(content.trim_start().starts_with('{'), "{content}");
    }
}

#[tokio::test]
async fn tools_reach_the_template() {
    let server = Server::new().await;
    let tools = json!([{"type": "function", "function": {"name": "clock"}}]);
    let called = json!([
        {"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "time?"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{\"zone\": 2}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]);
    let spell = async |body: Value| {
        let tokens = server.post("/tokenize", &body).await.ok();
        assert_eq!(
            tokens["count"].as_u64(),
            tokens["tokens"].as_array().map(|t| t.len() as u64)
        );
        let text = server
            .post("/detokenize", &json!({"tokens": tokens["tokens"]}))
            .await
            .ok();
        text["prompt"].as_str().expect("text").to_owned()
    };
    let text = spell(json!({"messages": called, "tools": tools})).await;
    assert!(
        text.starts_with(r#"{"type": "function", "function": {"name": "clock"}}"#),
        "{text}"
    );
    assert!(text.contains("user: What time?\n"), "{text}");
    assert!(text.contains(r#""arguments": {"zone": 2}"#), "{text}");
    assert!(text.ends_with("tool: noon\nassistant: "), "{text}");
    let text = spell(json!({"messages": called, "tools": tools, "tool_choice": "none"})).await;
    assert!(text.starts_with("user: "), "{text}");
    assert_eq!(spell(json!({"prompt": "as it is"})).await, "as it is");
}

#[tokio::test]
async fn invalid_fields_are_rejected_by_name() {
    let server = Server::with("--body-bytes-max 20000 --header-bytes-max 300", "").await;
    let check = async |path: &str, body: Value, status: u16, param: Value| {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{body}: {}", answer.body);
        assert_eq!(
            answer.body["error"]["param"], param,
            "{body}: {}",
            answer.body
        );
        assert!(answer.body["error"]["message"].is_string());
    };
    for (field, value, status) in [
        ("temperature", json!("hot"), 400),
        ("temperature", json!(-1), 400),
        ("top_p", json!(2), 400),
        ("top_k", json!(-5), 400),
        ("n", json!(0), 400),
        ("max_tokens", json!(0), 400),
        ("stop", json!([""]), 400),
        ("logit_bias", json!({"x": 1}), 400),
        ("logit_bias", json!({"999999": 1}), 400),
        ("priority", json!("first"), 400),
        ("messages", json!([]), 400),
        ("top_logprobs", json!(2), 400),
        ("model", json!("another"), 404),
        ("tool_choice", json!("required"), 400),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"schema": {"type": 7}}}),
            422,
        ),
    ] {
        check(CHAT, chat(json!({field: value})), status, json!(field)).await;
    }
    let alternatives = json!({"logprobs": true, "top_logprobs": 21});
    check(CHAT, chat(alternatives), 400, json!("top_logprobs")).await;
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(9000)}]});
    check(CHAT, chat(long), 400, json!("messages")).await;
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]});
    check(CHAT, chat(image), 400, json!("messages[0].content")).await;
    check(
        CHAT,
        chat(json!({"messages": [{"content": "x"}]})),
        400,
        json!("messages[0].role"),
    )
    .await;
    for (field, more, status) in [
        ("suffix", json!({"suffix": "y"}), 422),
        ("best_of", json!({"best_of": 2, "stream": true}), 422),
        ("best_of", json!({"best_of": 2, "n": 3}), 400),
    ] {
        let mut body = more;
        body["prompt"] = json!("x");
        check(TEXT, body, status, json!(field)).await;
    }
    check(TEXT, json!({"prompt": [300]}), 400, json!("prompt")).await;
    check(
        TEXT,
        json!({"prompt": "x".repeat(9000)}),
        400,
        json!("prompt"),
    )
    .await;
    check(
        TEXT,
        json!({"prompt": "x".repeat(21_000)}),
        413,
        Value::Null,
    )
    .await;
    check("/v1/nothing", json!({}), 404, Value::Null).await;
    check("/health", json!({}), 405, Value::Null).await;
    check(CHAT, json!([]), 400, Value::Null).await;

    let plain = Request::post(CHAT)
        .body(Body::from("{}"))
        .expect("a request");
    assert_eq!(
        server.send(plain).await.status(),
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    let mut torn = post(CHAT, &json!({}));
    *torn.body_mut() = Body::from("{\"messages\": [");
    assert_eq!(server.send(torn).await.status(), StatusCode::BAD_REQUEST);
    let long = Request::get("/health").header("x-long", "x".repeat(400));
    let long = server
        .send(long.body(Body::empty()).expect("a request"))
        .await;
    assert_eq!(long.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
}

#[tokio::test]
async fn keys_have_their_limits_and_their_own_cache() {
    let server = Server::with("", "ann secret-a 1\nbob secret-b\n").await;
    let ask = async |key: &str, body: Value| {
        let mut request = post(CHAT, &body);
        let key = format!("Bearer {key}").parse().expect("a header");
        request.headers_mut().insert(header::AUTHORIZATION, key);
        server.send(request).await
    };
    assert_eq!(
        server.post(CHAT, &chat(json!({}))).await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        server.get("/v1/models").await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(server.get("/health").await.status, StatusCode::OK);
    assert_eq!(
        ask("wrong", chat(json!({}))).await.status(),
        StatusCode::UNAUTHORIZED
    );

    let held = ask("secret-a", chat(json!({"stream": true}))).await;
    assert_eq!(held.status(), StatusCode::OK);
    let rejected = ask("secret-a", chat(json!({}))).await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()[header::RETRY_AFTER], "1");
    whole(held).await;
    let cached = async |key: &str, more: Value| {
        let answer = Answer::of(ask(key, chat(more)).await).await.ok();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!(
        cached("secret-b", json!({})).await,
        Some(0),
        "another's state is not found"
    );
    assert!(cached("secret-a", json!({})).await > Some(0));
    assert_eq!(
        cached("secret-a", json!({"cache_salt": "x"})).await,
        Some(0)
    );
}

#[tokio::test]
async fn operator_sets_the_highest_class() {
    let keys = "ann secret-a class=urgent\nbob secret-b\ncarol secret-c class=background\n";
    let urgent = "--class-max urgent";
    // A server's setting, a key, the requested class, and the limit if it is rejected.
    for (arguments, key, class, rejected) in [
        ("", "", "urgent", Some("normal")),
        ("", "", "normal", None),
        ("", "", "background", None),
        (urgent, "", "urgent", None),
        ("--class-max background", "", "normal", Some("background")),
        ("", "a", "urgent", None),
        ("", "b", "urgent", Some("normal")),
        ("", "b", "normal", None),
        (urgent, "b", "urgent", None),
        ("", "c", "normal", Some("background")),
        (urgent, "c", "normal", Some("background")),
        (urgent, "c", "background", None),
        // A key with a lower limit gets that class by default.
        ("", "c", "null", None),
    ] {
        let server = Server::with(arguments, if key.is_empty() { "" } else { keys }).await;
        let class = match class {
            "null" => Value::Null,
            class => json!(class),
        };
        for (path, mut body) in [(CHAT, chat(json!({}))), (TEXT, json!({"prompt": "x"}))] {
            body["priority"] = class.clone();
            let mut request = post(path, &body);
            let key = format!("Bearer secret-{key}").parse().expect("a header");
            request.headers_mut().insert(header::AUTHORIZATION, key);
            let answer = Answer::of(server.send(request).await).await;
            let case = format!("{arguments} {class} {path}: {}", answer.body);
            let Some(highest) = rejected else {
                assert_eq!(answer.status, StatusCode::OK, "{case}");
                continue;
            };
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{case}");
            let error = &answer.body["error"];
            assert_eq!(error["param"], "priority", "{case}");
            assert_eq!(error["code"], "priority_not_allowed", "{case}");
            let message = error["message"].as_str().expect("text");
            for named in [highest, class.as_str().expect("a class")] {
                assert!(message.contains(&format!("\"{named}\"")), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn disconnect_frees_the_admission_slot() {
    let server = Server::with("--sequences-max 1 --queue-max 1", "").await;
    let endless = chat(json!({"stream": true, "ignore_eos": true, "max_tokens": 7000}));
    let mut first = server.send(post(CHAT, &endless)).await.into_body();
    first.frame().await.expect("it streams").expect("a part");
    let waiting = server.send(post(CHAT, &endless)).await;
    let rejected = server.post(CHAT, &chat(json!({}))).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.body["error"]["code"], "rate_limit_exceeded");
    drop((first, waiting));
    let asked_again = async {
        loop {
            let answer = server.post(CHAT, &chat(json!({}))).await;
            match answer.status {
                StatusCode::TOO_MANY_REQUESTS => tokio::task::yield_now().await,
                _ => break answer.ok(),
            }
        }
    };
    let answered = tokio::time::timeout(Duration::from_secs(30), asked_again).await;
    answered.expect("a place is free");
}

#[tokio::test]
async fn draining_server_reports_it() {
    let server = Server::new().await;
    assert_eq!(server.get("/ready").await.ok()["state"], "ready");
    assert_eq!(
        server.get("/v1/models").await.ok()["data"][0]["id"],
        "oracle"
    );
    assert_eq!(
        server.get("/v1/models/oracle").await.ok()["max_model_len"],
        8192
    );
    assert_eq!(
        server.get("/v1/models/other").await.status,
        StatusCode::NOT_FOUND
    );
    server.app.drain().await;
    assert_eq!(
        server.get("/ready").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(server.get("/health").await.ok()["state"], "stopped");
    let rejected = server.post(CHAT, &chat(json!({}))).await;
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rejected.body["error"]["code"], "draining");
}
