//! Errors of grammars.

use std::time::Duration;

use crate::GrammarBound;

/// The error of a grammar that could not be compiled, or that a sequence could not follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The source is not a grammar, or no output can follow it.
    #[error("{kind} does not compile: {what}")]
    Compile {
        /// Expected kind of source: `JSON schema`, `regular expression`, ...
        kind: &'static str,
        /// Description of the problem.
        what: String,
    },
    /// The source, or the work to compile it, exceeds a bound.
    #[error("{kind} is too large: {what}")]
    TooLarge {
        /// Expected kind of source.
        kind: &'static str,
        /// The bound that it exceeds.
        what: String,
    },
    /// The source exceeds a bound on the cost of compiling it. It was not compiled.
    #[error("{kind} is too costly: {bound}")]
    TooExpensive {
        /// Expected kind of source.
        kind: &'static str,
        /// The bound.
        bound: GrammarBound,
    },
    /// The schema of a tool's parameters cannot be a grammar.
    #[error("the parameters of tool `{name}` cannot be a grammar: {error}")]
    Tool {
        /// Name of the tool.
        name: String,
        /// The reason.
        error: Box<GrammarError>,
    },
    /// Compiling it took longer than `grammar.compile_time_max`.
    #[error("{kind} took longer than {limit:?} to compile")]
    TooSlow {
        /// Expected kind of source.
        kind: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The caller that needed the grammar has cancelled.
    #[error("the grammar is no longer needed")]
    Unwanted,
    /// The lexer's states of this output exceed their byte limit.
    #[error(
        "the grammar's states take {found} bytes; expected at most {limit}, which is {setting}"
    )]
    Memory {
        /// Name of the setting.
        setting: &'static str,
        /// Bytes that the setting leaves to this output.
        limit: usize,
        /// Bytes that the states take.
        found: usize,
    },
    /// The engine has no tokenizer, so the text of tokens is unknown.
    #[error(
        "output cannot follow a grammar without a tokenizer; expected an engine with a text codec"
    )]
    NoTokenizer,
    /// The vocabulary cannot be stored in a trie.
    #[error("vocabulary: {what}; expected {expected}")]
    Vocabulary {
        /// The value found.
        what: String,
        /// The values allowed.
        expected: String,
    },
    /// The sequence cannot continue: a mask exceeded its bound, or no token spells the text
    /// that the grammar requires next.
    #[error("output cannot continue by its grammar: {what}")]
    Failed {
        /// Description of the problem.
        what: String,
    },
    /// The grammar allows only tokens that the request forbids by its biases.
    #[error(
        "the grammar allows only tokens that the request forbids; expected fewer biases of minus infinity"
    )]
    NothingLeft,
    /// The grammar allows no more tokens, and the model has no end token to sample.
    #[error("the grammar is complete and allows no more tokens")]
    Finished,
    /// The operating system could not start a thread for the masks.
    #[error("no thread for the grammar's masks: {why}")]
    NoThread {
        /// Error of the operating system.
        why: String,
    },
    /// The parser panicked, which is a defect of the parser.
    #[error("the grammar parser panicked")]
    Panicked,
    /// The thread that computes the masks has ended.
    #[error("the thread that computes the grammar's masks ended")]
    PoolEnded,
}
