//! Errors between a client and its server.

use std::time::Duration;

use hyper::StatusCode;

/// The reason why a request was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ServerError {
    #[error("`{url}` is not a server's address: {why}")]
    Url { url: String, why: &'static str },
    #[error("the API key cannot be sent: it has characters that no header may have")]
    Key,
    #[error("cannot reach the server: {0}")]
    Unreachable(String),
    #[error("the server says {status}: {message}")]
    Status { status: StatusCode, message: String },
    #[error("the server was busy {times} times in a row")]
    Busy { times: u64 },
    #[error("the server closed the connection before the reply was complete")]
    Disconnected,
    #[error("the server sent nothing for {0:?}; raise --timeout-seconds to wait longer")]
    Silent(Duration),
    #[error("the server sent data that is not an event of the API: {0}")]
    NotAnEvent(String),
    #[error("the server gave the reply up: {0}")]
    GaveUp(String),
    #[error("the server lists no model; name one with --model-name")]
    NoModel,
}

/// An error and its sources, on one line.
pub(super) fn in_full(error: &dyn std::error::Error) -> String {
    let behind = std::iter::successors(error.source(), |error| error.source());
    let all = behind.fold(error.to_string(), |text, error| format!("{text}: {error}"));
    all.replace('\n', " ")
}
