//! Memory of headers, of bodies and of answers, counted by the allocator.
//!
//! Each test runs in a process of its own, with a limit on its address space: there is one count, and
//! a server that exceeds its bounds is to fail here and not to take the machine's memory.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response, header};
use http_body_util::BodyExt;
use motet_server::app::App;
use motet_server::routes::router;
use motet_server::serve;
use serde_json::{Value, json};
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
/// Tokens of a prompt whose log probabilities are wanted.
const PROMPT_TOKENS: usize = 4_000;
/// Most address space of a test, which is also that of its program and its threads.
const ADDRESS_SPACE_KIB: usize = 1 << 20;

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
    // A client that keeps nothing of what it reads.
    let mut body = answered.into_body();
    while let Some(frame) = body.frame().await {
        frame.expect("a whole answer");
    }
    (status, PEAK.load(Ordering::Relaxed).saturating_sub(before))
}

/// Runs a scenario in a process of its own: this program with that test only. A process that is
/// in it already runs it right here.
fn alone<F: Future<Output = ()>>(test: &str, scenario: impl FnOnce() -> F) {
    const ALONE: &str = "MOTET_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build();
        return runtime.expect("a runtime").block_on(scenario());
    }
    let limited = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"");
    let child = Command::new("sh")
        .args(["-c", &limited])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        // Each arena of the allocator reserves addresses beforehand.
        .env("MALLOC_ARENA_MAX", "1")
        .env(ALONE, "1")
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}: {text}", child.status);
}

#[test]
fn body_memory_is_bounded_and_freed_after_reading() {
    alone("body_memory_is_bounded_and_freed_after_reading", bodies);
}

#[test]
fn memory_of_unfinished_requests_is_bounded() {
    alone("memory_of_unfinished_requests_is_bounded", connections);
}

#[test]
fn references_cost_no_memory_of_their_own() {
    alone("references_cost_no_memory_of_their_own", references);
}

#[test]
fn scores_are_bounded_and_written_piece_by_piece() {
    alone("scores_are_bounded_and_written_piece_by_piece", scores);
}

#[test]
fn last_events_of_a_response_share_their_parts() {
    alone("last_events_of_a_response_share_their_parts", last_events);
}

/// A short body names the same stored item again and again.
async fn references() {
    let app = Arc::new(common::app("", "").await);
    let router = router(app);
    let text = "x".repeat(6_000);
    let stored = json!({
        "max_output_tokens": 1, "store": true,
        "input": [{"role": "user", "content": text}],
    });
    let stored = answered(&router, "/v1/responses", &stored).await;
    let id = stored["id"].as_str().expect("an id");
    let id = format!("msg_{}_i0", id.trim_start_matches("resp_"));
    for (references, field) in [(900, "input"), (30_000, "input")] {
        let reference = json!({"type": "item_reference", "id": id});
        let body = json!({"max_output_tokens": 1, "input": vec![reference; references]});
        let body = body.to_string().into();
        let (status, bytes) = peak(&router, "/v1/responses", &body).await;
        assert_eq!(status, 400, "{references} of {field}");
        assert!(
            bytes < 24 << 20,
            "{references} references take {bytes} bytes"
        );
    }
}

/// The JSON of log probabilities is ten times as long as the numbers.
async fn scores() {
    let app = Arc::new(common::app("", "").await);
    let router = router(app);
    let scores = |prompts: usize, more: Value| {
        let prompts = (0..prompts).map(|first| vec![1 + first; PROMPT_TOKENS]);
        let mut body = json!({"prompt": prompts.collect::<Vec<_>>(), "max_tokens": 1});
        let more = more.as_object().expect("fields").clone();
        body.as_object_mut().expect("an object").extend(more);
        Bytes::from(body.to_string())
    };
    let all = json!({"max_tokens": 0, "echo": true, "logprobs": 20, "prompt_logprobs": 20});
    let without = scores(2, json!({"cache_prompt": false}));
    // The first one also fills what the engine keeps for good.
    peak(&router, "/v1/completions", &without).await;
    let (_, computed) = peak(&router, "/v1/completions", &without).await;
    let mut all_uncached = all.clone();
    all_uncached["cache_prompt"] = json!(false);
    let (status, bytes) = peak(&router, "/v1/completions", &scores(2, all_uncached)).await;
    assert_eq!(status, 200);
    // The numbers take 1.7 MB, and the answer 15 MB.
    let bytes = bytes.saturating_sub(computed);
    assert!(bytes < 6 << 20, "scores take {bytes} bytes");
    let (status, bytes) = peak(&router, "/v1/completions", &scores(48, all)).await;
    assert_eq!(status, 400);
    assert!(bytes < 16 << 20, "rejected scores take {bytes} bytes");
}

/// Four events repeat the whole text with its log probabilities.
async fn last_events() {
    let app = Arc::new(common::app("", "").await);
    let router = router(app);
    let body = json!({
        "input": "What will be?", "max_output_tokens": 2_000, "stream": true, "temperature": 0,
        "top_logprobs": 20, "store": false,
        "text": {"format": {"type": "json_schema", "name": "long", "schema": {
            "type": "string", "pattern": "^[a-z]{1990}$",
        }}},
    });
    let body = Bytes::from(body.to_string());
    // The first one also fills what the engine keeps for good.
    peak(&router, "/v1/responses", &body).await;
    let before = LIVE.load(Ordering::Relaxed);
    let sent = post("/v1/responses", &body);
    let answered = router.clone().oneshot(sent).await.expect("an answer");
    let mut body = answered.into_body();
    let end = b"event: response.output_text.done";
    loop {
        let frame = body.frame().await.expect("more").expect("whole");
        let data = frame.into_data().expect("data");
        if data.windows(end.len()).any(|window| window == end) {
            break;
        }
    }
    // The engine frees the ended sequence, which followed a grammar.
    let held = || LIVE.load(Ordering::Relaxed).saturating_sub(before);
    for _ in 0..1_000 {
        if held() < 2 << 20 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(held() < 2 << 20, "the unread end takes {} bytes", held());
    drop(body);
}

async fn answered(router: &Router, path: &str, body: &Value) -> Value {
    let sent = post(path, &body.to_string().into());
    let answered: Response<Body> = router.clone().oneshot(sent).await.expect("an answer");
    let status = answered.status();
    let bytes = answered
        .into_body()
        .collect()
        .await
        .expect("a whole answer");
    let body: Value = serde_json::from_slice(&bytes.to_bytes()).expect("JSON");
    assert_eq!(status, 200, "{body}");
    body
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
async fn connections() {
    let app: Arc<App> = Arc::new(common::app("", "").await);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let never = std::future::pending();
    let serving = tokio::spawn(serve::serve(Arc::clone(&app), listener, never));
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

async fn bodies() {
    let app = Arc::new(common::app("", "").await);
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
