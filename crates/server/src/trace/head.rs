//! The parts of a request that its span has.

use axum::http::HeaderMap;

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
