//! Memory of bodies and of headers, counted by the allocator.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, header};
use http_body_util::BodyExt;
use motet_server::app::{App, router};
use motet_server::serve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a count of its bytes.
struct Counted;

#[global_allocator]
static COUNTED: Counted = Counted;

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(block, layout) }
    }
}

const BODY_BYTES: usize = 4 << 20;

/// A body just below the limit, with as many zeros in it as fit.
fn filled(before: &str, after: &str) -> Bytes {
    let zeros = (BODY_BYTES - before.len() - after.len() - 2) / 2;
    format!("{before}{}0{after}", "0,".repeat(zeros)).into()
}

fn post(path: &str, body: &Bytes) -> Request<Body> {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_LENGTH, body.len());
    request.body(Body::from(body.clone())).expect("a request")
}

/// Sends a body. Returns the status and the peak of additional bytes.
async fn peak(router: &Router, path: &str, body: &Bytes) -> (u16, usize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let answered = router.clone().oneshot(post(path, body)).await;
    let answered = answered.expect("a router always answers");
    let status = answered.status().as_u16();
    answered
        .into_body()
        .collect()
        .await
        .expect("a whole answer");
    (status, PEAK.load(Ordering::Relaxed).saturating_sub(before))
}

/// Clients whose requests do not end, all at once.
const CONNECTIONS: usize = 64;
/// Bytes that a connection may take while it has no body, and with a short one.
const CONNECTION_BYTES: usize = 64 << 10;
const SHORT_BODY_BYTES: usize = 128 << 10;

/// Sends the beginning of a request, and returns its connection.
async fn begin(server: SocketAddr, request: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server).await.expect("it listens");
    // The server stops to read where a head is too long.
    socket.write_all(request.as_bytes()).await.ok();
    socket
}

/// Checks the memory of requests that do not end: heads that may still be fine, heads that are too
/// long already, and short bodies.
async fn check_connections(app: &Arc<App>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let never = std::future::pending();
    let serving = tokio::spawn(serve::serve(Arc::clone(app), listener, never));
    let head = |bytes: usize| format!("GET /health HTTP/1.1\r\nx: {}", "x".repeat(bytes));
    let post = "POST /tokenize HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 65000";
    let body = format!("{post}\r\n\r\n{}", "x".repeat(64_000));
    for (request, is_answered, bytes_max) in [
        (head(16_000), false, CONNECTION_BYTES),
        (head(400_000), true, CONNECTION_BYTES),
        (body, false, SHORT_BODY_BYTES),
    ] {
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let sockets = (0..CONNECTIONS).map(|_| begin(address, &request));
        let mut sockets = futures_util::future::join_all(sockets).await;
        for socket in sockets.iter_mut().filter(|_| is_answered) {
            let mut answer = String::new();
            let read = socket.read_to_string(&mut answer).await;
            read.expect("the answer is not lost");
            assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        }
        let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        assert!(
            taken < CONNECTIONS * bytes_max,
            "{CONNECTIONS} times {} bytes take {taken} bytes",
            request.len()
        );
    }
    serving.abort();
}

/// One test for all, as there is one count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_requests_is_bounded_and_freed_after_reading() {
    let app = Arc::new(common::app("", "").await);
    check_connections(&app).await;
    let router = router(Arc::clone(&app));
    let chat = "/v1/chat/completions";
    let text = "/v1/completions";
    let known_fields = r#""messages": [{"role": "user", "content": "x"}], "max_tokens": 1"#;

    let unknown = filled(&format!(r#"{{{known_fields}, "unknown": ["#), "]}");
    let (status, bytes) = peak(&router, chat, &unknown).await;
    assert_eq!(status, 200);
    assert!(
        bytes < 2 * BODY_BYTES,
        "an unknown field takes {bytes} bytes"
    );

    for (path, before, after) in [
        (chat, r#"{"messages": ["#, "]}"),
        (
            chat,
            r#"{"messages": [{"role": "user", "content": ["#,
            "]}]}",
        ),
        (chat, r#"{"messages": [{"role": "user", "name": ["#, "]}]}"),
        (
            chat,
            r#"{"messages": [{"role": "user", "tool_calls": ["#,
            "]}]}",
        ),
        (
            chat,
            r#"{"messages": [{"role": "user", "tool_calls": [{"function": {"arguments": "["#,
            r#"]"}}]}]}"#,
        ),
        (chat, r#"{"tools": ["#, "]}"),
        (chat, r#"{"tool_choice": ["#, "]}"),
        (chat, r#"{"chat_template_kwargs": {"x": ["#, "]}}"),
        (
            chat,
            r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": ["#,
            "]}}}",
        ),
        (chat, r#"{"stop": ["#, "]}"),
        (chat, r#"{"stop_token_ids": ["#, "]}"),
        (chat, r#"{"logit_bias": ["#, "]}"),
        (text, r#"{"prompt": ["#, "]}"),
        (text, r#"{"prompt": [["#, "]]}"),
        ("/tokenize", r#"{"prompt": ["#, "]}"),
        ("/detokenize", r#"{"tokens": ["#, "]}"),
    ] {
        let (status, bytes) = peak(&router, path, &filled(before, after)).await;
        assert_eq!(status, 400, "{before}");
        assert!(bytes < 8 * BODY_BYTES, "{before} takes {bytes} bytes");
    }

    // Each of many prompts has a copy of the other fields.
    let prompts = vec![r#""x""#; 128].join(",");
    for (field, before, after, expected) in [
        ("user", r#"""#, r#"""#, 400),
        ("cache_salt", r#"""#, r#"""#, 400),
        ("stop", r#"["x", ""#, r#""]"#, 400),
        (
            "response_format",
            r#"{"type": "json_schema", "json_schema": {"schema": {"description": ""#,
            r#""}}}"#,
            422,
        ),
    ] {
        let before = format!(r#"{{"prompt": [{prompts}], "{field}": {before}"#);
        let (status, bytes) = peak(&router, text, &filled(&before, &format!("{after}}}"))).await;
        assert_eq!(status, expected, "{field}");
        assert!(bytes < 8 * BODY_BYTES, "{field} takes {bytes} bytes");
    }

    // The body is freed before it is answered.
    let long = r#""messages": [{"role": "user", "content": "x"}], "max_tokens": 8000,
                  "ignore_eos": true"#;
    let long = filled(&format!(r#"{{{long}, "unknown": ["#), "]}");
    let sent = post(chat, &long);
    drop(long);
    let before = LIVE.load(Ordering::Relaxed) - BODY_BYTES;
    let answering = tokio::spawn(router.oneshot(sent));
    while app.engine().health().running == 0 {
        assert!(!answering.is_finished(), "it takes a while");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let left = LIVE.load(Ordering::Relaxed).saturating_sub(before);
    assert!(!answering.is_finished(), "it takes a while");
    assert!(left < BODY_BYTES, "{left} bytes are left of it");
    answering.abort();
}
