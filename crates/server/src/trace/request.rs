//! A request's place in its trace.

use axum::http::HeaderValue;

use super::context::TraceContext;
use super::head::{RequestEnd, RequestHead};
use super::{Generation, RequestSpan, Tracer};

/// A request's place in its trace, and its span where spans are recorded.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    context: TraceContext,
    span: RequestSpan,
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
