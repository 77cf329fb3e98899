//! The server of Motet: one model behind the APIs of OpenAI and Anthropic.
//!
//! ```text
//!  client ── routes ── keys ── openai, responses, anthropic ── conversation ── generate ──▶ Engine
//!                                                └── server-sent events, or one answer
//! ```
//!
//! | file | content |
//! |---|---|
//! | `routes.rs` | routes, and the layers that every request passes: its id, its limits, its log line |
//! | `app.rs` | the state that all routes share |
//! | `activity.rs` | the parts of running answers, for the page |
//! | `access.rs`, `site.rs` | checks of hosts and origins, and access for the operator |
//! | `model_names.rs` | the names of the one model |
//! | `keys.rs`, `class.rs` | API keys, with limits on concurrent requests and priority class |
//! | `body/` | bodies, received within a bound and read into structs |
//! | `conversation/` | `motet::chat` with names, tenancy and budgets, behind all dialects |
//! | `api/` | fields, schemas and bounds that several dialects have |
//! | `openai/` | the dialect of chats, completions and embeddings: bodies, as requests to the model, and answers |
//! | `responses/` | the dialect of the Responses API |
//! | `anthropic/` | the dialect of Anthropic's API |
//! | `openapi/` | the description of the API, at `/openapi.json` |
//! | `generate.rs` | streams of outputs, several side by side |
//! | `tokens.rs` | text to tokens and back |
//! | `trace/` | W3C's trace context, and OpenTelemetry's spans |
//! | `state.rs` | models, health and metrics |
//! | `page/` | the live page, at `/` |
//! | `error.rs` | the API's errors, with their status |
//! | `fleet/` | the interface to routers: KV events, and metrics under vLLM's names |
//! | `grpc/` | feature `grpc`: vLLM's gRPC, by which fleets drive a server |
//! | `log.rs`, `shown.rs` | the log line of each request, and the paths that it shows |
//! | `recorder.rs` | the recorder of the engine's metrics, for Prometheus |
//! | `connections.rs`, `addresses.rs`, `socket.rs`, `departure.rs` | connections, each with its limits, up to the client's leaving |
//! | `start.rs` | the engine: a model that is found and loaded, or the oracle |
//! | `serve.rs`, `welcome.rs` | start and graceful shutdown; what a terminal shows once it serves |

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))] // of times: a setting may be u64::MAX

mod access;
mod activity;
mod addresses;
mod anthropic;
mod api;
pub mod app;
pub mod arguments;
mod body;
pub mod class;
mod connections;
mod conversation;
mod departure;
mod error;
pub mod fleet;
mod fleet_settings;
mod generate;
#[cfg(feature = "grpc")]
pub mod grpc;
mod kept;
pub mod keys;
mod log;
pub mod model_names;
mod openai;
mod openapi;
mod page;
mod pieces;
mod recorder;
mod responses;
pub mod routes;
pub mod serve;
mod shown;
pub mod site;
mod socket;
pub mod start;
mod state;
mod store_settings;
mod tokens;
pub mod trace;
mod welcome;
