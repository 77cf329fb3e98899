//! Everything that can go wrong with a grammar.

use std::time::Duration;

use crate::protocol::GrammarBound;

/// Why a grammar could not be made, or a sequence could not follow it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The source is no grammar, or one that nothing can follow.
    #[error("{kind} does not compile: {what}")]
    Compile {
        /// What the source was meant to be: `JSON schema`, `regular expression`, ...
        kind: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The source, or what compiling it takes, is out of bounds.
    #[error("{kind} is too large: {what}")]
    TooLarge {
        /// What the source was meant to be.
        kind: &'static str,
        /// Which bound it passes.
        what: String,
    },
    /// The source passes a bound on what compiling it may cost. Nothing was spent on it.
    #[error("{kind} is too dear: {bound}")]
    TooDear {
        /// What the source was meant to be.
        kind: &'static str,
        /// Which bound.
        bound: GrammarBound,
    },
    /// Compiling it took longer than `grammar.compile_time_max`.
    #[error("{kind} took longer than {limit:?} to compile")]
    TooSlow {
        /// What the source was meant to be.
        kind: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The caller that wanted it compiled has left.
    #[error("the grammar is not wanted any more")]
    Unwanted,
    /// The lexer's states of this output take more bytes than they may.
    #[error(
        "the grammar's states take {found} bytes; expected at most {limit}, which is {setting}"
    )]
    Memory {
        /// Which setting.
        setting: &'static str,
        /// What it leaves this output.
        limit: usize,
        /// What they take.
        found: usize,
    },
    /// The engine has no tokenizer, so that nobody knows what a token spells.
    #[error(
        "output cannot follow a grammar without a tokenizer; expected an engine with a text codec"
    )]
    NoTokenizer,
    /// The vocabulary cannot be put into a trie.
    #[error("vocabulary: {what}; expected {expected}")]
    Vocabulary {
        /// What was found.
        what: String,
        /// What is allowed.
        expected: String,
    },
    /// The sequence cannot go on: a mask passed its bound, or no token spells what the
    /// grammar asks for next.
    #[error("output cannot go on by its grammar: {what}")]
    Failed {
        /// What went wrong.
        what: String,
    },
    /// The grammar allows nothing but what the request rules out by its biases.
    #[error(
        "the grammar allows only tokens that the request forbids; expected fewer biases of minus infinity"
    )]
    NothingLeft,
    /// The grammar allows nothing more, and the model has no end token to draw.
    #[error("the grammar is complete and allows no more tokens")]
    Finished,
    /// The system has no thread for its masks.
    #[error("no thread for the grammar's masks: {why}")]
    NoThread {
        /// What it said.
        why: String,
    },
    /// The parser panicked, which is a defect of it.
    #[error("the parser of grammars panicked")]
    Panicked,
    /// The thread that computed the mask is gone.
    #[error("the thread that computes the grammar's masks ended")]
    PoolEnded,
}
