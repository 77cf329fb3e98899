//! Structured output: output that follows a grammar in JSON, a JSON schema, a regular expression,
//! Lark, or the schemas of tools.
//!
//! [`llguidance`](https://github.com/guidance-ai/llguidance) does the work: an Earley parser over
//! lexemes that are derivatives of regular expressions, run along the trie of all token texts. It
//! yields the set of tokens that may come next.
//!
//! ```text
//!  at submit      Grammar::compile(source, vocabulary, pool) ── typed error
//!  a sequence     GrammarWalk ── accept(token) ─▶ pool ─▶ Matcher, next TokenMask
//!  the next sample  GrammarWalk::next_tokens ◀────────────────────┘
//! ```
//!
//! A [`GrammarVocabulary`] is made once per tokenizer, since its trie is costly, and a
//! [`Grammar`] once per request. Each sequence then has a [`GrammarWalk`] of its own, with its
//! own lexer: other sequences never decide whether it exceeds a bound. A mask may take more than
//! a millisecond. The threads of a [`MaskPool`] compute it while the device runs the sequence's
//! next step.
//!
//! Schemas are rewritten where llguidance reads them differently than validators do (`rewrite`). Rules that
//! no text follows are removed after compiling, and a grammar without any text is rejected (`productive`).
//! After 40 digits in a row, a number in JSON gets no further digit unless its schema requires one, and
//! after 20 characters of white space between two parts, no more of it (`runs`).
//!
//! Where a grammar forces text, the [`Matcher`] finds the tokens that spell it, and the walk
//! gives them at once ([`Next::Forced`]): they need no forward passes of their own.
//!
//! Where a step verifies a draft, the walk looks ahead along it, and returns to its position.
//!
//! [`GrammarLimits`] keep a grammar from using up a thread or the memory. A source is checked
//! before it is compiled (`cost`), a mask has fuel, and the states of each output's lexer have a
//! budget of bytes. Exceeding any of them is a [`GrammarError`] of one request.

mod answer_source;
mod compiled;
mod compiler;
mod cost;
mod error_text;
mod forced;
mod matcher;
mod memory;
mod pace;
mod pool;
mod productive;
mod request_grammar;
mod rewrite;
mod runs;
mod source;
#[cfg(test)]
mod tests;
mod vocabulary;
mod walk;

pub use answer_source::AnswerGrammar;
pub(crate) use answer_source::AnswerSchema;
pub use matcher::Matcher;
pub use motet_protocol::{
    Attached, ForcedTokens, GrammarBound, GrammarError, GrammarLimits, Next, TokenMask,
};
pub use pool::MaskPool;
pub use request_grammar::Grammar;
pub use source::GrammarSource;
pub use vocabulary::GrammarVocabulary;
pub use walk::GrammarWalk;
