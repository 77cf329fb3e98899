//! Errors of calls.

use std::fmt;

use motet_protocol::remote::RemoteError;

pub(crate) fn failed(error: impl fmt::Display) -> RemoteError {
    RemoteError::Failed {
        what: error.to_string(),
    }
}

pub(crate) fn damaged(what: &str) -> RemoteError {
    RemoteError::Damaged { what: what.into() }
}
