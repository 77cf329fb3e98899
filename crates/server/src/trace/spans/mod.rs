//! OpenTelemetry's spans: one of the server for each request, and below it those of its sequences.
//!
//! Attributes follow the semantic conventions of HTTP and of generative AI. None holds content: no
//! token, no text, no stop string.
//!
//! | file | content |
//! |---|---|
//! | `sequence.rs` | the spans of a sequence: its whole, queue, prefill and decode |
//! | `settings.rs` | the exporter, and the settings that choose it |

mod sequence;
mod settings;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::HeaderMap;
use motet::Request;
use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use super::context::TraceContext;
use super::head::{RequestEnd, RequestHead};
use crate::shown::shown_path;
pub(crate) use sequence::{Generation, SequenceSpan};
pub use settings::{TraceSettings, export_rest};

/// The instrumentation's name in exported spans.
const SCOPE: &str = "motet-server";
/// Methods that a span names; others are `_OTHER`.
const METHODS: [&str; 9] = [
    "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
];

/// Records spans, if there is a provider.
#[derive(Debug, Default)]
pub(crate) struct Tracer(Option<Arc<Recorder>>);

/// The place that spans are recorded to.
struct Recorder {
    tracer: SdkTracer,
    /// The model's name in the API.
    model: String,
}

/// The span of a request. It has one if the sampler of the provider wants it, or another span of
/// the trace.
#[derive(Debug)]
pub(crate) struct RequestSpan(Option<Recorded>);

#[derive(Debug)]
struct Recorded {
    recorder: Arc<Recorder>,
    span: opentelemetry_sdk::trace::Span,
    /// The operation of the route's sequences, in the words of the conventions.
    operation: &'static str,
}

impl Tracer {
    pub(crate) fn new(provider: &SdkTracerProvider, model: String) -> Self {
        let tracer = provider.tracer(SCOPE);
        Self(Some(Arc::new(Recorder { tracer, model })))
    }

    /// Begins the span of a request to the API. Pages, health checks and unknown paths have none.
    pub(in crate::trace) fn request(
        &self,
        client: Option<TraceContext>,
        head: &RequestHead<'_>,
    ) -> RequestSpan {
        let route = head.route.filter(|route| is_api(route));
        let (Some(recorder), Some(route)) = (&self.0, route) else {
            return RequestSpan(None);
        };
        let known = METHODS.iter().find(|known| **known == head.method);
        let method = known.copied().unwrap_or("_OTHER");
        let attributes = [
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route.to_owned()),
            // TLS is left to a proxy.
            KeyValue::new("url.scheme", "http"),
            KeyValue::new("url.path", shown_path(head.path)),
        ];
        let builder = recorder.tracer.span_builder(format!("{method} {route}"));
        let builder = builder
            .with_kind(SpanKind::Server)
            .with_attributes(attributes);
        let parent = parent(client, head.headers);
        let span = builder.start_with_context(&recorder.tracer, &parent);
        RequestSpan(Some(Recorded {
            recorder: Arc::clone(recorder),
            span,
            operation: operation(route),
        }))
    }
}

impl RequestSpan {
    /// Its place in the trace; `None` without a provider.
    pub(in crate::trace) fn context(&self) -> Option<TraceContext> {
        let context = self.0.as_ref()?.span.span_context();
        // The provider makes no valid spans once it is shut down.
        context.is_valid().then(|| TraceContext {
            trace: u128::from_be_bytes(context.trace_id().to_bytes()),
            span: u64::from_be_bytes(context.span_id().to_bytes()),
            is_sampled: context.is_sampled(),
        })
    }

    /// The common part of the spans of a request's sequences.
    pub(in crate::trace) fn generation(&self, request: &Request) -> Generation {
        let recorded = self.0.as_ref().filter(|one| one.span.is_recording());
        Generation::new(recorded, request)
    }

    pub(in crate::trace) fn end(&mut self, end: RequestEnd) {
        let Some(Recorded { span, .. }) = &mut self.0 else {
            return;
        };
        if let Some(status) = end.status {
            let code = KeyValue::new("http.response.status_code", i64::from(status));
            span.set_attribute(code);
        }
        match end.status {
            Some(status @ 500..) => {
                span.set_attribute(KeyValue::new("error.type", status.to_string()));
                span.set_status(Status::error(""));
            }
            _ if end.is_abandoned => {
                span.set_attribute(KeyValue::new("error.type", "client_disconnected"));
            }
            _ => {}
        }
        span.end();
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// The client's span as the parent of a new one.
fn parent(client: Option<TraceContext>, headers: &HeaderMap) -> Context {
    let Some(client) = client else {
        return Context::new();
    };
    let flags = TraceFlags::default().with_sampled(client.is_sampled);
    let (trace, span) = (TraceId::from(client.trace), SpanId::from(client.span));
    let parent = SpanContext::new(trace, span, flags, true, state(headers));
    Context::new().with_remote_span_context(parent)
}

/// The client's `tracestate`; empty if it is malformed.
fn state(headers: &HeaderMap) -> TraceState {
    let values = headers.get_all("tracestate").iter();
    let values: Option<Vec<&str>> = values.map(|value| value.to_str().ok()).collect();
    let joined = values.unwrap_or_default().join(",");
    TraceState::from_str(&joined).unwrap_or_default()
}

/// Whether requests to a route have spans.
fn is_api(route: &str) -> bool {
    route.starts_with("/v1/") || route == "/tokenize" || route == "/detokenize"
}

/// The operation of a route's sequences.
fn operation(route: &str) -> &'static str {
    match route {
        "/v1/completions" => "text_completion",
        "/v1/embeddings" => "embeddings",
        _ => "chat",
    }
}
