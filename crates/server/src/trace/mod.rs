//! Traces: the context that a client sends and receives, and the spans of a request.
//!
//! | file | content |
//! |---|---|
//! | `context.rs` | W3C's `traceparent` |
//! | `head.rs` | the parts of a request that its span has |
//! | `request.rs` | a request's place in its trace |
//! | `spans/` | feature `otel`: OpenTelemetry's spans of requests and sequences |
//! | `no_spans.rs` | without it: the same types, which record nothing |
//!
//! ```text
//!  POST /v1/chat/completions        from the request's headers to the end of its answer
//!    chat MODEL                     one for each sequence
//!      queue ── prefill ── decode   when the sequence reached its stages
//! ```
//!
//! Without the feature, or without an endpoint to export to, a request has its place in a trace all
//! the same: the log and the answer name it.

mod context;
mod head;
#[cfg(not(feature = "otel"))]
mod no_spans;
mod request;
#[cfg(feature = "otel")]
mod spans;

pub(crate) use context::TRACEPARENT;
pub(crate) use head::{RequestEnd, RequestHead};
#[cfg(not(feature = "otel"))]
pub(crate) use no_spans::{Generation, RequestSpan, SequenceSpan, Tracer};
pub(crate) use request::RequestTrace;
#[cfg(feature = "otel")]
pub(crate) use spans::{Generation, RequestSpan, SequenceSpan, Tracer};
#[cfg(feature = "otel")]
pub use spans::{TraceSettings, export_rest};
