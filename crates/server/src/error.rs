//! The API's errors, with their status.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use motet::error::{GenerateError, SubmitError};
use motet::text::TextError;
use schemars::JsonSchema;
use serde::Serialize;

use crate::class::Class;

/// An error answer of the API.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// The API's `type`: a family of errors.
    kind: ErrorKind,
    message: String,
    /// The invalid field of the body.
    param: Option<String>,
    code: Option<ErrorCode>,
    retry_after: Option<Duration>,
    /// A prompt that is too long.
    prompt_excess: Option<PromptExcess>,
}

/// The length of a prompt that is too long, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptExcess {
    /// Tokens that it has at least.
    pub(crate) tokens_min: usize,
    /// Most tokens that a prompt may have.
    pub(crate) tokens_max: usize,
}

/// The API's families of errors.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
enum ErrorKind {
    #[serde(rename = "invalid_request_error")]
    InvalidRequest,
    #[serde(rename = "authentication_error")]
    Authentication,
    #[serde(rename = "permission_error")]
    Permission,
    #[serde(rename = "rate_limit_error")]
    RateLimit,
    #[serde(rename = "server_error")]
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum ErrorCode {
    InvalidApiKey,
    ModelNotFound,
    ContextLengthExceeded,
    RateLimitExceeded,
    ReceivingFull,
    Draining,
    Broken,
    OutOfMemory,
    WrongApiKey,
    NoOperator,
    PriorityNotAllowed,
    UnknownHost,
    ForeignOrigin,
    ResponseNotFound,
    PreviousResponseNotFound,
}

/// The body of an error answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ErrorFields<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: ErrorKind,
    param: Option<&'a str>,
    code: Option<ErrorCode>,
}

/// Longest message, in bytes, as a message may quote a request of megabytes.
const MESSAGE_BYTES_MAX: usize = 2048;
/// Longest name of a field, in bytes, as it may hold keys of the request.
const PARAM_BYTES_MAX: usize = 256;

