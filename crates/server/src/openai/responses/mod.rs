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
//! | `items.rs`, `ids.rs` | the items of a conversation |
//! | `messages.rs` | from items to the messages of chat templates |
//! | `create.rs` | a request and its answer, whole or streamed |
//! | `writer.rs`, `events.rs` | from an answer's pieces to items and their events |
//! | `response.rs` | a response as clients get it |
//! | `store.rs`, `stored.rs` | the bounded store, and the routes that read it |

pub(crate) mod create;
pub(crate) mod events;
mod ids;
mod input;
mod items;
mod messages;
mod parameters;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod store;
pub(crate) mod stored;
mod tools;
mod writer;
