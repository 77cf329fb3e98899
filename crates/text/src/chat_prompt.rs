//! A conversation's prompt: its tokens, and the end of its text.

use std::fmt;

use motet_protocol::TokenId;

use super::codec::{PromptLimits, TextCodec};
use super::error::TextError;
use super::template::{Chat, Written};

/// Bytes of a prompt's end that the reader of an answer gets: templates write far less than that
/// behind the last message.
const PROMPT_END_BYTES: usize = 512;

/// A conversation's prompt. Its `Debug` output shows sizes only.
#[derive(Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The tokens, up to where the assistant's turn begins.
    pub tokens: Vec<TokenId>,
    /// Offsets in the tokens, ascending, at most two: later prompts of the conversation agree up
    /// to one of them. The last is where the generation prompt begins. One before it is where
    /// the prompt after the user's next message differs, if that is earlier.
    pub restore_points: Vec<usize>,
    /// The end of the text, from which [`AnswerFormat`](super::AnswerFormat) knows how the answer
    /// begins: some hundred bytes, or all of the assistant's turn where its
    /// [text goes on](Chat::continues_last).
    pub end: String,
}

impl fmt::Debug for ChatPrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tokens, points) = (self.tokens.len(), self.restore_points.len());
        write!(f, "ChatPrompt({tokens} tokens, {points} restore points)")
    }
}

impl TextCodec {
    /// The tokens of a conversation up to the assistant's turn, and the end of its text, without
    /// the offsets of [`encode_chat_prompt`](Self::encode_chat_prompt).
    ///
    /// # Errors
    ///
    /// As [`encode_chat`](Self::encode_chat), and [`TextError::TooManyTokens`].
    pub fn encode_chat_within(
        &self,
        chat: &Chat,
        limits: PromptLimits,
    ) -> Result<ChatPrompt, TextError> {
        let rendered = self.render(chat, true, limits)?;
        Ok(ChatPrompt {
            tokens: self.encode_text(chat, &rendered)?,
            restore_points: Vec::new(),
            end: self.prompt_end(chat, &rendered, limits),
        })
    }

    /// The end of a conversation's text: of a text that goes on, all of the assistant's turn.
    pub(super) fn prompt_end(&self, chat: &Chat, prompt: &Written, limits: PromptLimits) -> String {
        let Some((last, before)) = chat.messages.split_last().filter(|_| chat.continues_last)
        else {
            return prompt.end(PROMPT_END_BYTES).to_owned();
        };
        let before = Chat {
            messages: before.to_vec(),
            variables: chat.variables.clone(),
            continues_last: false,
            ..*chat
        };
        let whole = &*prompt.text;
        match self.render(&before, false, limits) {
            Ok(before) => {
                let common = common_bytes(whole, &before.text);
                whole[whole.floor_char_boundary(common)..].to_owned()
            }
            // The template rejects the conversation without its last message.
            Err(_) => {
                let bytes = last.content.len().saturating_add(PROMPT_END_BYTES);
                prompt.end(bytes).to_owned()
            }
        }
    }
}

/// Bytes that two texts begin with alike.
pub(super) fn common_bytes(one: &str, other: &str) -> usize {
    let pairs = one.bytes().zip(other.bytes());
    pairs.take_while(|(one, other)| one == other).count()
}
