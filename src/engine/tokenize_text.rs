//! Text becomes tokens, or is rejected for its length at no cost.
//!
//! A few kB of text cost little beside a step; longer text is rendered and tokenised on the
//! threads of [`Blocking`](super::blocking::Blocking). A text is checked by its bytes, by the
//! bytes that its template writes, and by its tokens, in that order.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::Engine;
use super::blocking::BlockingError;
use super::sequence_setup::user_id;
use super::tokenize_prompt::{TokenizeMode, TokenizedPrompt};
use crate::error::{QueueLimit, SubmitError, field_error};
use crate::request::{Prompt, Request};
use motet_protocol::TokenId;
use motet_text::{Chat, PromptLimits, TextCodec, TextError};

/// Text of at most this many bytes is tokenised inline: this takes as long as a few messages
/// between actors.
pub(super) const INLINE_BYTES_MAX: usize = 4 << 10;
/// Likewise, tokens that are detokenised inline.
const INLINE_TOKENS_MAX: usize = 16 << 10;
/// Cost of a message beside its text, in bytes of text.
const MESSAGE_BYTES: usize = 64;
/// Bytes of a conversation for each byte that its template may write. A template may leave text
/// out, earlier reasoning above all, so a conversation may be longer than its rendered text.
/// The limit of the rendered text assumes the longest token, many times as long as the usual
/// one, so a conversation that fits is rarely near the limit.
const CHAT_BYTES_FACTOR: usize = 4;

impl Engine {
    /// Tokenises text as this engine's requests do, to count or show the tokens. With
    /// `as_prompt` the result is that of [`submit`](Engine::submit). Without it, the text
    /// continues other tokens, and a conversation ends before the assistant's turn. Long texts
    /// wait for their `user`'s turn on the threads that
    /// [`TextConfig`](motet_core::config::TextConfig) configures.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when the text cannot fit into the model's context, when its template
    /// rejects it, or when too much text is waiting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future removes a text that waits; a text that is being tokenised runs to
    /// its end.
    pub async fn tokenize(
        &self,
        prompt: Prompt,
        as_prompt: bool,
        user: Option<&str>,
    ) -> Result<Vec<TokenId>, SubmitError> {
        let mut request = Request::new(prompt);
        request.user = user.map(str::to_owned);
        let mode = if as_prompt {
            TokenizeMode::Prompt {
                with_restore_points: false,
            }
        } else {
            TokenizeMode::Continuation
        };
        Ok(self.tokenize_prompt(&mut request, mode).await?.tokens)
    }

    /// Returns the text of tokens, with special tokens written out. The number of tokens is
    /// limited as for a prompt. Long inputs wait for their `user`'s turn as texts do.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when there are too many tokens, a token is not in the vocabulary, or too
    /// much text is waiting.
    ///
    /// # Cancel safety
    ///
    /// As for [`tokenize`](Engine::tokenize).
    pub async fn detokenize(
        &self,
        tokens: Vec<TokenId>,
        user: Option<&str>,
    ) -> Result<String, SubmitError> {
        let text = self.inner.text.as_ref();
        let text = text.ok_or(SubmitError::NoTokenizer { field: "prompt" })?;
        let contexts = self.inner.config.text.shift_contexts_max;
        let tokens_max = self.inner.spec.context_tokens_max.saturating_mul(contexts);
        if tokens.len() > tokens_max {
            return Err(field_error(
                "prompt",
                format!("{} tokens long", tokens.len()),
                format!(
                    "at most {tokens_max} tokens: `text.shift_contexts_max` = {contexts} \
                     contexts of the model"
                ),
            ));
        }
        if tokens.len() <= INLINE_TOKENS_MAX {
            return Ok(text.tokenizer().decode(&tokens)?);
        }
        let mut request = Request::tokens([]);
        request.user = user.map(str::to_owned);
        let bytes = tokens.len() * size_of::<TokenId>();
        let text = text.clone();
        let work = move || text.tokenizer().decode(&tokens);
        let decoded = self
            .run_blocking(&mut request, bytes, "detokenizer", work)
            .await?;
        Ok(decoded?)
    }

    /// Returns the tokens of a prompt that is text or a conversation, which errors name `field`.
    pub(super) async fn tokenize_text(
        &self,
        request: &mut Request,
        field: &'static str,
        mode: TokenizeMode,
    ) -> Result<TokenizedPrompt, SubmitError> {
        let text = self.inner.text.clone();
        let text = text.ok_or(SubmitError::NoTokenizer { field })?;
        let contexts = self.contexts(request.at_context_limit);
        let text_limits = self.text_limits(&text, contexts);
        self.check_length(&request.prompt, text_limits, contexts)?;
        let bytes = prompt_bytes(&request.prompt);
        let tokenized = if bytes <= INLINE_BYTES_MAX {
            tokenize_prompt(&text, &request.prompt, mode, text_limits)
        } else {
            let what = match request.prompt {
                Prompt::Chat(_) => "chat template or the tokenizer",
                Prompt::Text(_) | Prompt::Tokens(_) => "tokenizer",
            };
            let part = |request: &mut Request, other| std::mem::replace(&mut request.prompt, other);
            let work = move |prompt: &Prompt| tokenize_prompt(&text, prompt, mode, text_limits);
            let empty = Prompt::Tokens(Vec::new());
            self.run_on_part(request, part, empty, bytes, what, work)
                .await?
        };
        tokenized.map_err(|error| self.too_long(error, field, contexts))
    }

