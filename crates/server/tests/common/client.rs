//! A server without a socket, and a client for it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use motet_server::app::App;
use motet_server::routes::router;
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";
pub(crate) const MESSAGES: &str = "/v1/messages";

pub(crate) struct Server {
    pub(crate) app: Arc<App>,
    pub(crate) router: Router,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Server {
    pub(crate) async fn new() -> Self {
        Self::with("", "").await
    }

    pub(crate) async fn with(arguments: &str, keys: &str) -> Self {
        Self::of(Arc::new(super::app(arguments, keys).await))
    }

    /// Creates a server for this app.
    pub(crate) fn of(app: Arc<App>) -> Self {
        let router = router(Arc::clone(&app));
        Self { app, router }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Body> {
        let answered = self.router.clone().oneshot(request).await;
        answered.expect("a router always answers")
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        Answer::of(self.send(request).await).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        Answer::of(self.send(post(path, body)).await).await
    }

    /// The named events of a stream.
    pub(crate) async fn events(&self, path: &str, body: &Value) -> Vec<(String, Value)> {
        let response = self.send(post(path, body)).await;
        assert_eq!(response.status(), StatusCode::OK);
        let text = whole(response).await;
        let events = text.split("\n\n").filter_map(|event| {
            let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
            let data = serde_json::from_str(data).expect("events are JSON");
            Some((name.to_owned(), data))
        });
        events.collect()
    }

    /// The events of a stream without the final `[DONE]`.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.send(post(path, body)).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "text/event-stream"
        );
        let text = whole(response).await;
        let mut events: Vec<&str> = text
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        let parsed = events.into_iter().map(serde_json::from_str);
        parsed.collect::<Result<_, _>>().expect("events are JSON")
    }
}

impl Answer {
    pub(crate) async fn of(response: Response<Body>) -> Self {
        let status = response.status();
        assert!(response.headers().contains_key("x-request-id"));
        let text = whole(response).await;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status, body }
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self.body
    }
}

pub(crate) async fn whole(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("a whole body");
    String::from_utf8(bytes.to_bytes().to_vec()).expect("text")
}

pub(crate) fn post(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    request
        .body(Body::from(body.to_string()))
        .expect("a request")
}

/// A greedy conversation with these additional fields.
pub(crate) fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "oracle",
        "messages": [{"role": "system", "content": "You are an oracle. ".repeat(8)},
                     {"role": "user", "content": "What will be?"}],
        "temperature": 0,
        "max_tokens": 40,
    });
    body.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("fields").clone());
    body
}
