//! The bounds of a message, checked before it is decoded.
//!
//! Two bytes can become a value of a hundred in memory, and a decoder skips the fields that it does not
//! know: a setting that a client relies on would be lost without a word.

use crate::error::ApiError;

/// Strings, lists and messages in a message, down to the strings of its choices.
const PARTS_MAX: usize = 16 << 10;
/// Bytes of all free-form fields of a message: hints for caches and connectors.
const FREE_FORM_BYTES_MAX: usize = 4 << 10;
/// Bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A message of the protocol.
struct Known {
    /// Its name as a prefix of its fields.
    name: &'static str,
    /// The greatest number of a field.
    last: u32,
    /// Messages in it whose fields are looked at.
    messages: &'static [(u32, Known)],
    /// Fields of free form.
    free_form: &'static [u32],
}

const GENERATE_REQUEST: Known = Known {
    name: "",
    last: 18,
    messages: &[
        (6, Known::flat("sampling.", 5)),
        (
            7,
            Known {
                name: "decoding.",
                last: 12,
                messages: &[(8, Known::flat("decoding.choice.", 1))],
                free_form: &[],
            },
        ),
        (8, Known::flat("stopping.", 7)),
        (9, Known::flat("response.", 8)),
        (
            10,
            Known {
                name: "kv.",
                last: 4,
                messages: &[],
                free_form: &[3, 4],
            },
        ),
    ],
    free_form: &[17, 18],
};

impl Known {
    const fn flat(name: &'static str, last: u32) -> Self {
        Self {
            name,
            last,
            messages: &[],
            free_form: &[],
        }
    }
}

/// Counts of a message's fields.
#[derive(Default)]
struct Counted {
    parts: usize,
    free_form_bytes: usize,
}

/// Checks a `vllm.GenerateRequest` with its prefix.
///
/// # Errors
///
/// The error names the field, its number where it is unknown, and the bound.
pub(super) fn check(bytes: &[u8]) -> Result<(), ApiError> {
    let Some((prefix, message)) = bytes.split_at_checked(PREFIX_BYTES) else {
        return Err(malformed("its prefix is incomplete"));
    };
    let length = u32::from_be_bytes(prefix[1..].try_into().expect("four bytes")) as usize;
    if prefix[0] != 0 {
        return Err(malformed("it is compressed; expected it as it is"));
    }
    if length != message.len() {
        let what = format!("it has {} bytes after a prefix of {length}", message.len());
        return Err(malformed(&what));
    }
    check_fields(message, &GENERATE_REQUEST, &mut Counted::default())
}

fn check_fields(mut bytes: &[u8], known: &Known, counted: &mut Counted) -> Result<(), ApiError> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let number = u32::try_from(key >> 3).unwrap_or(u32::MAX);
        if !(1..=known.last).contains(&number) {
            let version = vllm_proto::VERSION;
            let message = format!(
                "the message has a field `{}` of number {number}, which is not in vllm-proto {version}: \
                 use that version, or leave it out",
                known.name
            );
            return Err(ApiError::request(
                axum::http::StatusCode::BAD_REQUEST,
                message,
            ));
        }
        let length = match key & 7 {
            0 => {
                varint(&mut bytes)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).unwrap_or(usize::MAX),
            5 => 4,
            _ => return Err(malformed("it is no protobuf")),
        };
        let Some((value, rest)) = bytes.split_at_checked(length) else {
            return Err(malformed("a field is longer than the rest"));
        };
        bytes = rest;
        if key & 7 != 2 {
            continue;
        }
        counted.parts += 1;
        if counted.parts > PARTS_MAX {
            let what = format!("it has more than {PARTS_MAX} strings, lists and messages");
            return Err(malformed(&what));
        }
        if known.free_form.contains(&number) {
            counted.free_form_bytes += value.len();
            if counted.free_form_bytes > FREE_FORM_BYTES_MAX {
                let what = format!("its hints have more than {FREE_FORM_BYTES_MAX} bytes");
                return Err(malformed(&what));
            }
        }
        let nested = known.messages.iter().find(|(of, _)| *of == number);
        if let Some((_, nested)) = nested {
            check_fields(value, nested, counted)?;
        }
    }
    Ok(())
}

