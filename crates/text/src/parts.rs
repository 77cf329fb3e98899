//! The parts of a tokenizer, read from a folder or from GGUF metadata.

use super::pieces::Pieces;
use motet_protocol::TokenId;

/// The parts that a tokenizer is made of.
pub(super) struct Parts {
    pub(super) encoder: tokenizers::Tokenizer,
    pub(super) pieces: Pieces,
    pub(super) begin: Option<TokenId>,
    pub(super) ends: Vec<TokenId>,
    /// Whether the begin token goes before a text; false if `encoder` adds it.
    pub(super) add_begin: bool,
    /// Whether the first end token goes after a text; false if `encoder` adds it.
    pub(super) add_end: bool,
}
