//! Predicted outputs and drafts.

use axum::http::StatusCode;
use motet::monitor::DraftCounts;
use serde_json::{Map, Value, json};

use crate::common::client::{CHAT, Server, TEXT, chat};

/// A conversation whose answer is 60 printable bytes, each a token, with these additional fields.
fn printable(more: Value) -> Value {
    let others = (94..257).map(|token: u32| (token.to_string(), json!(-100)));
    let others: Map<String, Value> = others.collect();
    let mut body = chat(json!({"max_tokens": 60, "logit_bias": others}));
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

fn content(answer: &Value) -> &str {
    let content = answer["choices"][0]["message"]["content"].as_str();
    content.expect("text")
}

/// The accepted and the rejected tokens of the prediction.
#[track_caller]
fn predicted(usage: &Value) -> [u64; 2] {
    let details = &usage["completion_tokens_details"];
    ["accepted", "rejected"].map(|name| {
        let tokens = &details[format!("{name}_prediction_tokens")];
        tokens.as_u64().unwrap_or_else(|| panic!("{usage}"))
    })
}

#[tokio::test]
async fn predicted_answer_is_the_same_and_accepted() {
    let server = Server::new().await;
    let plain = server.post(CHAT, &printable(json!({}))).await.ok();
    assert_eq!(predicted(&plain["usage"]), [0, 0]);
    let text = content(&plain);
    assert_eq!(text.len(), 60);
    let (first, second) = text.split_at(30);
    let parts = json!([{"type": "text", "text": first}, {"type": "text", "text": second}]);
    for content in [json!(text), parts] {
        let prediction = json!({"type": "content", "content": content});
        let body = printable(json!({"prediction": prediction}));
        let answer = server.post(CHAT, &body).await.ok();
        assert_eq!(self::content(&answer), text);
        let usage = &answer["usage"];
        assert_eq!(usage["completion_tokens"], 60);
        let [accepted, rejected] = predicted(usage);
        assert!(accepted >= 50, "{usage}");
        assert_eq!(accepted + rejected, 60, "{usage}");

        let mut streamed = body;
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let events = server.stream(CHAT, &streamed).await;
        let deltas = events.iter();
        let deltas = deltas.filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), text);
        let usage = &events.last().expect("its usage")["usage"];
        assert!(predicted(usage)[0] >= 50, "{usage}");
    }
    let wrong = json!({"prediction": {"type": "content", "content": "nothing like it"}});
    let answer = server.post(CHAT, &printable(wrong)).await.ok();
    assert_eq!(content(&answer), text);
    let [accepted, rejected] = predicted(&answer["usage"]);
    assert_eq!(accepted + rejected, "nothing like it".len() as u64);
}

#[tokio::test]
async fn each_output_has_the_prediction() {
    let server = Server::new().await;
    let plain = server.post(CHAT, &printable(json!({}))).await.ok();
    let prediction = json!({"type": "content", "content": content(&plain)});
    let body = printable(json!({"n": 2, "prediction": prediction}));
    let answer = server.post(CHAT, &body).await.ok();
    let [accepted, rejected] = predicted(&answer["usage"]);
    assert!(accepted >= 100, "{answer}");
    assert_eq!(accepted + rejected, 120, "{answer}");
}

#[tokio::test]
async fn speculation_can_be_switched_off() {
    let prediction = json!({"type": "content", "content": "x"});
    for (arguments, more) in [
        ("", json!({"speculation": false})),
        ("--speculation off", json!({"prediction": prediction})),
    ] {
        let server = Server::with(arguments, "").await;
        server.post(CHAT, &printable(more)).await.ok();
        let text = json!({"prompt": "a", "speculation": false, "max_tokens": 40});
        server.post(TEXT, &text).await.ok();
        let drafts = server.app.engine().stats().drafts;
        assert_eq!(drafts, DraftCounts::default());
    }
}

#[tokio::test]
async fn invalid_predictions_are_named() {
    let server = Server::new().await;
    let of = |content: Value| json!({"type": "content", "content": content});
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    let too_long = "x".repeat((1 << 16) + 1);
    for (prediction, param) in [
        (json!("x"), "prediction"),
        (json!({"content": "x"}), "prediction.type"),
        (json!({"type": "content"}), "prediction.content"),
        (json!({"type": "text", "content": "x"}), "prediction.type"),
        (of(json!(7)), "prediction.content"),
        (of(image), "prediction.content"),
        (of(json!([{"type": "text"}])), "prediction.content"),
        (of(json!(too_long)), "prediction"),
    ] {
        let body = chat(json!({"prediction": prediction}));
        let answer = server.post(CHAT, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
        assert_eq!(answer.body["error"]["param"], param, "{}", answer.body);
    }
    let both = json!({"prediction": of(json!("x")), "speculation": false});
    let answer = server.post(CHAT, &chat(both)).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
    assert_eq!(answer.body["error"]["param"], "prediction");
    let answer = server
        .post(CHAT, &chat(json!({"speculation": "off"})))
        .await;
    assert_eq!(answer.body["error"]["param"], "speculation");
}
