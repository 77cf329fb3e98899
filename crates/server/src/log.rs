//! One log line for each finished request: caller, route, status and times, never content.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::shown::{shown_path, truncated};
use crate::trace::{Generation, RequestEnd, RequestTrace};

/// The header of gRPC's errors.
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// nginx's status for a client that disconnected before its answer.
const CLIENT_LEFT: u16 = 499;

/// The log line of a request. It is written when the last clone is dropped: that of the
/// answer's body, or that of a handler whose client has disconnected.
#[derive(Clone, Debug)]
pub(crate) struct RequestLog(Arc<Line>);

#[derive(Debug)]
struct Line {
    id: String,
    trace: RequestTrace,
    method: String,
    path: String,
    since: Instant,
    /// 0 until there is an answer.
    status: AtomicU16,
    /// Whether the answer is a stream that has not ended.
    is_open: AtomicBool,
    prompt_tokens: AtomicUsize,
    output_tokens: AtomicUsize,
}

impl RequestLog {
    pub(crate) fn new(id: String, method: &Method, path: &str, trace: RequestTrace) -> Self {
        Self(Arc::new(Line {
            id,
            trace,
            method: truncated(method.as_str()),
            path: shown_path(path),
            since: Instant::now(),
            status: AtomicU16::new(0),
            is_open: AtomicBool::new(false),
            prompt_tokens: AtomicUsize::new(0),
            output_tokens: AtomicUsize::new(0),
        }))
    }

    /// Notes the answer's status. Errors of gRPC have status 200, and their own in a header.
    pub(crate) fn answered(&self, status: StatusCode, headers: &HeaderMap) {
        let grpc = headers
            .get(&GRPC_STATUS)
            .and_then(|code| code.to_str().ok());
        let status = grpc.map_or(status.as_u16(), http_status);
        self.0.status.store(status, Ordering::Relaxed);
    }

    /// Marks the answer as a stream.
    pub(crate) fn opened(&self) {
        self.0.is_open.store(true, Ordering::Relaxed);
    }

    /// Notes that the stream ends with an error of this status.
    pub(crate) fn failed(&self, status: StatusCode) {
        self.0.status.store(status.as_u16(), Ordering::Relaxed);
        self.closed();
    }

    /// Marks the stream as ended.
    pub(crate) fn closed(&self) {
        self.0.is_open.store(false, Ordering::Relaxed);
    }

    /// The common part of the spans of the request's sequences.
    pub(crate) fn generation(&self, request: &motet::Request) -> Generation {
        self.0.trace.generation(request)
    }

    pub(crate) fn prompt(&self, tokens: usize) {
        self.0.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(crate) fn output(&self, tokens: usize) {
        self.0.output_tokens.fetch_add(tokens, Ordering::Relaxed);
    }
}

/// The HTTP status that means the same as a code of gRPC.
fn http_status(code: &str) -> u16 {
    match code {
        "0" => 200,
        "1" => CLIENT_LEFT,
        "3" | "9" | "11" => 400,
        "4" => 504,
        "5" => 404,
        "6" | "10" => 409,
        "7" => 403,
        "8" => 429,
        "12" => 501,
        "14" => 503,
        "16" => 401,
        _ => 500,
    }
}

impl Line {
    fn end(&self) -> RequestEnd {
        let status = match self.status.load(Ordering::Relaxed) {
            0 => None,
            status => Some(status),
        };
        let is_cut = status == Some(200) && self.is_open.load(Ordering::Relaxed);
        RequestEnd {
            status,
            is_abandoned: status.is_none() || is_cut,
        }
    }

    fn status(&self) -> u16 {
        match self.end() {
            RequestEnd {
                status: Some(status),
                is_abandoned: false,
            } => status,
            _ => CLIENT_LEFT,
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        tracing::info!(
            id = self.id,
            trace_id = self.trace.trace_id(),
            method = self.method,
            path = self.path,
            status = self.status(),
            milliseconds = self.since.elapsed().as_millis() as u64,
            prompt_tokens = self.prompt_tokens.load(Ordering::Relaxed),
            output_tokens = self.output_tokens.load(Ordering::Relaxed),
            "request"
        );
        let end = self.end();
        self.trace.end(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{RequestHead, Tracer};

    fn trace() -> RequestTrace {
        let head = RequestHead {
            method: "GET",
            path: "/",
            route: None,
            headers: &HeaderMap::new(),
        };
        RequestTrace::begin(&Tracer::default(), &head)
    }

    #[test]
    fn long_paths_are_truncated_in_the_log() {
        let long = format!("/{}é", "x".repeat(60_000));
        let method = Method::from_bytes(&b"X".repeat(60_000)).expect("a method");
        let log = |method: &Method, path: &str| RequestLog::new("1".into(), method, path, trace());
        let long = log(&method, &long);
        let (method, path) = (&long.0.method, &long.0.path);
        assert!(path.len() < 300 && method.len() < 300);
        assert!(
            path.starts_with("/xxx") && path.ends_with("… (60003 bytes)"),
            "{path}"
        );
        // The cut is between characters: each of these has two bytes, after a first one of one byte.
        let wide = log(&Method::GET, &format!("/{}", "é".repeat(200)));
        assert!(wide.0.path.ends_with("é… (401 bytes)"), "{}", wide.0.path);
        let whole = "/v1/models";
        let short = log(&Method::GET, whole);
        assert_eq!((&*short.0.method, &*short.0.path), ("GET", whole));
    }

    #[test]
    fn ids_of_responses_are_shortened_in_the_log() {
        let id = "resp_0123456789abcdef0123456789abcdef";
        let check = |path: &str, expected: &str| {
            let log = RequestLog::new("1".into(), &Method::GET, path, trace());
            assert_eq!(log.0.path, expected);
        };
        check(&format!("/v1/responses/{id}"), "/v1/responses/resp_0123…");
        let items = format!("/v1/responses/{id}/input_items");
        check(&items, "/v1/responses/resp_0123…/input_items");
        check(
            "/v1/responses/%72esp_0123456789",
            "/v1/responses/%72esp_01…",
        );
        check("/v1/responses/éééééééé", "/v1/responses/éééé…");
        check("/v1/responses", "/v1/responses");
        check("/v1/responses/", "/v1/responses/");
    }

    #[test]
    fn early_disconnect_is_logged_as_499() {
        let log = || RequestLog::new("1".into(), &Method::GET, "/", trace());
        let left = log();
        assert_eq!(left.0.status(), 499);
        let answered = log();
        answered.answered(StatusCode::NOT_FOUND, &HeaderMap::new());
        assert_eq!(answered.0.status(), 404);
        let grpc = log();
        let status = HeaderMap::from_iter([(GRPC_STATUS.clone(), "14".parse().expect("ASCII"))]);
        grpc.answered(StatusCode::OK, &status);
        assert_eq!(grpc.0.status(), 503);
        let streamed = log();
        streamed.answered(StatusCode::OK, &HeaderMap::new());
        streamed.opened();
        assert_eq!(streamed.0.status(), 499);
        streamed.closed();
        assert_eq!(streamed.0.status(), 200);
    }
}
