//! The tokens that end a model's turn where no field of its files names them.

use super::template::{Chat, ChatTemplate, Message};
use super::tokenizer::Tokenizer;
use motet_protocol::TokenId;

/// An answer that no template writes by itself.
const ANSWER: &str = "The answer that is looked for.";

/// Bytes behind the answer that are looked at. Names of tokens have up to thirty.
const BEHIND_BYTES_MAX: usize = 256;

/// The control token that a template writes behind the last message of an assistant, with nothing
/// but white space between them. None also where the template rejects such a conversation.
pub(super) fn of_template(tokenizer: &Tokenizer, template: &ChatTemplate) -> Option<TokenId> {
    let chat = Chat::from([Message::user("A question."), Message::assistant(ANSWER)]);
    let text = template.render(&chat, false).ok()?;
    let (_, behind) = text.rsplit_once(ANSWER)?;
    let behind = &behind[..behind.floor_char_boundary(BEHIND_BYTES_MAX)];
    let tokens = tokenizer.encode(behind, false).ok()?;
    let is_blank = |token: &TokenId| {
        let bytes = tokenizer.token_bytes(*token).unwrap_or_default();
        bytes.trim_ascii().is_empty() && !tokenizer.is_special(*token)
    };
    let first = tokens.into_iter().find(|token| !is_blank(token));
    first.filter(|token| tokenizer.is_special(*token))
}