/// Takes a number of variable length from the front.
fn varint(bytes: &mut &[u8]) -> Result<u64, ApiError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else {
            return Err(malformed("a number is incomplete"));
        };
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(malformed("a number is longer than ten bytes"))
}

fn malformed(what: &str) -> ApiError {
    let message = format!("the message is no `vllm.GenerateRequest`: {what}");
    ApiError::request(axum::http::StatusCode::BAD_REQUEST, message)
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use vllm_proto::decoding_parameters::{StringChoices, StructuredOutput};
    use vllm_proto::{
        DecodingParameters, GenerateRequest, KvCacheParameters, KvHintAction, KvHintsEnvelope,
        MediaItem, TokenIds, generate_request::Prompt,
    };

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("short");
        [&[0][..], &length.to_be_bytes(), message].concat()
    }

    #[track_caller]
    fn rejected(message: &[u8], expected: &str) {
        let error = check(&framed(message)).expect_err(expected);
        assert!(error.message().contains(expected), "{}", error.message());
    }

    #[test]
    fn whole_requests_pass() {
        let request = GenerateRequest {
            request_id: "a".into(),
            prompt: Some(Prompt::TokenIds(TokenIds {
                ids: (0..100_000).collect(),
            })),
            temperature: Some(0.5),
            kv: Some(KvCacheParameters {
                cache_salt: "tenant".into(),
                ..KvCacheParameters::default()
            }),
            decoding: Some(DecodingParameters {
                logit_bias: (0..4_000).map(|token| (token, 1.0)).collect(),
                ..DecodingParameters::default()
            }),
            ..GenerateRequest::default()
        };
        check(&framed(&request.encode_to_vec())).expect("it is fine");
        check(&framed(&[])).expect("all fields may be missing");
    }

    #[test]
    fn unknown_fields_are_rejected_by_number() {
        rejected(&[19 << 3 & 0x7F | 0x80, 1, 0], "number 19");
        // `stopping` with a field 9.
        rejected(&[8 << 3 | 2, 2, 9 << 3, 1], "`stopping.` of number 9");
    }

    #[test]
    fn messages_that_would_grow_are_rejected() {
        let media = GenerateRequest {
            media: vec![MediaItem::default(); PARTS_MAX + 1],
            ..GenerateRequest::default()
        };
        rejected(&media.encode_to_vec(), "more than 16384 strings");
        let empty_lists = GenerateRequest {
            decoding: Some(DecodingParameters {
                bad_words_token_ids: vec![TokenIds::default(); PARTS_MAX + 1],
                ..DecodingParameters::default()
            }),
            ..GenerateRequest::default()
        };
        rejected(&empty_lists.encode_to_vec(), "more than 16384 strings");
        let choices = StructuredOutput::Choice(StringChoices {
            choices: vec![String::new(); PARTS_MAX],
        });
        let empty_choices = GenerateRequest {
            decoding: Some(DecodingParameters {
                structured_output: Some(choices),
                ..DecodingParameters::default()
            }),
            ..GenerateRequest::default()
        };
        rejected(&empty_choices.encode_to_vec(), "more than 16384 strings");
        let hints = GenerateRequest {
            kv_hints: Some(KvHintsEnvelope {
                actions: vec![KvHintAction::default(); FREE_FORM_BYTES_MAX],
                ..KvHintsEnvelope::default()
            }),
            ..GenerateRequest::default()
        };
        rejected(&hints.encode_to_vec(), "hints have more than 4096 bytes");
    }

    #[test]
    fn what_is_no_message_is_rejected() {
        rejected(&[0x80; 11], "longer than ten bytes");
        rejected(&[0x80], "incomplete");
        rejected(&[1 << 3 | 2, 5, 1], "longer than the rest");
        rejected(&[1 << 3 | 3], "no protobuf");
        for bytes in [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 0], &[0, 0, 0, 0, 1]] {
            check(bytes).expect_err("its prefix is wrong");
        }
    }
}
