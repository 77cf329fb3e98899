//! An OpenAI-compatible server on Motet: what an embedder writes around an engine.
//!
//! ```text
//!  client ── app ── keys ── openai ── generate ──▶ Engine
//!                                        └── server-sent events, or one answer
//! ```
//!
//! | room | what happens there |
//! |---|---|
//! | `app.rs` | routes and what every request passes: its id, its limits, its log line |
//! | `access.rs`, `site.rs` | which hosts and pages are served, and what is the operator's |
//! | `keys.rs`, `class.rs` | whose request it is, how many of theirs there may be, and of which class |
//! | `body/` | bodies, received within a bound and read into structs |
//! | `openai/` | the API's bodies, as requests to the engine and back |
//! | `openapi/` | the description of all that, at `/openapi.json` |
//! | `generate.rs` | outputs as they come, several side by side |
//! | `tokens.rs` | text to tokens and back |
//! | `state.rs` | which models, how the server is, its metrics |
//! | `page/` | the page to watch, at `/` |
//! | `error.rs` | the API's errors, with their status |
//! | `fleet/` | what routers are told: KV events, and metrics under vLLM's names |
//! | `recorder.rs` | what the engine tells, for Prometheus |
//! | `connections.rs`, `addresses.rs` | the socket's connections, each with its limits |
//! | `serve.rs` | from the start to the end: those inside finish |

mod access;
mod addresses;
pub mod app;
pub mod arguments;
mod body;
pub mod class;
mod connections;
mod error;
pub mod fleet;
mod generate;
pub mod keys;
mod log;
mod openai;
mod openapi;
mod page;
mod recorder;
pub mod serve;
pub mod site;
pub mod start;
mod state;
mod tokens;
