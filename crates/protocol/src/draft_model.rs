//! Orders to a draft model, and its replies.
//!
//! A draft model is a second, smaller model with the same tokens on the same device thread. It
//! writes what the first model may write next (Leviathan et al., 2023). Its state is a cache that
//! no result depends on: an order contains the whole text, and a reply may be empty.

use std::sync::Arc;

use crate::{Salt, SequenceId, TokenId, TokenSampling};

/// The limits of a draft model, which the scheduler keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftModelSpec {
    /// Longest text that it reads, in tokens.
    pub text_tokens_max: usize,
    /// Most tokens that it is asked to read of a text at once.
    pub read_tokens_max: usize,
}

/// An order to the draft model about one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftOrder {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its salt: texts of other salts are not compared with its own.
    pub salt: Salt,
    /// Prompt of the sequence.
    pub prompt: Arc<[TokenId]>,
    /// Its output so far.
    pub output: Vec<TokenId>,
    /// Sampling of the next token. The draft model draws with the same noise as the first one, and
    /// without penalties, biases and grammars.
    pub sampling: TokenSampling,
    /// Most tokens that it reads of the text. If more are unread, it drafts nothing yet.
    pub read_tokens_max: usize,
    /// Tokens to draft when the whole text is read; 0 only reads.
    pub draft_tokens: usize,
}

/// Texts that the draft model need not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftForget {
    /// The text of a sequence that has ended. The next turn of a chat may go on with it.
    Sequence(SequenceId),
    /// All texts of a salt.
    Salt(Salt),
    /// All texts.
    All,
}

/// The reply to a [`DraftOrder`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftReply {
    /// The tokens that it would write next; empty if it has not read the whole text.
    pub tokens: Vec<TokenId>,
    /// Number of the text's tokens that it has read.
    pub read_tokens: usize,
}
