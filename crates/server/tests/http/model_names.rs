//! The names of the one model, in every dialect.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::common::client::{CHAT, MESSAGES, Server, TEXT};

const TWO: &str = "--name small --name gpt-4o --name small";

/// A request of each dialect and route that names a model.
fn requests(model: &str) -> [(&'static str, Value); 6] {
    let messages = json!([{"role": "user", "content": "x"}]);
    [
        (
            CHAT,
            json!({"model": model, "messages": messages, "max_tokens": 1}),
        ),
        (
            TEXT,
            json!({"model": model, "prompt": "x", "max_tokens": 1}),
        ),
        (
            MESSAGES,
            json!({"model": model, "messages": messages, "max_tokens": 1}),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"model": model, "messages": messages}),
        ),
        (
            "/v1/responses",
            json!({"model": model, "input": "x", "max_output_tokens": 1}),
        ),
        ("/v1/embeddings", json!({"model": model, "input": "x"})),
    ]
}

/// Whether a server with these arguments serves requests for that model. Answers carry its first
/// name.
async fn check(arguments: &str, model: &str, is_served: bool) {
    let server = Server::with(arguments, "").await;
    for (path, body) in requests(model) {
        let answer = server.post(path, &body).await;
        let what = format!("{arguments}: {path}: {}", answer.body);
        if !is_served {
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{what}");
            continue;
        }
        assert_eq!(answer.status, StatusCode::OK, "{what}");
        if path != "/v1/messages/count_tokens" {
            assert_eq!(answer.body["model"], "small", "{what}");
        }
    }
    let named = server.get(&format!("/v1/models/{model}")).await;
    if is_served {
        assert_eq!(named.ok()["id"], model);
    } else {
        assert_eq!(named.status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn the_model_has_all_names_that_it_was_given() {
    check(TWO, "small", true).await;
    check(TWO, "gpt-4o", true).await;
    check(TWO, "gpt-4", false).await;
    check(TWO, "", false).await;
}

#[tokio::test]
async fn any_name_is_the_models_on_request() {
    check("--name small --any-name", "gpt-4", true).await;
    check("--name small", "gpt-4", false).await;
}

#[tokio::test]
async fn every_name_is_listed_and_described() {
    let names = |list: &Value| {
        let data = list["data"].as_array().expect("models").iter();
        data.map(|model| model["id"].clone()).collect::<Vec<_>>()
    };
    for (arguments, listed, described) in [
        (
            TWO,
            json!(["small", "gpt-4o"]),
            json!(["small", "gpt-4o", null]),
        ),
        ("--name small --any-name", json!(["small"]), Value::Null),
    ] {
        let server = Server::with(arguments, "").await;
        let models = server.get("/v1/models").await.ok();
        assert_eq!(json!(names(&models)), listed, "{arguments}");
        let document = server.get("/openapi.json").await.ok();
        for body in [
            "ChatRequest",
            "TextRequest",
            "MessagesRequest",
            "EmbeddingRequest",
        ] {
            let schema = &document["components"]["schemas"][body]["properties"]["model"];
            assert_eq!(schema["enum"], described, "{arguments}: {body}");
        }
    }
}
