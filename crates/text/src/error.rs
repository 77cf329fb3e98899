//! Everything that can go wrong between text and tokens.

use std::path::PathBuf;

use motet_core::TokenId;
use motet_core::protocol::Withheld;

/// Why text could not be turned into tokens, or tokens into text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file that the tokenizer needs is not there.
    #[error("{path} does not exist: expected {expected}", path = path.display())]
    Missing {
        /// What was looked for.
        path: PathBuf,
        /// What ought to be there.
        expected: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {path}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{path} is damaged: {what}; expected {expected}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What its parser said.
        what: String,
        /// What a whole file holds.
        expected: &'static str,
    },
    /// A field is missing, makes no sense, or asks for what is not supported.
    #[error("{file}: field `{field}`: {what}; expected {expected}")]
    Field {
        /// The file, or `GGUF metadata`.
        file: String,
        /// The field, as the file spells it.
        field: String,
        /// What was found.
        what: String,
        /// What was expected.
        expected: String,
    },
    /// The tokenizer refused a text.
    #[error(
        "cannot tokenise {bytes} bytes of text: {what}; expected text that the vocabulary can spell"
    )]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer said, which may quote the text.
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
        /// What the template engine said, with the line.
        what: String,
    },
    /// The chat template refused the messages, or ran out of its bounds.
    #[error("the chat template failed: {what}")]
    Template {
        /// What the template or its engine said, which may quote the messages.
        what: Withheld,
    },
    /// The chat template writes more text than there is room for.
    #[error("the chat template writes more than {bytes_max} bytes; expected at most as many")]
    TooLong {
        /// The most that it may write.
        bytes_max: usize,
    },
    /// A text has more tokens than there is room for.
    #[error("the text has more than {tokens_max} tokens; expected at most as many")]
    TooManyTokens {
        /// The most that it may have.
        tokens_max: usize,
    },
    /// What turns text into tokens, or tokens into text, panicked.
    #[error("the {what} panicked on {bytes} bytes; that is a defect of it")]
    Panicked {
        /// What did: the tokenizer, the chat template, the detokenizer.
        what: &'static str,
        /// Length of what it was given.
        bytes: usize,
    },
    /// A chat was to be encoded without a chat template.
    #[error(
        "the model has no chat template; expected one in chat_template.jinja, tokenizer_config.json or the GGUF metadata"
    )]
    NoTemplate,
    /// The stop strings of a request make no sense.
    #[error("stop strings: {what}; expected {expected}")]
    StopStrings {
        /// What was found.
        what: String,
        /// What is allowed.
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
