//! Text, on an engine that was compiled without feature `text`.

use std::sync::Arc;

use motet_protocol::TokenId;
use motet_protocol::TokenSpelling;

/// A conversation: none exists without feature `text`.
#[derive(Clone, Debug, PartialEq)]
pub enum Chat {}

/// A tokenizer and chat template: none exist without feature `text`.
#[derive(Clone, Debug)]
pub(crate) enum TextCodec {}

/// A tokenizer: none exists without feature `text`.
#[derive(Debug)]
pub(crate) enum Tokenizer {}

/// An error of text: none exists without feature `text`.
#[derive(Debug, thiserror::Error)]
pub enum TextError {}

/// The text side of a sequence: none exists without feature `text`.
#[derive(Debug)]
pub(crate) enum TextOutput {}

/// The text that a token released: always empty without feature `text`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReleasedText {
    /// Text that the reader may see.
    pub(crate) text: String,
    /// Bytes of text that the token completed.
    pub(crate) completed_bytes: usize,
    /// Whether a stop string has appeared.
    pub(crate) stopped: bool,
    /// Whether text of the tokens so far is held back.
    pub(crate) has_held_text: bool,
}

/// The bounds on stop strings, as with feature `text`. An engine without a tokenizer rejects all.
#[derive(Debug)]
pub(crate) enum StopStrings {}

impl TextCodec {
    /// Is never called.
    pub(crate) fn end_tokens(&self) -> &[TokenId] {
        match *self {}
    }

    /// Is never called.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        match *self {}
    }

    /// Is never called.
    pub(crate) fn token_spelling(&self) -> Arc<dyn TokenSpelling> {
        match *self {}
    }
}

impl Tokenizer {
    /// Is never called.
    pub(crate) fn vocab_size(&self) -> usize {
        match *self {}
    }

    /// Is never called.
    pub(crate) fn missing_tokens(&self) -> &[TokenId] {
        match *self {}
    }
}

impl StopStrings {
    /// Most stop strings of a request.
    pub(crate) const COUNT_MAX: usize = 16;
    /// Most bytes of a stop string.
    pub(crate) const BYTES_MAX: usize = 1024;
}

impl TextOutput {
    /// Is never called.
    pub(crate) fn new(
        codec: &TextCodec,
        _stop_strings: &[String],
        _with_special_tokens: bool,
    ) -> Result<Self, TextError> {
        match *codec {}
    }

    /// Is never called.
    pub(crate) fn push(&mut self, _token: TokenId) -> Result<ReleasedText, TextError> {
        match *self {}
    }

    /// Is never called.
    pub(crate) fn finish(&mut self) -> String {
        match *self {}
    }
}
