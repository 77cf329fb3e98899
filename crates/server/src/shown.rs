//! Paths and methods as logs and spans show them.

/// Most bytes of a path or a method in the line, as any client may send long ones.
const SHOWN_BYTES_MAX: usize = 256;
/// The paths of responses, without their ids.
const RESPONSES: &str = "/v1/responses/";
/// Bytes of a response's id in the line: enough to tell a few apart, and far too few to guess the
/// rest of its 128 random bits.
const SHOWN_ID_BYTES: usize = "resp_".len() + 4;

/// The path as logs and spans show it, with the beginning of a response's id: without keys, the id
/// alone gives access to a conversation.
pub(crate) fn shown_path(path: &str) -> String {
    match path.strip_prefix(RESPONSES) {
        None | Some("") => truncated(path),
        Some(rest) => {
            let (id, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let shown = &id[..id.floor_char_boundary(SHOWN_ID_BYTES)];
            truncated(&format!("{RESPONSES}{shown}…{rest}"))
        }
    }
}

/// The text, or its beginning and its length if it is too long.
pub(crate) fn truncated(text: &str) -> String {
    if text.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    let mut end = SHOWN_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}… ({} bytes)", &text[..end], text.len())
}