impl ApiError {
    fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: truncated(message.into(), MESSAGE_BYTES_MAX),
            param: None,
            code: None,
            retry_after: None,
            prompt_excess: None,
        }
    }

    /// A field of the body is invalid.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message);
        Self {
            param: Some(truncated(param.into(), PARAM_BYTES_MAX)),
            ..error
        }
    }

    /// The request is valid, but this server or its model cannot serve it.
    pub(crate) fn unprocessable(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            ..Self::field(param, message)
        }
    }

    /// The request as a whole has this status; no field is to blame.
    pub(crate) fn request(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, ErrorKind::InvalidRequest, message)
    }

    /// The model's template or tokenizer rejects the input with its own message, or has a defect.
    pub(crate) fn text(param: &str, error: &TextError) -> Self {
        match error {
            TextError::Template { what } => {
                Self::unprocessable(param, format!("the chat template: {}", what.reveal()))
            }
            TextError::Panicked { .. } => Self::internal(error.to_string()),
            other => Self::unprocessable(param, other.to_string()),
        }
    }

    /// The fault is not the request's.
    pub(crate) fn internal(message: String) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            ErrorKind::Server,
            message,
        )
    }

    pub(crate) fn unauthorized() -> Self {
        let message =
            "no valid API key; send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`";
        let kind = ErrorKind::Authentication;
        Self {
            code: Some(ErrorCode::InvalidApiKey),
            ..Self::new(StatusCode::UNAUTHORIZED, kind, message)
        }
    }

    fn forbidden(code: ErrorCode, message: impl Into<String>) -> Self {
        let kind = ErrorKind::Permission;
        Self {
            code: Some(code),
            ..Self::new(StatusCode::FORBIDDEN, kind, message)
        }
    }

    /// The key is valid, but not for this route.
    pub(crate) fn wrong_key() -> Self {
        let message = "this route is for the operator; this key is not an operator's key";
        Self::forbidden(ErrorCode::WrongApiKey, message)
    }

    /// The route is for the operator, and the settings do not identify one.
    pub(crate) fn no_operator() -> Self {
        let message = "this route is for the operator; without API keys there is one only if the \
            server listens on loopback and has neither --host-name nor --origin; start it with \
            --api-keys and --operator-key, or with --operator-open";
        Self::forbidden(ErrorCode::NoOperator, message)
    }

    /// The request's class is higher than its key or this server allows.
    pub(crate) fn class(found: Class, highest: Class) -> Self {
        let message =
            format!("`priority` is \"{found}\"; the highest allowed here is \"{highest}\"");
        Self {
            param: Some("priority".into()),
            ..Self::forbidden(ErrorCode::PriorityNotAllowed, message)
        }
    }

    /// The request's `Host` is not a name of this server.
    pub(crate) fn unknown_host(found: &str) -> Self {
        let message = format!(
            "`Host` is {found}; expected localhost, 127.0.0.1, [::1], the address of --host, or a \
             name given by --host-name"
        );
        Self {
            param: Some("Host".into()),
            code: Some(ErrorCode::UnknownHost),
            ..Self::request(StatusCode::MISDIRECTED_REQUEST, message)
        }
    }

    /// The request comes from a page of another site, as this header says.
    pub(crate) fn foreign_page(header: &'static str, found: &str) -> Self {
        let message = format!(
            "`{header}` is {found}; expected a page of this server, or an origin \
             given by --origin"
        );
        Self {
            param: Some(header.into()),
            ..Self::forbidden(ErrorCode::ForeignOrigin, message)
        }
    }

    pub(crate) fn model_not_found(named: &str) -> Self {
        let message = format!("there is no model {named:?} here; `GET /v1/models` lists them");
        Self {
            status: StatusCode::NOT_FOUND,
            code: Some(ErrorCode::ModelNotFound),
            ..Self::field("model", message)
        }
    }

    /// A prompt is too long. Agents shorten their conversation by the code, and by the words
    /// "maximum context length is" that OpenAI's own message has.
    pub(crate) fn prompt_too_long(
        param: impl Into<String>,
        (found, expected): (&str, &str),
        excess: PromptExcess,
    ) -> Self {
        let param = param.into();
        let tokens_max = excess.tokens_max;
        let message = format!(
            "`{param}` is {found}; expected {expected}. This model's maximum context length is \
             {} tokens, with one for the output",
            tokens_max.saturating_add(1)
        );
        Self {
            code: Some(ErrorCode::ContextLengthExceeded),
            prompt_excess: Some(excess),
            ..Self::field(param, message)
        }
    }

    /// There are too many requests at the moment.
    pub(crate) fn busy(message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::RateLimit,
            message.into(),
        );
        Self {
            code: Some(ErrorCode::RateLimitExceeded),
            retry_after: Some(retry_after),
            ..error
        }
    }

    /// The budget for bodies is used up, independent of the caller.
    pub(crate) fn receiving_full(message: String, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::unavailable(message, ErrorCode::ReceivingFull)
        }
    }

    fn unavailable(message: String, code: ErrorCode) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Server, message);
        Self {
            code: Some(code),
            ..error
        }
    }

    /// The store of responses, within these bounds, has no response with this id.
    pub(crate) fn response_not_found(id: &str, bounds: &str) -> Self {
        let message = format!("there is no response {id:?}: {}", forgotten(bounds));
        Self {
            code: Some(ErrorCode::ResponseNotFound),
            ..Self::request(StatusCode::NOT_FOUND, message)
        }
    }

    /// The store has no response with the id that a request continues.
    pub(crate) fn previous_response_not_found(id: &str, bounds: &str) -> Self {
        let field = "previous_response_id";
        let message = format!("`{field}` is {id:?}: {}", forgotten(bounds));
        Self {
            code: Some(ErrorCode::PreviousResponseNotFound),
            ..Self::field(field, message)
        }
    }

    /// The message for the client.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The invalid field of the body.
    pub(crate) fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    pub(crate) fn code(&self) -> Option<ErrorCode> {
        self.code
    }

    /// The length of the prompt, where that is the fault.
    pub(crate) fn prompt_excess(&self) -> Option<PromptExcess> {
        self.prompt_excess
    }

    /// Whether the server has too much to do, and the same request may succeed later.
    pub(crate) fn is_overload(&self) -> bool {
        matches!(
            self.code,
            Some(ErrorCode::ReceivingFull | ErrorCode::OutOfMemory)
        )
    }

    /// The body of the answer, and of a stream's last event.
    pub(crate) fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorFields {
                message: &self.message,
                kind: self.kind,
                param: self.param.as_deref(),
                code: self.code,
            },
        }
    }
}

