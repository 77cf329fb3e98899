//! `/v1/responses`: the Responses API.
//!
//! ```text
//!  body ── prepare ── items ── messages ──▶ ConversationRequest ─▶ Answers
//!             │         ▲                                            │
//!             │     stored turns ◀── ResponseStore ◀── items ◀── OutputWriter ──▶ events
//! ```
//!
//! | file | content |
//! |---|---|
//! | `request.rs`, `parameters.rs`, `tools.rs`, `input.rs` | the body, and its checks |
//! | `names.rs` | the names of fields, for errors |
//! | `items.rs`, `ids.rs` | the items of a conversation |
//! | `messages.rs` | from items to the messages of chat templates |
//! | `create.rs`, `answer.rs` | a request and its answer, whole or streamed |
//! | `progress.rs`, `writer.rs`, `events.rs` | from an answer's pieces to items and their events |
//! | `background.rs`, `record.rs` | responses that are answered without a client, and their readers |
//! | `journal/`, `resume.rs` | their journals, with which a restart goes on |
//! | `response.rs` | a response as clients get it |
//! | `store.rs`, `stored.rs` | the bounded store, and the routes that read it |

mod answer;
mod background;
mod create;
pub(crate) mod events;
mod ids;
mod input;
mod items;
mod journal;
mod messages;
mod names;
mod parameters;
mod progress;
mod record;
pub(crate) mod request;
pub(crate) mod response;
mod resume;
mod store;
pub(crate) mod stored;
mod tools;
mod writer;

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};

use crate::app::App;
use crate::arguments::AccessSettings;
use crate::body::{BodyReceiver, ReceivesBodies};
use background::BackgroundResponses;
use journal::Journals;
use store::ResponseStore;

/// The state of these routes.
#[derive(Clone, Debug)]
struct Responses {
    app: Arc<App>,
    /// The responses that clients can continue and read.
    store: Arc<ResponseStore>,
    /// Those that are answered without a client.
    background: Arc<BackgroundResponses>,
    /// Their journals, on a server with a disk tier.
    journals: Option<Arc<Journals>>,
}

impl ReceivesBodies for Responses {
    fn receiver(&self) -> (&BodyReceiver, &AccessSettings) {
        self.app.receiver()
    }
}

/// The routes of one store: that of new responses, and those that read, cancel and delete them.
pub(crate) struct Routers<S> {
    pub(crate) create: Router<S>,
    pub(crate) read: Router<S>,
}

/// The routes, with a store of their own. Answers that an earlier run of the server began go on: their
/// journals are read here, which blocks.
pub(crate) fn routers<S>(app: &Arc<App>) -> Routers<S> {
    let responses = Responses {
        app: Arc::clone(app),
        store: Arc::new(ResponseStore::new(app.store_settings)),
        background: Arc::default(),
        journals: Journals::open(app),
    };
    resume::resume(&responses);
    let read = Router::new()
        .route("/v1/responses/{id}", get(stored::get))
        .route("/v1/responses/{id}", delete(stored::delete))
        .route("/v1/responses/{id}/cancel", post(stored::cancel))
        .route("/v1/responses/{id}/input_items", get(stored::input_items));
    Routers {
        create: Router::new()
            .route("/v1/responses", post(create::create))
            .with_state(responses.clone()),
        read: read.with_state(responses),
    }
}
