//! The budget for results that are kept until they are sent.

use std::sync::Arc;

use crate::common::client::{Answer, CHAT, Server, TEXT, chat, post, whole};
use crate::common::responses::{RESPONSES, ask, assert_rejected, id};
use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use serde_json::{Value, json};

/// A conversation whose whole answer keeps 256 bytes for each token.
fn scored(tokens: usize, more: Value) -> Value {
    let mut body = chat(json!({
        "logprobs": true, "top_logprobs": 20, "max_tokens": tokens, "ignore_eos": true,
    }));
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

/// Sends a conversation with a key.
async fn sent(server: &Server, key: &str, body: &Value) -> Response<Body> {
    let mut request = post(CHAT, body);
    let key = format!("Bearer {key}").parse().expect("a header");
    request.headers_mut().insert(header::AUTHORIZATION, key);
    server.send(request).await
}

#[tokio::test]
async fn whole_answers_hold_their_bytes_until_they_are_sent() {
    let server = Server::with("--results-mib 2", "").await;
    let unread = server.send(post(CHAT, &scored(2_500, json!({})))).await;
    assert_eq!(unread.status(), StatusCode::OK);
    let full = server.send(post(CHAT, &scored(2_500, json!({})))).await;
    assert!(full.headers().contains_key(header::RETRY_AFTER));
    let full = Answer::of(full).await;
    assert_eq!(full.status, StatusCode::TOO_MANY_REQUESTS, "{}", full.body);
    assert_eq!(full.body["error"]["code"], "rate_limit_exceeded");
    // Other requests are served.
    server.post(CHAT, &chat(json!({}))).await.ok();

    let answer: Value = serde_json::from_str(&whole(unread).await).expect("JSON");
    let content = &answer["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().map(Vec::len), Some(2_500));
    let again = server.post(CHAT, &scored(2_500, json!({}))).await.ok();
    assert_eq!(again["choices"][0]["logprobs"]["content"], *content);
}

#[tokio::test]
async fn streams_that_are_not_read_hold_their_bytes() {
    let server = Server::with("--results-mib 1", "").await;
    let body = scored(2_500, json!({"stream": true}));
    let mut unread = Vec::new();
    let full = loop {
        let answer = server.send(post(CHAT, &body)).await;
        if answer.status() != StatusCode::OK {
            break answer;
        }
        unread.push(answer);
        assert!(unread.len() < 16, "each holds some bytes");
    };
    assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(unread.len() > 1, "two fit");
    drop(unread.pop());
    let again = server.send(post(CHAT, &body)).await;
    assert_eq!(again.status(), StatusCode::OK);
}

#[tokio::test]
async fn answers_that_are_never_small_enough_are_rejected_by_field() {
    let server = Server::with("--results-mib 2", "").await;
    let check = |path: &'static str, body: Value, field: &'static str| {
        let server = &server;
        async move { assert_rejected(&server.post(path, &body).await, 400, field) }
    };
    check(CHAT, scored(5_000, json!({})), "top_logprobs").await;
    check(CHAT, scored(1_500, json!({"n": 3})), "top_logprobs").await;
    let text = json!({
        "prompt": "x", "max_tokens": 1_500, "n": 2, "best_of": 4, "logprobs": 20,
    });
    check(TEXT, text, "logprobs").await;
    let scores = json!({
        "prompt": [vec![1; 6_000]], "max_tokens": 0, "prompt_logprobs": 20,
    });
    check(TEXT, scores, "prompt_logprobs").await;
    let echoed = json!({
        "prompt": [vec![1; 6_000]], "max_tokens": 0, "echo": true, "logprobs": 20,
    });
    check(TEXT, echoed, "logprobs").await;
    let response = ask(json!({
        "max_output_tokens": 5_000, "top_logprobs": 20, "stream": true,
    }));
    check(RESPONSES, response, "top_logprobs").await;
    // A stream keeps none of them.
    let streamed = scored(5, json!({"stream": true, "n": 3}));
    assert!(server.stream(CHAT, &streamed).await.len() > 15);
    // The best is chosen by a sum, for which no log probabilities are kept.
    let text = json!({"prompt": "x", "max_tokens": 1_500, "n": 1, "best_of": 4});
    server.post(TEXT, &text).await.ok();
}

#[tokio::test]
async fn prompts_that_never_fit_the_queue_are_rejected_before_any_starts() {
    let server = Server::new().await;
    let before = server.app.engine().stats();
    let prompts: Vec<[u32; 2]> = (1..=128).map(|first| [first, 1]).collect();
    let body = json!({"prompt": prompts, "n": 3, "max_tokens": 1});
    assert_rejected(&server.post(TEXT, &body).await, 400, "prompt");
    let after = server.app.engine().stats();
    assert_eq!((after.steps, after.finished), (before.steps, 0));
    let body = json!({"prompt": prompts, "n": 2, "max_tokens": 1});
    let answer = server.post(TEXT, &body).await.ok();
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(256));
}

#[tokio::test]
async fn references_to_empty_parts_are_bounded_too() {
    let server = Server::with("--body-bytes-max 400000", "").await;
    let parts = vec![json!({"type": "input_text", "text": ""}); 10_000];
    let input = json!([{"role": "user", "content": parts}, {"role": "user", "content": "x"}]);
    let first = ask(json!({"input": input, "max_output_tokens": 1}));
    let first = server.post(RESPONSES, &first).await.ok();
    let item = format!("msg_{}_i0", id(&first).trim_start_matches("resp_"));
    let reference = json!({"type": "item_reference", "id": item});
    let more = json!({"input": vec![reference; 1_000], "max_output_tokens": 1});
    // An item is some 240,000 bytes, as its parts are in a body.
    assert_rejected(
        &server.post(RESPONSES, &ask(more)).await,
        400,
        "input[1].id",
    );
}

#[tokio::test]
async fn conversations_by_reference_are_as_long_as_bodies() {
    let server = Server::with("--body-bytes-max 4000", "").await;
    let first = ask(json!({"input": "x".repeat(2_500), "max_output_tokens": 1}));
    let first = server.post(RESPONSES, &first).await.ok();
    let item = format!("msg_{}_i0", id(&first).trim_start_matches("resp_"));
    let reference = json!({"type": "item_reference", "id": item});
    let more = json!({"input": [reference], "max_output_tokens": 1});
    server.post(RESPONSES, &ask(more)).await.ok();
    let more = json!({"input": [reference, reference], "max_output_tokens": 1});
    assert_rejected(
        &server.post(RESPONSES, &ask(more)).await,
        400,
        "input[1].id",
    );
    let more = json!({
        "input": [reference], "previous_response_id": id(&first), "max_output_tokens": 1,
    });
    assert_rejected(
        &server.post(RESPONSES, &ask(more)).await,
        400,
        "input[0].id",
    );
    let second = json!({
        "input": "x".repeat(2_500), "previous_response_id": id(&first), "max_output_tokens": 1,
    });
    let second = server.post(RESPONSES, &ask(second)).await.ok();
    let third = json!({
        "input": "x", "previous_response_id": id(&second), "max_output_tokens": 1,
    });
    let third = server.post(RESPONSES, &ask(third)).await;
    assert_rejected(&third, 400, "previous_response_id");
}

#[tokio::test]
async fn answers_without_space_are_rejected_before_they_start() {
    let server = Server::with("--results-mib 1", "").await;
    // It takes all that one user may hold.
    let unread = server.send(post(CHAT, &scored(1_984, json!({})))).await;
    assert_eq!(unread.status(), StatusCode::OK);
    let before = server.app.engine().stats();
    let full = server.post(CHAT, &chat(json!({}))).await;
    assert_eq!(full.status, StatusCode::TOO_MANY_REQUESTS, "{}", full.body);
    assert_eq!(server.app.engine().stats().steps, before.steps);
    whole(unread).await;
    server.post(CHAT, &chat(json!({}))).await.ok();
}

#[tokio::test]
async fn admission_of_another_key_ends_no_answer_that_runs() {
    let server = Server::with("--results-mib 1", "ann secret-a\nbob secret-b\n").await;
    let ann = sent(&server, "secret-a", &scored(1_300, json!({}))).await;
    assert_eq!(ann.status(), StatusCode::OK);
    // Its four texts need more bytes as they are generated.
    let long = chat(json!({"n": 4, "max_tokens": 6_000, "ignore_eos": true, "temperature": 1}));
    let server = Arc::new(server);
    let running = tokio::spawn({
        let server = Arc::clone(&server);
        async move { sent(&server, "secret-a", &long).await }
    });
    while server.app.engine().health().running == 0 {
        assert!(!running.is_finished(), "it takes a while");
        tokio::task::yield_now().await;
    }
    let bob = sent(&server, "secret-b", &scored(1_100, json!({}))).await;
    assert_eq!(bob.status(), StatusCode::OK);
    let answer = Answer::of(running.await.expect("no panic")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    drop((ann, bob));
}

#[tokio::test]
async fn scores_and_outputs_are_one_sum() {
    let server = Server::with("--results-mib 2", "").await;
    // 624 kB of the prompt and 512 kB of the output: each is less than half of the budget.
    let body = json!({
        "prompt": [vec![1; 3_000]], "max_tokens": 2_000, "echo": true, "logprobs": 20,
    });
    assert_rejected(&server.post(TEXT, &body).await, 400, "logprobs");
    assert_eq!(server.app.engine().stats().steps, 0);
}

#[tokio::test]
async fn unbounded_answers_reserve_as_they_grow() {
    let server = Server::with("--results-mib 2", "").await;
    // The longest output would take 2 MiB.
    let mut body = scored(1, json!({"ignore_eos": false}));
    body.as_object_mut()
        .expect("an object")
        .remove("max_tokens");
    let answer = server.post(CHAT, &body).await.ok();
    let content = &answer["choices"][0]["logprobs"]["content"];
    assert!(content.as_array().is_some_and(|rows| !rows.is_empty()));
    // One that never ends has no space, and the field of its reservation is named.
    body["ignore_eos"] = json!(true);
    let endless = server.post(CHAT, &body).await;
    assert_rejected(&endless, 400, "top_logprobs");
}

#[tokio::test]
async fn answers_that_end_early_free_what_they_do_not_keep() {
    let server = Server::with("--results-mib 1", "").await;
    let body = scored(1_984, json!({"ignore_eos": false}));
    let unread = server.send(post(CHAT, &body)).await;
    assert_eq!(unread.status(), StatusCode::OK);
    // One of them alone may take all that a user may hold.
    let short = scored(1_000, json!({"ignore_eos": false}));
    assert_eq!(server.send(post(CHAT, &short)).await.status(), 200);
    drop(unread);
}

#[tokio::test]
async fn invalid_numbers_are_rejected_before_bytes_are_counted() {
    let server = Server::with("--results-mib 1", "").await;
    for top in [json!(21), json!(1_000_000), json!(u64::MAX)] {
        for is_streamed in [false, true] {
            let body = scored(5, json!({"top_logprobs": top, "stream": is_streamed}));
            let answer = server.post(CHAT, &body).await;
            assert_rejected(&answer, 400, "top_logprobs");
            let message = answer.body["error"]["message"].to_string();
            assert!(message.contains("at most 20"), "{message}");
        }
    }
    let body = json!({"prompt": "x", "logprobs": u64::MAX, "best_of": 2});
    let answer = server.post(TEXT, &body).await;
    assert_rejected(&answer, 400, "logprobs");
}
