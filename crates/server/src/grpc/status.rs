//! Errors in gRPC's form.

use axum::http::StatusCode;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::error::ApiError;

impl From<ApiError> for Status {
    /// The status with the error's message. Where a caller may retry, `retry-after` has the seconds.
    fn from(error: ApiError) -> Self {
        let mut metadata = MetadataMap::new();
        if let Some(seconds) = error.retry_seconds() {
            metadata.insert("retry-after", seconds.into());
        }
        Self::with_metadata(code(error.status), error.message(), metadata)
    }
}

/// The code of an HTTP status. `UNAVAILABLE` has routers try elsewhere, `INVALID_ARGUMENT` has not.
fn code(status: StatusCode) -> Code {
    match status {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Code::DeadlineExceeded,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        status if status.is_client_error() => Code::InvalidArgument,
        _ => Code::Internal,
    }
}