    /// Runs work on a part of the request, as [`run_blocking`](Self::run_blocking) does. `replace`
    /// puts another in the part's place, which is `empty` meanwhile. The part is in the request
    /// again afterwards, also in one that is rejected and given back.
    pub(super) async fn run_on_part<P, T>(
        &self,
        request: &mut Request,
        replace: fn(&mut Request, P) -> P,
        empty: P,
        bytes: usize,
        what: &'static str,
        work: impl FnOnce(&P) -> T + Send + 'static,
    ) -> Result<T, SubmitError>
    where
        P: Clone + Send + Sync + 'static,
        T: Send + 'static,
    {
        let part = Arc::new(replace(request, empty));
        let shared = Arc::clone(&part);
        let mut done = self
            .run_blocking(request, bytes, what, move || work(&shared))
            .await;
        let part = Arc::unwrap_or_clone(part);
        match &mut done {
            Err(SubmitError::QueueFull {
                request: rejected, ..
            }) => replace(rejected, part),
            _ => replace(request, part),
        };
        done
    }

    /// Runs work on the blocking threads, in its user's turn. `what` names the part for errors.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        request: &mut Request,
        bytes: usize,
        what: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, SubmitError> {
        let user = user_id(request.user.as_deref());
        match self.inner.blocking.run(user, bytes, work).await {
            Ok(done) => Ok(done),
            Err(BlockingError::Full { retry_after }) => {
                let request = std::mem::replace(request, Request::tokens([]));
                Err(self.queue_full(QueueLimit::Text, retry_after, request))
            }
            Err(BlockingError::Panicked) => {
                Err(SubmitError::Text(TextError::Panicked { what, bytes }))
            }
        }
    }

    fn text_limits(&self, text: &TextCodec, contexts: usize) -> PromptLimits {
        let tokens_max = self.inner.spec.context_tokens_max.saturating_mul(contexts);
        PromptLimits {
            bytes_max: tokens_max.saturating_mul(text.tokenizer().token_bytes_max()),
            tokens_max,
        }
    }

    /// Rejects a prompt that cannot fit, before it is copied, rendered or tokenised.
    fn check_length(
        &self,
        prompt: &Prompt,
        text_limits: PromptLimits,
        contexts: usize,
    ) -> Result<(), SubmitError> {
        match prompt {
            Prompt::Text(text) if text.len() > text_limits.bytes_max => {
                let found = format!("{} bytes long", text.len());
                let lengths = (found, self.bytes_allowed(contexts));
                Err(self.prompt_too_long("prompt.text", lengths, None, contexts))
            }
            // Each message is at least one token in any template that shows it.
            Prompt::Chat(chat) if chat.messages.is_empty() => {
                let (found, expected) = ("no message at all", "at least one message");
                Err(field_error("prompt.chat", found, expected))
            }
            Prompt::Chat(chat) if chat.messages.len() > text_limits.tokens_max => {
                let found = format!("{} messages long", chat.messages.len());
                let expected = format!(
                    "at most {} messages, one for each token of {}",
                    text_limits.tokens_max,
                    self.contexts_named(contexts)
                );
                Err(self.prompt_too_long("prompt.chat", (found, expected), None, contexts))
            }
            Prompt::Chat(chat) => {
                let bytes = chat_bytes(chat);
                let bytes_max = text_limits.bytes_max.saturating_mul(CHAT_BYTES_FACTOR);
                if bytes <= bytes_max {
                    return Ok(());
                }
                let expected = format!(
                    "at most {bytes_max} bytes, {CHAT_BYTES_FACTOR} for each that its template \
                     may write, which is {}",
                    self.bytes_allowed(contexts)
                );
                let found = format!("{bytes} bytes long");
                Err(self.prompt_too_long("prompt.chat", (found, expected), None, contexts))
            }
            Prompt::Text(_) | Prompt::Tokens(_) => Ok(()),
        }
    }

    /// Converts the error of a text that does not fit into the caller's error.
    fn too_long(&self, error: TextError, field: &'static str, contexts: usize) -> SubmitError {
        match error {
            TextError::TooLong { bytes_max } => {
                let found = format!("more than {bytes_max} bytes long in its template");
                let lengths = (found, self.bytes_allowed(contexts));
                self.prompt_too_long(field, lengths, None, contexts)
            }
            TextError::TooManyTokens { tokens_max } => {
                let found = format!("more than {tokens_max} tokens long");
                let context = self.contexts_named(contexts);
                let lengths = (found, format!("fewer than the tokens of {context}"));
                self.prompt_too_long(field, lengths, None, contexts)
            }
            error => error.into(),
        }
    }

