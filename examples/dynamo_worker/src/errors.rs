//! Errors, typed as Dynamo decides by them: whether it tries another worker, and what its client gets.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use motet::error::{GenerateError, SubmitError};

/// The request is invalid for any worker of this model: its client gets 400.
const INVALID: ErrorType = ErrorType::Backend(BackendError::InvalidArgument);
/// This worker is gone or about to go: the request continues at another.
const GONE: ErrorType = ErrorType::Backend(BackendError::EngineShutdown);
/// This worker alone failed, and another could fail in the same way.
const FAILED: ErrorType = ErrorType::Backend(BackendError::Unknown);

/// An error of this type.
fn of(error_type: ErrorType, message: impl Into<String>) -> DynamoError {
    DynamoError::builder()
        .error_type(error_type)
        .message(message)
        .build()
}

/// A part of the request is invalid.
pub(crate) fn invalid(message: impl Into<String>) -> DynamoError {
    of(INVALID, message)
}

/// The engine did not start.
pub(crate) fn start(error: &anyhow::Error) -> DynamoError {
    of(FAILED, format!("{error:#}"))
}

/// The worker has no engine yet.
pub(crate) fn not_started() -> DynamoError {
    of(GONE, "the engine has not been started")
}

/// An output ended without its last piece.
pub(crate) fn incomplete() -> DynamoError {
    of(
        ErrorType::Backend(BackendError::StreamIncomplete),
        "the output has no end",
    )
}

/// The error of a request that the engine rejects.
pub(crate) fn submit(error: SubmitError) -> DynamoError {
    let message = error.to_string();
    match error {
        SubmitError::QueueFull { .. } => of(ErrorType::WorkerOverloaded, message),
        SubmitError::Draining | SubmitError::Broken { .. } => of(GONE, message),
        SubmitError::Field {
            field,
            found,
            expected,
        }
        | SubmitError::PromptTooLong {
            field,
            found,
            expected,
            ..
        } => {
            let name = field_name(field);
            invalid(format!("`{name}` is {found}; expected {expected}"))
        }
        // The reason quotes the request: it is for the caller, and not for logs.
        SubmitError::Grammar { why } => {
            invalid(format!("the grammar does not compile: {}", why.reveal()))
        }
        SubmitError::Text(_)
        | SubmitError::GrammarTooExpensive { .. }
        | SubmitError::GrammarTooSlow { .. }
        | SubmitError::NoTokenizer { .. }
        | SubmitError::TooLarge { .. }
        | SubmitError::ResultsTooLarge { .. } => invalid(message),
        _ => of(FAILED, message),
    }
}

/// The error of an output that the engine does not complete.
pub(crate) fn generate(error: GenerateError) -> DynamoError {
    let message = error.to_string();
    match error {
        GenerateError::HandedOver { .. }
        | GenerateError::Shutdown
        | GenerateError::Broken { .. } => of(GONE, message),
        GenerateError::OutOfMemory => of(ErrorType::WorkerOverloaded, message),
        GenerateError::Grammar(why) => {
            invalid(format!("the grammar cannot go on: {}", why.reveal()))
        }
        // The request itself may be what fails: it must not bring down one worker after the other.
        _ => of(FAILED, message),
    }
}

/// Dynamo's name of a field of the engine's request.
fn field_name(field: &'static str) -> &'static str {
    match field {
        "prompt.tokens" | "prompt" => "token_ids",
        "output_tokens_max" => "max_tokens",
        "output_tokens_min" => "min_tokens",
        "stop_tokens" => "stop_token_ids",
        "ignore_end_tokens" => "ignore_eos",
        other => other.strip_prefix("sampling.").unwrap_or(other),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use motet::Request;
    use motet::error::QueueLimit;

    use super::*;

    /// Reasons by which Dynamo 1.6.1 tries another worker, or by which it does not.
    #[test]
    fn reasons_are_those_by_which_dynamo_decides() {
        let full = SubmitError::QueueFull {
            what: QueueLimit::Requests,
            retry_after: Duration::ZERO,
            request: Box::new(Request::default()),
        };
        let top_p = SubmitError::Field {
            field: "sampling.top_p",
            found: "2".into(),
            expected: "at most 1".into(),
        };
        let handed_over = GenerateError::HandedOver { output_tokens: 3 };
        let panicked = GenerateError::Panicked {
            part: "cache",
            attempts: 3,
        };
        for (error, reason) in [
            (submit(full), "capacity.worker_overloaded"),
            (submit(SubmitError::Draining), "backend.engine_shutdown"),
            (submit(top_p), "backend.invalid_argument"),
            (generate(handed_over), "backend.engine_shutdown"),
            (
                generate(GenerateError::OutOfMemory),
                "capacity.worker_overloaded",
            ),
            (generate(panicked), "backend.unknown"),
        ] {
            assert_eq!(error.reason().as_str(), reason, "{error}");
        }
    }

    #[test]
    fn fields_have_dynamos_names() {
        let error = submit(SubmitError::Field {
            field: "output_tokens_min",
            found: "9".into(),
            expected: "at most 8".into(),
        });
        let message = error.to_string();
        assert!(
            message.contains("`min_tokens` is 9; expected at most 8"),
            "{message}"
        );
    }
}
