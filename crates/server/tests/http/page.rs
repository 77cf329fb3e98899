//! The page and its frames, on the oracle.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use clap::Parser;
use http_body_util::BodyExt;
use motet::Engine;
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig};
use motet_server::app::App;
use motet_server::arguments::Arguments;
use motet_server::keys::Keys;
use motet_server::routes::router;
use serde_json::Value;
use tokio::time::timeout;
use tower::ServiceExt;

const TIMEOUT: Duration = Duration::from_secs(60);

async fn server(arguments: &str, keys: &str) -> (Arc<App>, Router) {
    let app = Arc::new(crate::common::app(arguments, keys).await);
    (Arc::clone(&app), router(app))
}

async fn get(router: &Router, path: &str, key: Option<&str>) -> Response<Body> {
    let mut request = Request::get(path);
    if let Some(key) = key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let request = request.body(Body::empty()).expect("a request");
    let answered = router.clone().oneshot(request).await;
    answered.expect("a router always answers")
}

/// Requests a long text without reading it.
async fn ask(router: &Router, key: &str) -> Response<Body> {
    let body = r#"{"prompt": "a secret", "max_tokens": 4000, "ignore_eos": true, "stream": true}"#;
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {key}"))
        .body(Body::from(body))
        .expect("a request");
    let answered = router.clone().oneshot(request).await;
    answered.expect("a router always answers")
}

/// The next frame; `None` when the server has ended the stream.
async fn frame(body: &mut Body) -> Option<Value> {
    let next = timeout(TIMEOUT, body.frame()).await.expect("frames come");
    let event = next?.expect("nothing fails").into_data().expect("data");
    let event = std::str::from_utf8(&event).expect("text");
    let data = event.strip_prefix("data: ").expect("an event");
    Some(serde_json::from_str(data).expect("JSON"))
}

#[tokio::test]
async fn page_needs_no_key_and_sends_security_headers() {
    let (_app, router) = server("", "ann secret-a").await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
        ("/page/main.js", "text/javascript; charset=utf-8"),
    ] {
        let response = get(&router, path, None).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let headers = response.headers();
        assert_eq!(headers[header::CONTENT_TYPE], kind, "{path}");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        let policy = headers[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .expect("ASCII");
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }
    let nowhere = get(&router, "/page/other.js", None).await;
    assert_eq!(nowhere.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn every_file_that_the_page_references_exists() {
    let (_app, router) = server("", "").await;
    let mut to_read = vec!["/".to_owned()];
    let mut read = Vec::new();
    while let Some(path) = to_read.pop() {
        let response = get(&router, &path, None).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let text = response.into_body().collect().await.expect("a whole body");
        let text = String::from_utf8(text.to_bytes().to_vec()).expect("text");
        let quoted = text
            .split('"')
            .filter_map(|word| match word.strip_prefix("./") {
                Some(module) => Some(format!("/page/{module}")),
                None => word.starts_with("/page/").then(|| word.to_owned()),
            });
        let new: Vec<String> = quoted.filter(|path| !read.contains(path)).collect();
        read.extend(new.iter().cloned());
        to_read.extend(new);
    }
    assert!(read.contains(&"/page/trie.js".to_owned()), "{read:?}");
}

#[tokio::test]
async fn frames_need_an_allowed_key() {
    let keys = "ann secret-a 1\nbob secret-b";
    let named = "--api-keys unread --operator-key ann";
    let (_app, router) = server(named, keys).await;
    assert_eq!(get(&router, "/watch", None).await.status(), 401);
    assert_eq!(get(&router, "/watch", Some("secret")).await.status(), 401);
    // The key is at its limit, but watching does not count against it.
    let _asked = ask(&router, "secret-a").await;
    assert_eq!(get(&router, "/watch", Some("secret-a")).await.status(), 200);

    assert_eq!(get(&router, "/watch", Some("secret-b")).await.status(), 403);

    let (_app, router) = server("--api-keys unread --page-key bob", keys).await;
    assert_eq!(get(&router, "/watch", Some("secret-a")).await.status(), 403);
    assert_eq!(get(&router, "/watch", Some("secret-b")).await.status(), 200);
}

#[tokio::test]
async fn frames_show_users_and_no_request_content() {
    for (more, is_named) in [("", false), (" --page-names", true)] {
        let arguments = format!("--api-keys unread --operator-key ann{more}");
        let (_app, router) = server(&arguments, "ann secret-a").await;
        let mut watched = get(&router, "/watch", Some("secret-a")).await.into_body();
        let _asked = ask(&router, "secret-a").await;
        let seen = loop {
            let seen = frame(&mut watched).await.expect("the server is there");
            if seen["stats"]["running"] == 1 && !seen["steps"].as_array().expect("steps").is_empty()
            {
                break seen;
            }
        };
        assert_eq!(seen["state"], "busy");
        // This model can resume after any token.
        assert!(seen["stats"]["restore"].is_null(), "{seen}");
        let user = seen["users"][0]["name"].as_str().expect("a name");
        assert_eq!(user == "ann", is_named, "{user}");
        assert_eq!(seen["sequences"][0]["user"], user);
        assert_eq!(seen["sequences"][0]["prompt"], 8);
        // No conversation: the server knows no parts of it.
        assert!(seen["sequences"][0]["answer"]["part"].is_null(), "{seen}");
        assert!(!seen.to_string().contains("secret"), "{seen}");
    }
}

#[tokio::test]
async fn frames_show_calls_as_they_begin() {
    let (_app, router) = server("", "").await;
    let mut watched = get(&router, "/watch", None).await.into_body();
    frame(&mut watched).await.expect("the server is there");
    let number = serde_json::json!({"type": "string", "minLength": 400, "maxLength": 500});
    let parameters = serde_json::json!({
        "type": "object", "properties": {"secret": number}, "required": ["secret"],
    });
    let body = serde_json::json!({
        "messages": [{"role": "user", "content": "Call."}],
        "tools": [{"type": "function", "function": {"name": "tell", "parameters": parameters}}],
        "tool_choice": "required", "stream": true, "max_tokens": 2000,
    });
    let request = Request::post("/v1/chat/completions");
    let request = request.header(header::CONTENT_TYPE, "application/json");
    let request = request
        .body(Body::from(body.to_string()))
        .expect("a request");
    let answered = router.clone().oneshot(request).await;
    let mut answer = answered.expect("a router always answers").into_body();
    // The call has begun, and its arguments are being written.
    for _ in 0..40 {
        answer.frame().await.expect("it goes on").expect("well");
    }
    let seen = loop {
        let seen = frame(&mut watched).await.expect("the server is there");
        if seen["part_sums"]["calls"] == 1 {
            break seen;
        }
    };
    let sequence = &seen["sequences"][0];
    assert_eq!(sequence["answer"]["part"], "call", "{seen}");
    assert_eq!(sequence["answer"]["calls"], 1, "{seen}");
    // A frame that this test was too slow for may have shown its beginning.
    let began = serde_json::json!([[sequence["id"], "call"]]);
    assert!(
        seen["parts"] == began || seen["parts"] == serde_json::json!([]),
        "{seen}"
    );
    assert!(
        !seen.to_string().contains("secret") && !seen.to_string().contains("tell"),
        "{seen}"
    );
    drop(answer);
}

#[tokio::test]
async fn frames_show_what_restore_points_hold() {
    let layers = [LayerKind::Recurrent, LayerKind::Full];
    let oracle = OracleConfig::with_layers(&layers);
    let oracle = move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle"));
    let engine = Engine::builder(oracle).start().await.expect("it starts");
    let arguments = Arguments::parse_from(["server", "--oracle"]);
    let keys = Keys::default();
    let app = Arc::new(App::new(engine, "hybrid".into(), keys, arguments.access));
    let router = router(Arc::clone(&app));
    let prompt: Vec<u32> = (0..300).map(|token| token % 50).collect();
    let body = serde_json::json!({"prompt": prompt, "max_tokens": 2}).to_string();
    let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body)).expect("a request");
    let answered = router.clone().oneshot(request).await;
    let answered = answered.expect("a router always answers").into_body();
    answered.collect().await.expect("a whole body");
    let mut watched = get(&router, "/watch", None).await.into_body();
    let seen = frame(&mut watched).await.expect("the server is there");
    let restore = &seen["stats"]["restore"];
    let nodes = seen["nodes"].as_array().expect("nodes").iter();
    // The tenth number of a row; see `trie.js`.
    let bytes = nodes.map(|node| node[2][9].as_u64().expect("bytes"));
    let held: Vec<u64> = bytes.filter(|bytes| *bytes > 0).collect();
    assert_eq!(restore["snapshots"], held.len(), "{seen}");
    assert!(!held.is_empty(), "{seen}");
    assert_eq!(
        restore["snapshot_bytes"],
        held.iter().sum::<u64>(),
        "{seen}"
    );
}

