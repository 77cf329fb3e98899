//! One of several servers behind a router: what it tells, in words that routers know.
//!
//! | file | what is there |
//! |---|---|
//! | `kv_events.rs` | what is cached, told as it changes: a publisher, and a replay of what was missed |
//! | `wire.rs` | the same as vLLM's MessagePack |
//! | `metrics.rs` | the gauges that routers read, under vLLM's names |

pub mod kv_events;
pub(crate) mod metrics;
mod wire;
