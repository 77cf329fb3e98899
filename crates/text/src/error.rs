//! Errors between text and tokens.

use std::path::PathBuf;

use motet_protocol::TokenId;
use motet_protocol::Withheld;

/// Why text could not be turned into tokens, or tokens into text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file that the tokenizer needs does not exist.
    #[error("{path} does not exist: expected {expected}", path = path.display())]
    Missing {
        /// The path that was looked for.
        path: PathBuf,
        /// The file that was expected.
        expected: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {path}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file does not have the format of its name.
    #[error("{path} is damaged: {what}; expected {expected}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The parser's message.
        what: String,
        /// The content that was expected.
        expected: &'static str,
    },
    /// A field is missing, invalid or not supported.
    #[error("{file}: field `{field}`: {what}; expected {expected}")]
    Field {
        /// The file, or `GGUF metadata`.
        file: String,
        /// The field, as the file spells it.
        field: String,
        /// The value found.
        what: String,
        /// The value expected.
        expected: String,
    },
    /// The tokenizer rejected a text.
    #[error(
        "cannot tokenise {bytes} bytes of text: {what}; expected text that the vocabulary can spell"
    )]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// The tokenizer's message, which may quote the text.
        what: Withheld,
    },
    /// A token id that the vocabulary does not have.
    #[error("a token is not in the vocabulary; expected an id below {vocab_size}")]
    UnknownToken {
        /// The id.
        token: TokenId,
        /// Ids are `0..vocab_size`.
        vocab_size: usize,
    },
    /// The chat template does not compile.
    #[error("{file}: the chat template does not compile: {what}; expected a Jinja template")]
    TemplateSyntax {
        /// Where the template came from.
        file: String,
        /// The template engine's message, with the line.
        what: String,
    },
    /// The chat template rejected the messages, or exceeded its bounds.
    #[error("the chat template failed: {what}")]
    Template {
        /// The message of the template or its engine, which may quote the messages.
        what: Withheld,
    },
    /// The chat template writes more text than is allowed.
    #[error("the chat template writes more than {bytes_max} bytes; expected at most as many")]
    TooLong {
        /// The most that it may write.
        bytes_max: usize,
    },
    /// A text has more tokens than are allowed.
    #[error("the text has more than {tokens_max} tokens; expected at most as many")]
    TooManyTokens {
        /// The most that it may have.
        tokens_max: usize,
    },
    /// The tokenizer, the chat template or the detokenizer panicked.
    #[error("the {what} panicked on {bytes} bytes; this is a bug in it")]
    Panicked {
        /// The part that panicked.
        what: &'static str,
        /// Length of its input.
        bytes: usize,
    },
    /// A chat was to be encoded without a chat template.
    #[error(
        "the model has no chat template; expected one in chat_template.jinja, tokenizer_config.json or the GGUF metadata"
    )]
    NoTemplate,
    /// The stop strings of a request are invalid.
    #[error("stop strings: {what}; expected {expected}")]
    StopStrings {
        /// The value found.
        what: String,
        /// The values allowed.
        expected: String,
    },
}

/// Shorthand for [`TextError::Field`].
pub(super) fn field_error(
    file: impl Into<String>,
    field: impl Into<String>,
    what: impl Into<String>,
    expected: impl Into<String>,
) -> TextError {
    TextError::Field {
        file: file.into(),
        field: field.into(),
        what: what.into(),
        expected: expected.into(),
    }
}
