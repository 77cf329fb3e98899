//! Memory of bodies, counted by the allocator.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, header};
use http_body_util::BodyExt;
use motet_server::app::router;
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

/// One test for all, as there is one count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_memory_is_bounded_and_freed_after_reading() {
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
