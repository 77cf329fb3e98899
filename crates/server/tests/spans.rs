//! The spans of requests, on the oracle, in an exporter of the test's own and through OTLP.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use common::client::{CHAT, Server, TEXT, chat, post, whole};
use http_body_util::BodyExt;
use motet_server::app::App;
use motet_server::trace::{TraceSettings, export_rest};
use opentelemetry::trace::{SpanId, SpanKind, Status, TraceId};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use serde_json::json;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// Keeps the spans.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Memory {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().expect("no panic").extend(batch);
        Ok(())
    }
}

impl Memory {
    fn spans(&self) -> Vec<SpanData> {
        self.0.lock().expect("no panic").clone()
    }
}

async fn app() -> App {
    common::app("", "").await
}

async fn server() -> (Server, Memory) {
    let memory = Memory::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(memory.clone());
    let server = Server::of(Arc::new(app().await.traces(&provider.build())));
    (server, memory)
}

fn named<'a>(spans: &'a [SpanData], name: &str) -> Vec<&'a SpanData> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn attributes(span: &SpanData) -> BTreeMap<String, String> {
    let pairs = span.attributes.iter();
    let pairs = pairs.map(|pair| (pair.key.to_string(), pair.value.to_string()));
    pairs.collect()
}

fn traced(path: &str, body: &serde_json::Value, flags: &str) -> Request<Body> {
    let mut request = post(path, body);
    let sent = format!("00-{TRACE}-{SPAN}-{flags}");
    let headers = request.headers_mut();
    headers.insert("traceparent", sent.parse().expect("a value"));
    headers.insert("tracestate", "vendor=1,other=2".parse().expect("a value"));
    request
}

#[tokio::test]
async fn a_request_has_spans_of_its_stages() {
    let (server, memory) = server().await;
    let body = chat(json!({"max_tokens": 8, "ignore_eos": true}));
    let response = server.send(traced(CHAT, &body, "01")).await;
    let header = response.headers()["traceparent"].clone();
    let answer: serde_json::Value = serde_json::from_str(&whole(response).await).expect("JSON");

    let spans = memory.spans();
    assert_eq!(spans.len(), 5, "{spans:?}");
    let trace = TraceId::from_hex(TRACE).expect("an id");
    assert!(
        spans
            .iter()
            .all(|span| span.span_context.trace_id() == trace)
    );
    let [request] = named(&spans, &format!("POST {CHAT}"))[..] else {
        panic!("{spans:?}");
    };
    assert_eq!(request.span_kind, SpanKind::Server);
    assert_eq!(
        request.parent_span_id,
        SpanId::from_hex(SPAN).expect("an id")
    );
    assert_eq!(request.span_context.trace_state().get("other"), Some("2"));
    let own = request.span_context.span_id();
    assert_eq!(header, format!("00-{TRACE}-{own}-01"));
    let recorded = attributes(request);
    assert_eq!(recorded["http.route"], CHAT);
    assert_eq!(recorded["http.response.status_code"], "200");
    assert_eq!(recorded.get("error.type"), None);

    let [sequence] = named(&spans, "chat oracle")[..] else {
        panic!("{spans:?}");
    };
    assert_eq!(sequence.parent_span_id, own);
    let recorded = attributes(sequence);
    let usage = &answer["usage"];
    for (name, expected) in [
        ("gen_ai.operation.name", "chat".to_owned()),
        ("gen_ai.request.model", "oracle".into()),
        ("gen_ai.request.max_tokens", "8".into()),
        ("gen_ai.request.temperature", "0".into()),
        (
            "gen_ai.usage.input_tokens",
            usage["prompt_tokens"].to_string(),
        ),
        ("gen_ai.usage.output_tokens", "8".into()),
        ("gen_ai.usage.cache_read.input_tokens", "0".into()),
    ] {
        assert_eq!(recorded.get(name), Some(&expected), "{name}: {recorded:?}");
    }
    assert!(
        recorded["gen_ai.response.finish_reasons"].contains("length"),
        "{recorded:?}"
    );
    assert_eq!(sequence.status, Status::Unset);

    // The stages follow one another, and together are the sequence.
    let mut at = sequence.start_time;
    for name in ["queue", "prefill", "decode"] {
        let [stage] = named(&spans, name)[..] else {
            panic!("{name}: {spans:?}");
        };
        assert_eq!(
            stage.parent_span_id,
            sequence.span_context.span_id(),
            "{name}"
        );
        assert_eq!(stage.start_time, at, "{name}");
        assert!(stage.end_time >= at, "{name}");
        at = stage.end_time;
    }
    assert_eq!(at, sequence.end_time);
    assert!(request.start_time <= sequence.start_time);
    assert!(sequence.end_time <= request.end_time);
    let text = format!("{spans:?}");
    assert!(!text.contains("What will be"), "no content: {text}");
}

