//! The live page, and its data.
//!
//! | route | answer |
//! |---|---|
//! | `/`, `/page/*` | the page: files in this binary, for all callers |
//! | `/watch` | its frames as server-sent events; for the operator, and for `--page-key` |
//!
//! | file | content |
//! |---|---|
//! | `assets.rs` | the page's files, and headers that isolate the page |
//! | `watchers.rs` | limits on watchers, and one task that serves them all |
//! | `frame.rs` | the frames |
//! | `latency.rs` | recent latencies |

mod assets;
mod frame;
mod latency;
mod watchers;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use motet::UserId;

use crate::access;
use crate::app::App;
use crate::error::ApiError;
use watchers::Watchers;

/// The state of these routes.
#[derive(Debug)]
struct Page {
    app: Arc<App>,
    watchers: Watchers,
    /// Names of users that watchers may see.
    names: BTreeMap<UserId, Arc<str>>,
}

impl Page {
    fn new(app: &Arc<App>) -> Self {
        let known = app.access.page_names.then(|| app.keys.names());
        let names = known.into_iter().flatten();
        Self {
            app: Arc::clone(app),
            watchers: Watchers::new(),
            names: names
                .map(|name| (UserId::of(name), Arc::clone(name)))
                .collect(),
        }
    }
}

/// The page's routes. They are not part of the API.
pub(crate) fn router<S>(app: &Arc<App>) -> Router<S> {
    Router::new()
        .route("/", get(assets::index))
        .route("/page/{file}", get(assets::file))
        .route("/watch", get(watch))
        .with_state(Arc::new(Page::new(app)))
}

/// `GET /watch`.
async fn watch(State(page): State<Arc<Page>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let key_permits = access::authorize_watcher(&page.app, &headers)?;
    let watcher = page.watchers.add(&page, key_permits)?;
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
