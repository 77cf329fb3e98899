//! The tokenizer part of a GGUF file's metadata.

use std::fmt;

use crate::error::{TextError, field_error};
use motet_protocol::TokenId;

/// The tokenizer part of a GGUF file's metadata, key by key. Lists that the file does not have
/// are empty.
#[derive(Clone, Default)]
pub struct GgufVocabulary {
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub model: String,
    /// `tokenizer.ggml.pre`: how byte-level BPE cuts text into words.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the token of every id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.merges`: pairs, separated by a space, in the order of merging.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`: one per token, for SentencePiece.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: one per token: 1 normal, 2 unknown, 3 control, 4
    /// user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.bos_token_id`.
    pub begin: Option<TokenId>,
    /// `tokenizer.ggml.eos_token_id`.
    pub end: Option<TokenId>,
    /// `tokenizer.ggml.eot_token_id`.
    pub end_of_turn: Option<TokenId>,
    /// `tokenizer.ggml.eom_token_id`: ends a message that calls a tool.
    pub end_of_message: Option<TokenId>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<TokenId>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding: Option<TokenId>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_begin: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_end: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`, for SentencePiece.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.tool_use`: the template of conversations with tools.
    pub tool_template: Option<String>,
}

/// Names of tokens that end a turn or a text and mean nothing else. Converters often name only
/// one of them in a field, and some write them as normal tokens. llama.cpp has the same list.
pub(super) const END_NAMES: [&str; 15] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Names of such tokens only where the file says that they are control tokens: others are texts,
/// such as Gemma's HTML tags.
pub(super) const END_NAMES_OF_CONTROL: [&str; 2] = ["</s>", "<eos>"];

/// The origin of a GGUF file's fields, for messages.
pub(crate) const METADATA: &str = "GGUF metadata";

/// Types of tokens, as `tokenizer.ggml.token_type` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl GgufVocabulary {
    /// Type of a token; tokens are normal if the file has no types.
    pub(crate) fn token_type(&self, index: usize) -> TokenType {
        let is_end = || END_NAMES.contains(&self.tokens[index].as_str());
        match self.token_types.get(index) {
            Some(2) => TokenType::Unknown,
            Some(3) => TokenType::Control,
            Some(1 | 4) if is_end() => TokenType::Control,
            Some(4) => TokenType::UserDefined,
            Some(5) => TokenType::Unused,
            Some(6) => TokenType::Byte,
            _ => TokenType::Normal,
        }
    }

    /// Whether SentencePiece writes a space before the text.
    pub(super) fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix.unwrap_or(true)
    }

    /// The text of a token named by one of the id fields.
    pub(crate) fn token(&self, id: Option<TokenId>) -> Option<&str> {
        self.tokens.get(id? as usize).map(String::as_str)
    }

    pub(super) fn check(&self) -> Result<(), TextError> {
        let count = self.tokens.len();
        if count == 0 || u32::try_from(count).is_err() {
            return Err(bad("tokens", format!("{count} tokens"), "1 to 2^32 - 1"));
        }
        for (key, found) in [
            ("token_type", self.token_types.len()),
            ("scores", self.scores.len()),
        ] {
            if found != 0 && found != count {
                return Err(bad(
                    key,
                    format!("{found} values"),
                    format!("{count}, one a token"),
                ));
            }
        }
        for (key, id) in [
            ("bos_token_id", self.begin),
            ("eos_token_id", self.end),
            ("eot_token_id", self.end_of_turn),
            ("eom_token_id", self.end_of_message),
            ("unknown_token_id", self.unknown),
        ] {
            if let Some(id) = id.filter(|id| *id as usize >= count) {
                return Err(bad(key, id.to_string(), format!("an id below {count}")));
            }
        }
        Ok(())
    }
}

/// [`TextError::Field`] for `tokenizer.ggml.<key>`.
pub(super) fn bad(key: &str, what: impl Into<String>, expected: impl Into<String>) -> TextError {
    field_error(METADATA, format!("tokenizer.ggml.{key}"), what, expected)
}

impl fmt::Debug for GgufVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufVocabulary")
            .field("model", &self.model)
            .field("pre", &self.pre)
            .field("tokens", &self.tokens.len())
            .field("merges", &self.merges.len())
            .field("begin", &self.begin)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