#[tokio::test]
async fn each_output_has_spans() {
    let (server, memory) = server().await;
    let body = json!({"prompt": ["one ", "two "], "n": 2, "max_tokens": 3, "ignore_eos": true});
    server.post(TEXT, &body).await.ok();
    let spans = memory.spans();
    assert_eq!(named(&spans, "text_completion oracle").len(), 4);
    assert_eq!(named(&spans, "decode").len(), 4);
}

#[tokio::test]
async fn errors_and_disconnects_are_recorded() {
    let (server, memory) = server().await;
    let invalid = server.post(CHAT, &chat(json!({"top_p": 7}))).await;
    assert_eq!(invalid.status, StatusCode::BAD_REQUEST);
    let recorded = attributes(&memory.spans()[0]);
    assert_eq!(recorded["http.response.status_code"], "400");
    assert_eq!(
        recorded.get("error.type"),
        None,
        "a client's mistake is no error of the server"
    );

    memory.0.lock().expect("no panic").clear();
    let body = chat(json!({"stream": true, "max_tokens": 4000, "ignore_eos": true}));
    let mut stream = server.send(post(CHAT, &body)).await.into_body();
    for _ in 0..4 {
        stream.frame().await.expect("it goes on").expect("well");
    }
    drop(stream);
    let spans = memory.spans();
    let recorded = attributes(named(&spans, &format!("POST {CHAT}"))[0]);
    assert_eq!(recorded["error.type"], "client_disconnected");
    let recorded = attributes(named(&spans, "chat oracle")[0]);
    assert!(
        recorded["gen_ai.response.finish_reasons"].contains("cancelled"),
        "{recorded:?}"
    );
    assert_ne!(recorded["gen_ai.usage.output_tokens"], "0");
}

#[tokio::test]
async fn only_the_api_and_sampled_traces_are_recorded() {
    let (server, memory) = server().await;
    for path in ["/", "/health", "/ready", "/nowhere", "/openapi.json"] {
        server.get(path).await;
    }
    let body = chat(json!({"max_tokens": 2}));
    let response = server.send(traced(CHAT, &body, "00")).await;
    let header = response.headers()["traceparent"].to_str().expect("ASCII");
    assert!(header.starts_with(&format!("00-{TRACE}-")), "{header}");
    assert!(header.ends_with("-00"), "{header}");
    whole(response).await;
    assert_eq!(memory.spans(), [], "the client's caller records nothing");
    server.get("/v1/models").await.ok();
    assert_eq!(named(&memory.spans(), "GET /v1/models").len(), 1);
}

/// A collector on loopback, which passes the bodies of requests on and answers each with `status`.
fn collector(status: &'static str) -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            while let Some(request) = read_request(&connection) {
                if sender.send(request).is_err() {
                    return;
                }
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                if (&connection).write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    (format!("http://{address}"), received)
}

/// The head and the body of a request; `None` at the end of a connection.
fn read_request(mut connection: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).ok()?.to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length?.parse().ok()?];
    connection.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn exporting(endpoint: String) -> SdkTracerProvider {
    let settings = TraceSettings {
        otlp_endpoint: Some(endpoint),
        otel_service_name: "a choir".into(),
    };
    let provider = settings.provider().expect("a URL");
    provider.expect("an endpoint is named")
}

fn contains(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_reach_a_collector() {
    let (endpoint, received) = collector("200 OK");
    let provider = exporting(endpoint);
    let server = Server::of(Arc::new(app().await.traces(&provider)));
    server
        .post(CHAT, &chat(json!({"max_tokens": 4})))
        .await
        .ok();
    export_rest(provider).await;
    let request = received.recv_timeout(Duration::from_secs(30));
    let (head, body) = request.expect("spans came");
    assert!(head.starts_with("post /v1/traces "), "{head}");
    assert!(head.contains("application/x-protobuf"), "{head}");
    for text in ["a choir", "chat oracle", "queue", "prefill", "decode", CHAT] {
        assert!(contains(&body, text), "{text}");
    }
    assert!(!contains(&body, "What will be"), "no content");
}

/// Requests are answered while a collector fails, does not answer or is not there, with more spans
/// than the queue has places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_for_an_export() {
    let (failing, _received) = collector("503 Service Unavailable");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_at = format!("http://{}", silent.local_addr().expect("an address"));
    for endpoint in [failing, silent_at, "http://127.0.0.1:1".into()] {
        let server = Server::of(Arc::new(app().await.traces(&exporting(endpoint))));
        // Five spans each; 2,048 may wait.
        for _ in 0..500 {
            let body = json!({"prompt": "a", "max_tokens": 1});
            server.post(TEXT, &body).await.ok();
        }
    }
}