impl ApiError {
    /// The seconds after which a caller may retry: whole ones, at least one.
    pub(crate) fn retry_seconds(&self) -> Option<u64> {
        let after = self.retry_after?;
        Some(after.as_secs_f64().ceil().max(1.0) as u64)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_seconds() {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // The outermost layer gives it the shape of its route.
        response.extensions_mut().insert(self);
        response
    }
}

impl ApiError {
    /// The error of a request that the engine rejects. `name_of` gives the API's name of a field of
    /// the engine's request, and `grammar_field` is the field that the grammar comes from.
    pub(crate) fn submit(
        error: SubmitError,
        name_of: impl Fn(&'static str) -> &'static str,
        grammar_field: &str,
    ) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Field {
                field,
                found,
                expected,
            } => {
                let name = name_of(field);
                Self::field(name, format!("`{name}` is {found}; expected {expected}"))
            }
            SubmitError::PromptTooLong {
                field,
                found,
                expected,
                tokens_min,
                tokens_max,
            } => {
                let excess = PromptExcess {
                    tokens_min,
                    tokens_max,
                };
                Self::prompt_too_long(name_of(field), (&found, &expected), excess)
            }
            SubmitError::Text(error) => Self::text(name_of("prompt.chat"), &error),
            // The reason quotes the request: it is for the caller, and not for logs.
            SubmitError::Grammar { why } => {
                let message = format!("`{grammar_field}` does not compile: {}", why.reveal());
                Self::unprocessable(grammar_field, message)
            }
            SubmitError::GrammarTooExpensive { bound } => {
                let message = format!("`{grammar_field}` passes a bound: {bound}");
                Self::unprocessable(grammar_field, message)
            }
            SubmitError::GrammarTooSlow { .. } => {
                let took = format!("`{grammar_field}` took");
                Self::unprocessable(grammar_field, message.replace("`grammar` took", &took))
            }
            SubmitError::NoTokenizer { field } => Self::unprocessable(name_of(field), message),
            SubmitError::TooLarge { .. } => {
                Self::unprocessable(name_of("output_tokens_max"), message)
            }
            SubmitError::ResultsTooLarge { .. } => {
                let name = name_of("logprobs");
                Self::field(name, format!("`{name}`: {message}"))
            }
            SubmitError::QueueFull { retry_after, .. } => Self::busy(message, retry_after),
            SubmitError::Draining => Self::unavailable(message, ErrorCode::Draining),
            SubmitError::Broken { .. } => Self::unavailable(message, ErrorCode::Broken),
            _ => Self::internal(message),
        }
    }

    /// The error of an output that the engine does not complete. `grammar_field` is the field that
    /// the output's grammar comes from.
    pub(crate) fn generate(error: GenerateError, grammar_field: &str) -> Self {
        let message = error.to_string();
        match error {
            GenerateError::Shutdown | GenerateError::HandedOver { .. } => {
                Self::unavailable(message, ErrorCode::Draining)
            }
            GenerateError::Broken { .. } => Self::unavailable(message, ErrorCode::Broken),
            // The reason quotes the output: the caller sees it, and the log does not.
            GenerateError::Grammar(why) => {
                let message = format!("`{grammar_field}` cannot go on: {}", why.reveal());
                Self::unprocessable(grammar_field, message)
            }
            GenerateError::OutOfMemory => Self::unavailable(message, ErrorCode::OutOfMemory),
            GenerateError::DeadlineMissed { .. } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, ErrorKind::Server, message)
            }
            GenerateError::SlowReader { .. } => {
                Self::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::Server, message)
            }
            _ => Self::internal(message),
        }
    }
}

