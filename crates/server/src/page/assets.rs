//! The page's files, and headers that isolate the page from other sites.

use axum::extract::Path;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, kind and content.
const FILES: [(&str, &str, &str); 10] = [
    ("index.html", HTML, include_str!("../../page/index.html")),
    ("page.css", CSS, include_str!("../../page/page.css")),
    ("main.js", SCRIPT, include_str!("../../page/main.js")),
    ("feed.js", SCRIPT, include_str!("../../page/feed.js")),
    ("words.js", SCRIPT, include_str!("../../page/words.js")),
    ("figures.js", SCRIPT, include_str!("../../page/figures.js")),
    ("score.js", SCRIPT, include_str!("../../page/score.js")),
    ("trie.js", SCRIPT, include_str!("../../page/trie.js")),
    ("memory.js", SCRIPT, include_str!("../../page/memory.js")),
    ("people.js", SCRIPT, include_str!("../../page/people.js")),
];

/// The page loads nothing from elsewhere, sends nothing elsewhere, and cannot be framed.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// `GET /`.
pub(crate) async fn index() -> Response {
    answer(HTML, FILES[0].2)
}

/// `GET /page/{file}`.
pub(crate) async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, content)) => answer(kind, content),
        None => {
            let message = format!("the page has no file {name:?}");
            ApiError::request(StatusCode::NOT_FOUND, message).into_response()
        }
    }
}

fn answer(kind: &'static str, content: &'static str) -> Response {
    let kind = [(header::CONTENT_TYPE, kind)];
    (kind, HEADERS, content).into_response()
}
