//! The trace context of requests, on the oracle.

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use common::client::{CHAT, Server, chat, post, whole};
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// The parts of an answer's `traceparent`: version, trace, span, flags.
#[track_caller]
fn answered(headers: &HeaderMap) -> [String; 4] {
    let header = headers["traceparent"].to_str().expect("ASCII");
    let parts: Vec<String> = header.split('-').map(str::to_owned).collect();
    parts.try_into().expect("four parts")
}

async fn get(server: &Server, path: &str, sent: &[&str]) -> [String; 4] {
    let mut request = Request::get(path).body(Body::empty()).expect("a request");
    for value in sent {
        let value = value.parse().expect("a value");
        request.headers_mut().append("traceparent", value);
    }
    answered(server.send(request).await.headers())
}

#[tokio::test]
async fn the_trace_of_a_client_goes_on() {
    let server = Server::new().await;
    for flags in ["00", "01"] {
        let sent = format!("00-{TRACE}-{SPAN}-{flags}");
        // A page, an error and an answer.
        for path in ["/", "/nowhere", "/v1/models"] {
            let [version, trace, span, answered] = get(&server, path, &[&sent]).await;
            assert_eq!((&*version, &*trace), ("00", TRACE), "{path}");
            assert_eq!(answered, flags, "{path}: the server changes no flag");
            assert_ne!(span, SPAN, "{path}: the server has a span of its own");
        }
    }
}

#[tokio::test]
async fn malformed_contexts_begin_a_new_trace() {
    let server = Server::new().await;
    let good = format!("00-{TRACE}-{SPAN}-01");
    let upper = good.to_uppercase();
    let mut seen = Vec::new();
    for sent in [&[][..], &[&*upper], &["nonsense"], &[&*good, &*good]] {
        let [version, trace, span, flags] = get(&server, "/v1/models", sent).await;
        assert_eq!((&*version, &*flags), ("00", "00"), "{sent:?}");
        assert_eq!((trace.len(), span.len()), (32, 16), "{sent:?}");
        assert_ne!(trace, TRACE, "{sent:?}");
        assert!(
            !seen.contains(&trace),
            "{sent:?}: each is a trace of its own"
        );
        seen.push(trace);
    }
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn the_log_names_the_trace() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true);
    let subscriber = subscriber.with_writer(log.clone()).finish();
    // The log of all tests of this program.
    tracing::subscriber::set_global_default(subscriber).expect("it is the only one");
    let server = Server::new().await;
    let body = chat(json!({"stream": true, "max_tokens": 4, "ignore_eos": true}));
    let mut request = post(CHAT, &body);
    let sent = format!("00-{TRACE}-{SPAN}-01").parse().expect("a value");
    request.headers_mut().insert("traceparent", sent);
    whole(server.send(request).await).await;
    let text = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("JSON");
    let mut lines = lines.iter().filter(|line| line["message"] == "request");
    let line = lines.find(|line| line["path"] == CHAT);
    let line = line.expect("a line of the request");
    assert_eq!(line["trace_id"], TRACE);
    assert_eq!(line["output_tokens"], 4);
}
