//! Bodies of requests: received within bounds, and parsed directly into the endpoints' structs.
//!
//! | step | bound | when exceeded |
//! |---|---|---|
//! | one body is received | `--body-bytes-max` | 413 |
//! | all bodies are received | `--receiving-bytes-max`; see [`receive`] | the body waits, then 503 |
//! | long bodies are received | bytes a second for each core; see [`pace`] | their clients are read from later |
//! | a body is parsed | 128 levels; [`VALUES_MAX`](json::VALUES_MAX) free-form values; lengths of lists | 400, with the field |
//!
//! Unknown fields are skipped and take no memory. The bytes are freed once the body has been
//! parsed.

mod budget;
pub(crate) mod fields;
pub(crate) mod json;
pub(crate) mod lists;
mod pace;
mod reader;
mod receive;
pub(crate) mod text_or_list;
pub(crate) mod typed;
mod wrong;

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use memchr::memchr2;
use serde::de::IgnoredAny;
use serde_json::error::Category;

use crate::arguments::AccessSettings;
use crate::error::ApiError;
use fields::{Fields, Whole};
use reader::Reader;

#[cfg(feature = "grpc")]
pub(crate) use budget::Reservation as BodyReservation;
pub(crate) use receive::BodyReceiver;

/// Deepest nesting of arrays and objects in a body.
const LEVELS_MAX: usize = 128;

/// A JSON body, parsed into the endpoint's struct.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

/// A state of routes that receive bodies.
pub(crate) trait ReceivesBodies {
    /// The receiver of bodies, and its limits.
    fn receiver(&self) -> (&BodyReceiver, &AccessSettings);
}

impl<S, T> FromRequest<S> for Body<T>
where
    S: ReceivesBodies + Sync,
    T: Fields + Send + 'static,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        // Browsers let pages of other sites send text to this machine, but not JSON.
        if !is_json(request.headers()) {
            let message = "expected a body of `Content-Type: application/json`";
            return Err(ApiError::request(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                message,
            ));
        }
        let (receiver, limits) = state.receiver();
        let (head, body) = request.into_parts();
        let received = receiver.receive(&head, body, limits).await?;
        receiver.read(received, read).await.map(Self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let without_charset = kind.split(';').next().unwrap_or_default();
    without_charset
        .trim()
        .eq_ignore_ascii_case("application/json")
}

/// Parses the fields that `T` has; others are skipped, as clients send many.
pub(crate) fn read<T: Fields>(bytes: &[u8]) -> Result<T, ApiError> {
    let not_json = |what: &dyn std::fmt::Display| {
        let message = format!("the body is not JSON: {what}");
        ApiError::request(StatusCode::BAD_REQUEST, message)
    };
    // The parser checks neither the encoding nor the depth of a value that it skips.
    let text = std::str::from_utf8(bytes).map_err(|error| not_json(&error))?;
    let levels = levels(text);
    if levels >= LEVELS_MAX {
        let what = format!("it is {levels} levels deep; expected fewer than {LEVELS_MAX}");
        return Err(not_json(&what));
    }
    if !text.trim_start().starts_with('{') {
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| not_json(&error))?;
        let message = "the body is not a JSON object";
        return Err(ApiError::request(StatusCode::BAD_REQUEST, message));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let _values = json::ValueCounter::start();
    let read = serde_path_to_error::deserialize::<_, Whole<T>>(Reader(&mut json));
    let read = read.map_err(|error| {
        let is_field = error.inner().classify() == Category::Data
            // `serde_json` calls some numbers no JSON that its own grammar accepts.
            || serde_json::from_str::<IgnoredAny>(text).is_ok();
        if !is_field {
            return not_json(error.inner());
        }
        let what = error.inner().to_string();
        // The path already gives the position in the body.
        let what = what
            .rsplit_once(" at line ")
            .map_or(&*what, |(what, _)| what);
        wrong::field_error(&error.path().to_string(), what)
    })?;
    json.end().map_err(|error| not_json(&error))?;
    Ok(read.0)
}

/// The nesting depth of arrays and objects.
fn levels(text: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    let mut bytes = text.as_bytes();
    while let Some((byte, rest)) = bytes.split_first() {
        bytes = rest;
        match byte {
            b'[' | b'{' => {
                open += 1;
                deepest = deepest.max(open);
            }
            b']' | b'}' => open = open.saturating_sub(1),
            b'"' => bytes = after_string(rest),
            _ => {}
        }
    }
    deepest
}

/// Returns the bytes after a string's end. `bytes` begins after the opening quote.
fn after_string(mut bytes: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', bytes) {
        if bytes[at] == b'"' {
            return &bytes[at + 1..];
        }
        bytes = bytes.get(at + 2..).unwrap_or_default();
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::parameters::Parameters;
    use crate::openai::text::CompletionFields;

    #[test]
    fn levels_are_those_outside_of_strings() {
        for (text, expected) in [
            ("1", 0),
            (r#"{"a": [[1], {"b": 2}]}"#, 3),
            (r#"["[[[", "\"[[", "\\"]"#, 1),
            ("]]]][", 1),
            (r#"["#, 1),
            (r#"["[[[["#, 1),
        ] {
            assert_eq!(levels(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_bodies_are_rejected_by_field() {
        let check = |body: &str, expected: &str| {
            let error = read::<(Parameters, CompletionFields)>(body.as_bytes()).expect_err(body);
            let body = serde_json::to_value(error.body()).expect("JSON");
            let message = body["error"]["message"].to_string();
            assert!(message.contains(expected), "{body}: {message}");
        };
        check("[]", "not a JSON object");
        check("[", "not JSON: EOF");
        check(r#"{"prompt": "x"} x"#, "not JSON: trailing characters");
        check(r#"{"x": "\x"}"#, "not JSON: invalid escape");
        check(
            r#"{"top_p": "x"}"#,
            r#"`top_p` is \"x\"; expected a number"#,
        );
        check(
            r#"{"stream_options": [true]}"#,
            "is a list; expected an object",
        );
        check(
            r#"{"min_tokens": 1.5}"#,
            "`min_tokens` is 1.5; expected a whole",
        );
        check(
            r#"{"min_tokens": 1e400}"#,
            "`min_tokens` is a number that is too",
        );
        check(
            r#"{"response_format": {"type": 1}}"#,
            "is 1; expected one of `text`, `json_object`, `json_schema`",
        );
        check(
            r#"{"stream_options": {"include_usage": 1}}"#,
            "`stream_options.include_usage`",
        );
        check(r#"{"prompt": [1, "x"]}"#, "`prompt`: ");
        check(
            r#"{"prompt": [-1]}"#,
            "`prompt[0]` is -1; expected a token id",
        );
        check(
            r#"{"response_format": {"type": "json_schema"}}"#,
            "`response_format.json_schema` is missing",
        );
        check(
            r#"{"response_format": {"type": "xml"}}"#,
            r#"`response_format.type` is \"xml\"; expected one of"#,
        );
        let stops = format!(r#"{{"stop": [{}]}}"#, vec![r#""x""#; 17].join(","));
        check(&stops, "more than 16");
        let deep = format!(r#"{{"unknown": {}{}}}"#, "[".repeat(127), "]".repeat(127));
        check(&deep, "128 levels deep");

        let fine = format!(
            r#"{{"unknown": {}{}, "n": 1, "n": 2.0}}"#,
            "[".repeat(126),
            "]".repeat(126)
        );
        read::<(Parameters, CompletionFields)>(fine.as_bytes()).expect("as deep as it may be");
    }
}
