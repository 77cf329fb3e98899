//! The shape of the API's errors.
//!
//! Errors arise in every layer: in the check of the key, in the reading of a body, in the engine.
//! All are [`ApiError`]s. The outermost layer gives those of the API's routes this shape.

use std::borrow::Cow;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::ApiError;

/// The API's status of an overloaded server.
const OVERLOADED: u16 = 529;

/// The body of an error answer, and of the event that ends a stream with an error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessagesError")]
pub(crate) struct ErrorBody<'a> {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "error"))]
    kind: &'static str,
    error: ErrorFields<'a>,
    /// The request's id, which is in the header `x-request-id` too
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    request_id: Option<&'a str>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ErrorFields<'a> {
    #[serde(rename = "type")]
    kind: ErrorKind,
    /// It names the invalid field, if there is one
    message: Cow<'a, str>,
}

/// The API's families of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ErrorKind {
    InvalidRequestError,
    AuthenticationError,
    PermissionError,
    NotFoundError,
    RequestTooLarge,
    RateLimitError,
    ApiError,
    OverloadedError,
    TimeoutError,
}

impl ErrorKind {
    fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED => Self::AuthenticationError,
            StatusCode::FORBIDDEN => Self::PermissionError,
            StatusCode::NOT_FOUND => Self::NotFoundError,
            StatusCode::PAYLOAD_TOO_LARGE => Self::RequestTooLarge,
            StatusCode::TOO_MANY_REQUESTS => Self::RateLimitError,
            StatusCode::SERVICE_UNAVAILABLE => Self::OverloadedError,
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Self::TimeoutError,
            status if status.is_server_error() => Self::ApiError,
            _ => Self::InvalidRequestError,
        }
    }
}

/// The message. Agents shorten their conversation where it has the API's own phrase of a prompt
/// that is too long, and read the two numbers.
fn message(error: &ApiError) -> Cow<'_, str> {
    let Some(excess) = error.prompt_excess() else {
        return Cow::Borrowed(error.message());
    };
    let (tokens, most) = (excess.tokens_min, excess.tokens_max);
    let phrase = format!("prompt is too long: {tokens} tokens > {most} maximum");
    Cow::Owned(format!("{phrase} ({})", error.message()))
}

/// The status: the API has one of its own for a server that has too much to do.
fn status(error: &ApiError) -> StatusCode {
    if error.is_overload() {
        StatusCode::from_u16(OVERLOADED).expect("three digits")
    } else {
        error.status
    }
}

impl<'a> ErrorBody<'a> {
    /// The body of this error, with the request's id if it is known.
    pub(super) fn new(error: &'a ApiError, request_id: Option<&'a str>) -> Self {
        Self {
            kind: "error",
            error: ErrorFields {
                kind: ErrorKind::of(error.status),
                message: message(error),
            },
            request_id,
        }
    }
}

/// Whether a path is one of this API.
fn is_of_api(path: &str) -> bool {
    let rest = path.strip_prefix("/v1/messages");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Gives an error of one of the API's routes the API's shape. Other answers stay as they are.
pub(crate) fn reshape(path: &str, request_id: &str, mut response: Response) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else {
        return response;
    };
    if !is_of_api(path) {
        return response;
    }
    let body = Json(ErrorBody::new(&error, Some(request_id)));
    let mut reshaped = (status(&error), body).into_response();
    let retry_after = response
        .headers_mut()
        .remove(axum::http::header::RETRY_AFTER);
    if let Some(retry_after) = retry_after {
        let headers = reshaped.headers_mut();
        headers.insert(axum::http::header::RETRY_AFTER, retry_after);
    }
    reshaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::PromptExcess;

    #[test]
    fn kinds_follow_the_status() {
        for (status, kind) in [
            (400, ErrorKind::InvalidRequestError),
            (413, ErrorKind::RequestTooLarge),
            (422, ErrorKind::InvalidRequestError),
            (429, ErrorKind::RateLimitError),
            (500, ErrorKind::ApiError),
            (503, ErrorKind::OverloadedError),
            (504, ErrorKind::TimeoutError),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(ErrorKind::of(status), kind, "{status}");
        }
    }

    #[test]
    fn long_prompts_and_overload_have_the_words_of_the_api() {
        let excess = PromptExcess {
            tokens_min: 210_000,
            tokens_max: 200_000,
        };
        let long = ApiError::prompt_too_long("messages", ("long", "shorter"), excess);
        let phrase = "prompt is too long: 210000 tokens > 200000 maximum (`messages` is long;";
        assert!(message(&long).starts_with(phrase), "{}", message(&long));
        assert_eq!(status(&long), 400);
        let full = ApiError::receiving_full("full".into(), std::time::Duration::from_secs(1));
        assert_eq!(
            (status(&full).as_u16(), &*message(&full)),
            (OVERLOADED, "full")
        );
        let response = reshape("/v1/messages", "1", full.into_response());
        assert_eq!(response.status().as_u16(), OVERLOADED);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn routes_of_the_api_are_recognised() {
        assert!(is_of_api("/v1/messages") && is_of_api("/v1/messages/count_tokens"));
        assert!(!is_of_api("/v1/messagesx") && !is_of_api("/v1/chat/completions"));
    }
}