/// The field that a grammar comes from, where a request has no other.
const OUTPUT_FORMAT: &str = "response_format";

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        Self::submit(error, api_name, OUTPUT_FORMAT)
    }
}

impl From<GenerateError> for ApiError {
    fn from(error: GenerateError) -> Self {
        Self::generate(error, OUTPUT_FORMAT)
    }
}

/// Why a stored response may be missing.
fn forgotten(bounds: &str) -> String {
    format!(
        "unknown or forgotten; the store keeps at most {bounds}, forgets the oldest, and after a \
         restart has responses in the background only, with --disk"
    )
}

/// The text, truncated with an ellipsis to this many bytes.
fn truncated(mut text: String, bytes_max: usize) -> String {
    const ELLIPSIS: &str = " [...]";
    if text.len() > bytes_max {
        let end = text.floor_char_boundary(bytes_max - ELLIPSIS.len());
        text.truncate(end);
        text.push_str(ELLIPSIS);
    }
    text
}

/// The API's name of a field of the engine's request.
pub(crate) fn api_name(field: &'static str) -> &'static str {
    match field {
        "output_tokens_max" => "max_tokens",
        "output_tokens_min" => "min_tokens",
        "stop_strings" => "stop",
        "stop_tokens" => "stop_token_ids",
        "ignore_end_tokens" => "ignore_eos",
        "at_context_limit" => "context_shift",
        "at_context_limit.keep" => "num_keep",
        "prompt_logprobs_from" => "logprob_start_len",
        "embedding.dimensions" => "dimensions",
        "requests" => "prompt",
        "grammar" => "response_format",
        "prompt.chat" => "messages",
        "prompt.text" => "prompt",
        _ => field.strip_prefix("sampling.").unwrap_or(field),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_in_whole_seconds() {
        let check = |milliseconds, expected: &str| {
            let after = Duration::from_millis(milliseconds);
            let response = ApiError::busy("full", after).into_response();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(response.headers()[header::RETRY_AFTER], expected);
        };
        check(0, "1");
        check(1_001, "2");
        check(90_000, "90");
    }

    #[test]
    fn long_request_values_are_truncated_in_errors() {
        for letter in ["x", "é", "中"] {
            let long = ApiError::model_not_found(&letter.repeat(1 << 20));
            let length = long.message.len();
            assert!(
                (MESSAGE_BYTES_MAX - 4..=MESSAGE_BYTES_MAX).contains(&length),
                "{length}"
            );
            assert!(long.message.ends_with(" [...]"));
            let field = ApiError::field(letter.repeat(1 << 20), "no");
            assert!(field.param.expect("a field").len() <= PARAM_BYTES_MAX);
        }
        let whole = "x".repeat(MESSAGE_BYTES_MAX);
        assert_eq!(truncated(whole.clone(), MESSAGE_BYTES_MAX), whole);
    }

    #[test]
    fn panics_are_internal_errors() {
        let panicked = TextError::Panicked {
            what: "tokenizer",
            bytes: 7,
        };
        let error = ApiError::text("prompt", &panicked);
        assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn fields_have_the_names_that_the_client_used() {
        let error = SubmitError::Field {
            field: "sampling.top_p",
            found: "2".into(),
            expected: "at most 1".into(),
        };
        let error = ApiError::from(error);
        let body = serde_json::to_value(error.body()).expect("JSON");
        assert_eq!(body["error"]["param"], "top_p");
        assert_eq!(body["error"]["message"], "`top_p` is 2; expected at most 1");
    }
}
