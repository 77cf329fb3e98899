//! The spans of a server without feature `otel`: nothing is recorded.

use motet::error::GenerateError;
use motet::request::Finish;
use motet::{Request, SequenceHandle};

use super::context::TraceContext;
use super::head::{RequestEnd, RequestHead};

/// Records no span.
#[derive(Debug, Default)]
pub(crate) struct Tracer(());

/// A request without a span.
#[derive(Debug)]
pub(crate) struct RequestSpan;

/// The common part of the spans of a request's sequences.
#[derive(Clone, Debug)]
pub(crate) struct Generation;

/// A sequence without a span.
#[derive(Debug)]
pub(crate) struct SequenceSpan;

impl Tracer {
    pub(super) fn request(
        &self,
        _client: Option<TraceContext>,
        _head: &RequestHead<'_>,
    ) -> RequestSpan {
        RequestSpan
    }
}

impl RequestSpan {
    pub(super) fn context(&self) -> Option<TraceContext> {
        None
    }

    pub(super) fn generation(&self, _request: &Request) -> Generation {
        Generation
    }

    pub(super) fn end(&mut self, _end: RequestEnd) {}
}

impl Generation {
    pub(crate) fn sequence(&self, _handle: SequenceHandle) -> SequenceSpan {
        SequenceSpan
    }
}

impl SequenceSpan {
    pub(crate) fn token(&mut self) {}

    pub(crate) fn finished(&mut self, _finish: &Finish) {}

    pub(crate) fn failed(&mut self, _error: &GenerateError) {}
}
