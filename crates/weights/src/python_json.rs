//! JSON as Python's `json` module writes and reads it, which is how the files of a folder came to
//! be: with infinities, NaN and halves of surrogate pairs.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

/// A number for infinity, which JSON does not have. In single precision it is infinite.
const INFINITY: &[u8] = b"1.79e308";
/// Python's name of infinity.
const INFINITY_NAME: &[u8] = b"Infinity";
/// A text for NaN: where a number is expected, the error quotes it.
const NAN: &[u8] = b"\"NaN\"";
/// Python's name of NaN.
const NAN_NAME: &[u8] = b"NaN";
/// Bytes of an escape like `\ud83d`.
const ESCAPE_BYTES: usize = 6;

/// Parses JSON with Python's additions. Infinity is read as [`f64::MAX`] nearly, NaN as a text,
/// half of a surrogate pair as U+FFFD. A byte order mark is skipped.
///
/// # Errors
///
/// Those of `serde_json`, for other deviations from JSON.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match serde_json::from_slice(bytes) {
        Ok(parsed) => Ok(parsed),
        Err(error) => match standard(bytes) {
            Cow::Borrowed(_) => Err(error),
            Cow::Owned(standard) => serde_json::from_slice(&standard),
        },
    }
}

/// The same without Python's additions. Borrowed if it has none.
fn standard(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut output = Vec::new();
    let (mut at, mut copied, mut in_string) = (0, 0, false);
    while let Some(byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let (taken, replacement): (usize, &[u8]) = match byte {
            b'"' => {
                in_string = !in_string;
                (1, b"")
            }
            b'\\' if in_string => escape(rest),
            b'I' if !in_string && rest.starts_with(INFINITY_NAME) => {
                (INFINITY_NAME.len(), INFINITY)
            }
            b'N' if !in_string && rest.starts_with(NAN_NAME) => (NAN_NAME.len(), NAN),
            _ => (1, b""),
        };
        if !replacement.is_empty() {
            output.extend_from_slice(&bytes[copied..at]);
            output.extend_from_slice(replacement);
            copied = at + taken;
        }
        at += taken;
    }
    if copied == 0 {
        return Cow::Borrowed(bytes);
    }
    output.extend_from_slice(&bytes[copied..]);
    Cow::Owned(output)
}

/// The bytes that belong to the escape at the start of `rest`, and their replacement; empty if
/// they stay.
fn escape(rest: &[u8]) -> (usize, &'static [u8]) {
    match unit(rest) {
        Some(0xd800..=0xdbff) => match rest.get(ESCAPE_BYTES..).and_then(unit) {
            Some(0xdc00..=0xdfff) => (2 * ESCAPE_BYTES, b""),
            _ => (ESCAPE_BYTES, b"\\ufffd"),
        },
        Some(0xdc00..=0xdfff) => (ESCAPE_BYTES, b"\\ufffd"),
        // A backslash and the byte that it escapes.
        _ => (2, b""),
    }
}

/// The UTF-16 unit of an escape like `\ud83d`.
fn unit(rest: &[u8]) -> Option<u16> {
    let digits = rest.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn additions_of_python_are_read() {
        let check = |text: &str, expected: Value| {
            let found: Value = from_slice(text.as_bytes()).expect(text);
            assert_eq!(found, expected, "{text}");
        };
        check("[0.0, Infinity]", json!([0.0, 1.79e308]));
        check(r#"{"a": -Infinity}"#, json!({"a": -1.79e308}));
        check(r#"{"a": NaN, "b": 1}"#, json!({"a": "NaN", "b": 1}));
        check(
            r#"["NaN", "\"Infinity", NaN]"#,
            json!(["NaN", "\"Infinity", "NaN"]),
        );
        check(r#"["\\", Infinity]"#, json!(["\\", 1.79e308]));
        check(
            r#"["\ud800", "\udc00x", "\ud83d\ude00"]"#,
            json!(["\u{fffd}", "\u{fffd}x", "😀"]),
        );
        check("\u{feff}{\"a\": 1}", json!({"a": 1}));
        check(r#"{"a": 1, "a": 2}"#, json!({"a": 2}));
    }

    #[test]
    fn other_deviations_are_errors() {
        for text in [
            "", "[1,]", "{'a': 1}", "[Inf]", "[NaN", "\"\\", "[\"\\ud8", "nan",
        ] {
            assert!(from_slice::<Value>(text.as_bytes()).is_err(), "{text}");
        }
    }
}
