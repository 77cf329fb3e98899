//! Everything that can go wrong with a grammar.

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
    Over,
    /// The thread that computed the mask is gone.
    #[error("the thread that computes the grammar's masks ended")]
    PoolEnded,
}