    fn bytes_allowed(&self, contexts: usize) -> String {
        let text = self.inner.text.as_ref();
        let token_bytes = text.map_or(1, |text| text.tokenizer().token_bytes_max());
        let tokens = self.inner.spec.context_tokens_max.saturating_mul(contexts);
        format!(
            "at most {} bytes: {token_bytes} for each token of {}",
            tokens.saturating_mul(token_bytes),
            self.contexts_named(contexts)
        )
    }
}

/// Renders and tokenises a prompt.
fn tokenize_prompt(
    text: &TextCodec,
    prompt: &Prompt,
    mode: TokenizeMode,
    text_limits: PromptLimits,
) -> Result<TokenizedPrompt, TextError> {
    let of_tokens = |tokens| TokenizedPrompt {
        tokens,
        restore_points: Vec::new(),
        end: String::new(),
    };
    match (prompt, mode) {
        (Prompt::Tokens(tokens), _) => Ok(of_tokens(tokens.clone())),
        (Prompt::Text(text_part), mode) => {
            text.tokenizer()
                .check_count(text_part, text_limits.tokens_max)?;
            let tokens = match mode {
                TokenizeMode::Prompt { .. } => text.encode_prompt(text_part)?,
                TokenizeMode::Continuation => text.encode_continuation(text_part)?,
            };
            Ok(of_tokens(tokens))
        }
        (
            Prompt::Chat(chat),
            TokenizeMode::Prompt {
                with_restore_points,
            },
        ) => {
            let encoded = if with_restore_points {
                text.encode_chat_prompt(chat, text_limits)?
            } else {
                text.encode_chat_within(chat, text_limits)?
            };
            Ok(TokenizedPrompt {
                tokens: encoded.tokens,
                restore_points: encoded.restore_points,
                end: encoded.end,
            })
        }
        (Prompt::Chat(chat), TokenizeMode::Continuation) => {
            let tokens = text.encode_rendered(chat, false, text_limits)?;
            Ok(of_tokens(tokens))
        }
    }
}

/// Returns the approximate bytes of a prompt's text.
fn prompt_bytes(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Tokens(_) => 0,
        Prompt::Text(text) => text.len(),
        Prompt::Chat(chat) => {
            let members = |members: &BTreeMap<String, Value>| {
                let members = members.iter();
                let bytes = members.map(|(name, value)| name.len() + json_memory_bytes(value));
                bytes.sum::<usize>()
            };
            let messages = chat.messages.iter().map(|message| {
                let text = message.role.len() + message.content.len();
                MESSAGE_BYTES + text + members(&message.more)
            });
            messages.sum::<usize>() + members(&chat.variables)
        }
    }
}

/// Returns the bytes of a conversation's strings, including member names, plus one for each
/// value: a lower bound of its length as JSON.
fn chat_bytes(chat: &Chat) -> usize {
    let members = |members: &BTreeMap<String, Value>| {
        let members = members.iter();
        let bytes = members.map(|(name, value)| name.len() + json_bytes(value));
        bytes.sum::<usize>()
    };
    let messages = chat
        .messages
        .iter()
        .map(|message| message.role.len() + message.content.len() + members(&message.more));
    messages.sum::<usize>() + members(&chat.variables)
}

fn json_bytes(value: &Value) -> usize {
    1 + match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(json_bytes).sum(),
        Value::Object(members) => {
            let members = members.iter();
            members
                .map(|(name, value)| name.len() + json_bytes(value))
                .sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn json_memory_bytes(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(values) => values.iter().map(json_memory_bytes).sum(),
            Value::Object(members) => {
                let members = members.iter();
                members
                    .map(|(name, value)| name.len() + json_memory_bytes(value))
                    .sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_model::oracle::{Oracle, OracleConfig};

    #[test]
    fn conversation_is_long_by_all_that_its_template_may_read() {
        let long = "x".repeat(INLINE_BYTES_MAX);
        let short = || Chat::from([motet_text::Message::user("a")]);
        let is_long = |chat: Chat| prompt_bytes(&Prompt::Chat(chat)) > INLINE_BYTES_MAX;
        assert!(!is_long(short()));
        assert!(is_long(short().variable("x", long.clone().into())));
        assert!(is_long(short().variable(&*long, Value::Null)));
        let mut named = short();
        named.messages[0].more.insert(long.clone(), Value::Null);
        assert!(is_long(named));
        let mut many = short();
        let variables = (0..1_000).map(|number| (number.to_string(), Value::Null));
        many.variables.extend(variables);
        assert!(is_long(many));
    }

    #[tokio::test]
    async fn error_names_the_part_that_panicked() {
        let load = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
        let engine = Engine::builder(load)
            .start()
            .await
            .expect("the engine starts");
        let mut request = Request::tokens([1]);
        let done = engine.run_blocking(&mut request, 9, "detokenizer", || panic!("injected"));
        let error = done.await.map(|()| "done").expect_err("the work panics");
        assert_eq!(
            error.to_string(),
            "the detokenizer panicked on 9 bytes; this is a bug in it"
        );
    }
}
