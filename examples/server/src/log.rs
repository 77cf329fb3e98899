//! One line for each request, once it is over: who, what, how long; never what was said.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Instant;

use axum::http::{Method, StatusCode};

/// nginx's status for a client that left before it had its answer.
const CLIENT_LEFT: u16 = 499;
/// The line has at most so many bytes of a path or a method: any client may send long ones.
const SHOWN_BYTES_MAX: usize = 256;

/// What is to be told of a request. Written when the last clone is dropped: that of the
/// answer's body, or of a handler whose client has left.
#[derive(Clone, Debug)]
pub(crate) struct RequestLog(Arc<Line>);

#[derive(Debug)]
struct Line {
    id: String,
    method: String,
    path: String,
    since: Instant,
    /// 0 until there is an answer.
    status: AtomicU16,
    /// Whether the answer is a stream that has not come to its end.
    is_open: AtomicBool,
    prompt_tokens: AtomicUsize,
    output_tokens: AtomicUsize,
}

impl RequestLog {
    pub(crate) fn new(id: String, method: &Method, path: &str) -> Self {
        Self(Arc::new(Line {
            id,
            method: truncated(method.as_str()),
            path: truncated(path),
            since: Instant::now(),
            status: AtomicU16::new(0),
            is_open: AtomicBool::new(false),
            prompt_tokens: AtomicUsize::new(0),
            output_tokens: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn answered(&self, status: StatusCode) {
        self.0.status.store(status.as_u16(), Ordering::Relaxed);
    }

    /// What follows is a stream.
    pub(crate) fn opened(&self) {
        self.0.is_open.store(true, Ordering::Relaxed);
    }

    /// The stream has come to its end.
    pub(crate) fn closed(&self) {
        self.0.is_open.store(false, Ordering::Relaxed);
    }

    pub(crate) fn prompt(&self, tokens: usize) {
        self.0.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(crate) fn output(&self, tokens: usize) {
        self.0.output_tokens.fetch_add(tokens, Ordering::Relaxed);
    }
}

impl Line {
    fn status(&self) -> u16 {
        match self.status.load(Ordering::Relaxed) {
            0 => CLIENT_LEFT,
            200 if self.is_open.load(Ordering::Relaxed) => CLIENT_LEFT,
            status => status,
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        tracing::info!(
            id = self.id,
            method = self.method,
            path = self.path,
            status = self.status(),
            milliseconds = self.since.elapsed().as_millis() as u64,
            prompt_tokens = self.prompt_tokens.load(Ordering::Relaxed),
            output_tokens = self.output_tokens.load(Ordering::Relaxed),
            "request"
        );
    }
}

/// The beginning of a text, and how long it was if that is not all of it.
fn truncated(text: &str) -> String {
    if text.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    let mut end = SHOWN_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}… ({} bytes)", &text[..end], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_truncated_in_the_log() {
        let long = format!("/{}é", "x".repeat(60_000));
        let method = Method::from_bytes(&b"X".repeat(60_000)).expect("a method");
        let log = RequestLog::new("1".into(), &method, &long);
        let (method, path) = (&log.0.method, &log.0.path);
        assert!(path.len() < 300 && method.len() < 300);
        assert!(
            path.starts_with("/xxx") && path.ends_with("… (60003 bytes)"),
            "{path}"
        );
        // Cut between characters: each of these has two bytes, and the first byte is another.
        let log = RequestLog::new("1".into(), &Method::GET, &format!("/{}", "é".repeat(200)));
        assert!(log.0.path.ends_with("é… (401 bytes)"), "{}", log.0.path);
        let whole = "/v1/models";
        let log = RequestLog::new("1".into(), &Method::GET, whole);
        assert_eq!((&*log.0.method, &*log.0.path), ("GET", whole));
    }

    #[test]
    fn early_disconnect_is_logged_as_499() {
        let log = || RequestLog::new("1".into(), &Method::GET, "/");
        let left = log();
        assert_eq!(left.0.status(), 499);
        let answered = log();
        answered.answered(StatusCode::NOT_FOUND);
        assert_eq!(answered.0.status(), 404);
        let streamed = log();
        streamed.answered(StatusCode::OK);
        streamed.opened();
        assert_eq!(streamed.0.status(), 499);
        streamed.closed();
        assert_eq!(streamed.0.status(), 200);
    }
}