#[tokio::test]
async fn watchers_are_limited_and_leaving_frees_a_permit() {
    let (_app, router) = server("", "").await;
    let mut watched = Vec::new();
    let full = loop {
        let response = get(&router, "/watch", None).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        watched.push(response.into_body());
        assert!(watched.len() < 100, "there is a bound");
    };
    assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(full.headers().contains_key(header::RETRY_AFTER));
    watched.clear();
    let mut retry = get(&router, "/watch", None).await.into_body();
    assert!(frame(&mut retry).await.is_some());
}

#[tokio::test]
async fn one_key_cannot_take_all_watcher_permits() {
    let allowed = "--api-keys unread --operator-key ann --page-key bob";
    let (_app, router) = server(allowed, "ann secret-a\nbob secret-b").await;
    let mut watched = Vec::new();
    let full = loop {
        let response = get(&router, "/watch", Some("secret-b")).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        watched.push(response.into_body());
        assert!(watched.len() < 8, "other keys can watch");
    };
    assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(full.headers().contains_key(header::RETRY_AFTER));
    let operator = get(&router, "/watch", Some("secret-a")).await;
    assert_eq!(operator.status(), StatusCode::OK);
    watched.pop();
    let retry = get(&router, "/watch", Some("secret-b")).await;
    assert_eq!(
        retry.status(),
        StatusCode::OK,
        "a closed page frees its permit"
    );
}

#[tokio::test]
async fn frames_end_with_the_server() {
    let (app, router) = server("", "").await;
    let mut watched = get(&router, "/watch", None).await.into_body();
    assert!(frame(&mut watched).await.is_some());
    app.drain().await;
    let mut last = None;
    while let Some(seen) = frame(&mut watched).await {
        last = Some(seen);
    }
    if let Some(last) = last {
        let state = last["state"].as_str();
        assert!(matches!(state, Some("draining" | "stopped")), "{state:?}");
    }
}
