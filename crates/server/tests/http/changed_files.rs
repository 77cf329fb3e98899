//! A server whose model's file has changed.

use std::sync::Arc;
use std::time::Duration;

use crate::common::client::{Server, TEXT};
use axum::http::StatusCode;
use clap::Parser;
use motet::Engine;
use motet::model::ModelError;
use motet::model::oracle::{Oracle, OracleConfig};
use motet_server::app::App;
use motet_server::arguments::Arguments;
use motet_server::keys::Keys;
use serde_json::json;

#[tokio::test]
async fn server_is_not_ready_after_a_change_of_its_model() {
    let oracle = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
    let engine = Engine::builder(oracle).check_files(|| {
        Err(ModelError::FileChanged {
            path: "tiny.gguf".into(),
        })
    });
    let engine = engine.start().await.expect("it starts");
    let access = Arguments::parse_from(["server", "--oracle"]).access;
    let app = App::new(engine, "tiny".into(), Keys::default(), access);
    let server = Server::of(Arc::new(app));
    // Time passes as soon as nothing else is to be done.
    tokio::time::pause();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(6)).await;
        if server.app.engine().health().files_changed.is_some() {
            break;
        }
    }
    tokio::time::resume();
    for path in ["/health", "/ready"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        let reason = answer.body["files_changed"].as_str().expect("a reason");
        assert!(reason.contains("tiny.gguf"), "{reason}");
    }
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 1});
    let answer = server.post(TEXT, &body).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.body["error"]["code"], "broken");
}
