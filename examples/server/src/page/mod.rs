//! The page to watch, and what it shows.
//!
//! | route | what it gives |
//! |---|---|
//! | `/`, `/page/*` | the page: files of this binary, for everybody |
//! | `/watch` | frames of what it shows, as server-sent events; for the operator, and for `--page-key` |
//!
//! | file | what happens there |
//! |---|---|
//! | `assets.rs` | the page's files, and the headers that keep it to itself |
//! | `watchers.rs` | those who watch: how many, and one task that serves them all |
//! | `frame.rs` | what they are shown |
//! | `latency.rs` | how long callers wait, as of late |

mod assets;
mod frame;
mod latency;
mod watchers;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;

use crate::access;
use crate::app::App;
use crate::error::ApiError;
pub(crate) use watchers::{KEY_WATCHERS_MAX, Watchers};

/// What is there for those who watch. It is no part of the API.
pub(crate) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(assets::index))
        .route("/page/{file}", get(assets::file))
        .route("/watch", get(watch))
}

/// `GET /watch`.
async fn watch(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let key_permits = access::authorize_watcher(&app, &headers)?;
    let watcher = app.watchers.add(&app, key_permits)?;
    let frames = stream::unfold(watcher, async |mut watcher| {
        let frame = watcher.next().await?;
        Some((Ok::<Bytes, Infallible>(frame), watcher))
    });
    let head = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((head, Body::from_stream(frames)).into_response())
}
