//! The offsets of a conversation's prompt up to which its next prompts agree.
//!
//! The next prompt of a conversation seldom continues the last one token by token. Templates of
//! thinking models (Qwen3) drop the thoughts of turns before the last question; Mistral's write the
//! tools, and older ones the system prompt, before the last question only; the generation prompt
//! itself may open a thought (`<think>`) that no history has. A model that resumes after any
//! token finds the longest common prefix by itself. A model with recurrent layers or windows
//! resumes only where state was kept, so the offsets are computed beforehand, by rendering the
//! conversation as it will stand in its next prompts.

use motet_protocol::common_prefix;

use super::chat_prompt::{ChatPrompt, common_bytes};
use super::codec::{PromptLimits, TextCodec};
use super::error::TextError;
use super::template::{Chat, Message};

/// The text of a message that is not written yet. It lies after every offset that is returned, so
/// its words do not matter.
const UNKNOWN: &str = "-";

impl TextCodec {
    /// The tokens of a conversation up to the assistant's turn, and the offsets from which its
    /// next prompts are likely to resume.
    ///
    /// It costs two more renderings of the conversation, and tokenises twice; three times if an
    /// earlier part of the history will be rewritten.
    ///
    /// # Errors
    ///
    /// As [`encode_chat`](Self::encode_chat), and [`TextError::TooManyTokens`]. A template that
    /// rejects the conversation without its generation prompt, or with another turn, yields fewer
    /// offsets.
    pub fn encode_chat_prompt(
        &self,
        chat: &Chat,
        limits: PromptLimits,
    ) -> Result<ChatPrompt, TextError> {
        let prompt = self.render(chat, true, limits)?;
        let tokens = self.encode_text(chat, &prompt)?;
        let end = self.prompt_end(chat, &prompt, limits);
        let mut restore_points = Vec::new();
        let ended = chat.continues_last.then(|| Chat {
            continues_last: false,
            ..chat.clone()
        });
        if let Ok(so_far) = self.render(ended.as_ref().unwrap_or(chat), false, limits) {
            let before_answer = common_prefix(&tokens, &self.encode_text(chat, &so_far)?);
            let text = common_bytes(&prompt.text, &so_far.text);
            let rewritten = next_turn(chat).and_then(|next| {
                let next = self.render(&next, false, limits).ok()?;
                // Most templates keep the history. Comparing texts shows that without tokenising.
                let is_rewritten = common_bytes(&prompt.text, &next.text) < text;
                is_rewritten.then(|| self.encode_text(chat, &next))
            });
            if let Some(next) = rewritten.transpose()? {
                restore_points.push(common_prefix(&tokens, &next).min(before_answer));
            }
            restore_points.push(before_answer);
        }
        restore_points.retain(|at| *at > 0);
        restore_points.dedup();
        Ok(ChatPrompt {
            tokens,
            restore_points,
            end,
        })
    }
}

/// The conversation after an answer and the user's next message; `None` after a system message or
/// an unknown role.
fn next_turn(chat: &Chat) -> Option<Chat> {
    let last = chat.messages.last()?;
    let mut next = chat.clone();
    next.continues_last = false;
    match &*last.role {
        "assistant" => {}
        "user" | "tool" => next.messages.push(Message::assistant(UNKNOWN)),
        _ => return None,
    }
    next.messages.push(Message::user(UNKNOWN));
    Some(next)
}
