//! Output that follows a grammar: JSON, a JSON schema, a regular expression, Lark.
//!
//! The work is that of [`llguidance`](https://github.com/guidance-ai/llguidance): an
//! Earley parser over lexemes that are derivatives of regular expressions, run along
//! the trie of all token texts, which yields the set of tokens that may come next.
//!
//! ```text
//!  at submit      Grammar::compile(source, vocabulary, pool) ── typed error
//!  a sequence     GrammarWalk ── accept(token) ─▶ pool ─▶ Matcher, next TokenMask
//!  the next sample  GrammarWalk::next_tokens ◀────────────────────┘
//! ```
//!
//! A [`GrammarVocabulary`] is made once a tokenizer, since its trie is dear, and a
//! [`Grammar`] once a request. Each sequence then has a [`GrammarWalk`] of its own,
//! with its own lexer, so that what others did never decides whether it runs into a
//! bound. A mask may take more than a millisecond: the threads of a [`MaskPool`]
//! compute it while the device runs the sequence's next step.
//!
//! [`GrammarLimits`] keep a grammar from holding a thread or the memory: a source is
//! judged before it is compiled (`cost`), a mask has fuel, and the states of each
//! output's lexer have a budget of bytes. All end in a [`GrammarError`] of one request.

mod cost;
mod matcher;
mod memory;
mod pace;
mod pool;
mod source;
#[cfg(test)]
mod tests;
mod vocabulary;
mod walk;

pub use matcher::Matcher;
pub use motet_core::protocol::{
    Attached, GrammarBound, GrammarError, GrammarLimits, Next, TokenMask,
};
pub use pool::MaskPool;
pub use source::{Grammar, GrammarSource};
pub use vocabulary::GrammarVocabulary;
pub use walk::GrammarWalk;
