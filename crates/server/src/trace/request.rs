//! A request's place in its trace.

use axum::http::{HeaderMap, HeaderValue};

use super::context::TraceContext;
use super::{Generation, RequestSpan, Tracer};

/// A request's place in its trace, and its span where spans are recorded.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    context: TraceContext,
    span: RequestSpan,
}

/// The parts of a request that its span names.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "otel"),
    allow(dead_code, reason = "only spans have names")
)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// The route's pattern; `None` for a path that no route has.
    pub(crate) route: Option<&'a str>,
    pub(crate) headers: &'a HeaderMap,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestEnd {
    /// The status that was sent; `None` if the client left before.
    pub(crate) status: Option<u16>,
    /// Whether the client left before the end of its answer.
    pub(crate) is_abandoned: bool,
}

impl RequestTrace {
    /// Continues the client's trace, or begins one.
    pub(crate) fn begin(tracer: &Tracer, head: &RequestHead<'_>) -> Self {
        let client = TraceContext::of_client(head.headers);
        let span = tracer.request(client, head);
        let context = span.context().unwrap_or_else(|| {
            let client = client.map(TraceContext::new_span);
            client.unwrap_or_else(TraceContext::new_trace)
        });
        Self { context, span }
    }

    /// The value of the answer's `traceparent`.
    pub(crate) fn header(&self) -> HeaderValue {
        self.context.header()
    }

    /// The trace, as logs name it.
    pub(crate) fn trace_id(&self) -> String {
        self.context.trace_id()
    }

    /// The common part of the spans of a request's sequences.
    pub(crate) fn generation(&self, request: &motet::Request) -> Generation {
        self.span.generation(request)
    }

    /// Ends the request's span.
    pub(crate) fn end(&mut self, end: RequestEnd) {
        self.span.end(end);
    }
}
