//! Text and grammars, or stand-ins for them where features `text` and `grammar` are off.
//!
//! A stand-in has no values. An engine without text therefore has no tokenizer, no conversation
//! and no grammar by its types, and the rest of the crate needs no conditions. The code that
//! works with such values has its conditions where its modules are declared: `src/engine/mod.rs`.

#[cfg(feature = "grammar")]
pub(crate) use grammar::answer_grammar;
#[cfg(feature = "grammar")]
pub(crate) use motet_text::grammar::GrammarSource;
#[cfg(feature = "text")]
pub(crate) use motet_text::{Chat, ReleasedText, StopStrings, TextCodec, TextError, TextOutput};

#[cfg(feature = "grammar")]
mod grammar;
#[cfg(not(feature = "grammar"))]
mod no_grammar;
#[cfg(not(feature = "text"))]
mod no_text;

#[cfg(not(feature = "grammar"))]
pub(crate) use no_grammar::GrammarSource;
#[cfg(all(feature = "text", not(feature = "grammar")))]
pub(crate) use no_grammar::answer_grammar;
#[cfg(not(feature = "text"))]
pub(crate) use no_text::{Chat, ReleasedText, StopStrings, TextCodec, TextError, TextOutput};
