//! Converts between text and a model's tokens.
//!
//! ```text
//!  messages ─ ChatTemplate ─ text ─ Tokenizer ─ tokens ─▶ model
//!  reader ◀─ StopMatcher ◀─ text ◀─ Detokenizer ◀─ tokens ◀─┘
//! ```
//!
//! The upper row runs once per request. [`TextCodec`] is both of its parts, read from a model
//! folder or from GGUF metadata. The lower row runs for every token of every sequence, each with
//! a [`Detokenizer`] and a [`StopMatcher`] of its own. It consists of table look-ups, keeps at
//! most a torn character and the beginning of a stop string, and does not allocate once its
//! buffers have grown to a few dozen bytes.
//!
//! | part | does | costs |
//! |---|---|---|
//! | [`Tokenizer::encode`] | text to tokens, by the `tokenizers` crate | 3 µs per token |
//! | [`ChatTemplate::render`] | messages to text, by a Jinja engine | 1 µs per message |
//! | [`Detokenizer::push`] | a token to the text it completes | 12 ns, 18 ns where characters tear |
//! | [`StopMatcher::push`] | text to text that is certainly no stop string | 5 to 15 ns per token; 220 ns with sixteen stop strings that begin with common letters |
//!
//! (Release build, one core of a shared machine, SmolLM2's vocabulary, source code
//! and ChatML as text.)
//!
//! ```
//! use motet_text::StopStrings;
//!
//! let mut matcher = StopStrings::new(["\nUser:"])?.matcher();
//! assert_eq!(matcher.push("Hello.\n").text, "Hello.");
//! assert_eq!(matcher.push("Us").text, "");
//! let end = matcher.push("er: and");
//! assert_eq!((end.text, end.stopped_by), ("", Some(0)));
//! # Ok::<(), motet_text::TextError>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))] // see `motet_protocol::time`

mod answer;
mod byte_level;
mod chat_prompt;
mod codec;
mod detokenizer;
mod error;
mod folder;
mod gguf;
#[cfg(feature = "grammar")]
pub mod grammar;
mod output;
mod parts;
mod pieces;
mod pre_tokenizer;
mod restore_points;
mod schema;
mod special;
mod stop;
mod template;
mod token_bytes_bound;
mod tokenizer;
mod turn_end;
mod utf8;

pub use answer::{
    AnswerFormat, AnswerParser, AnswerPart, ReasoningMarks, ReasoningStart, Tool, ToolChoice,
    ToolError, ToolPart, Tools,
};
pub use chat_prompt::ChatPrompt;
pub use codec::PromptLimits;
pub use codec::TextCodec;
pub use detokenizer::{Detokenizer, SpecialTokens};
pub use error::TextError;
pub use gguf::GgufVocabulary;
pub use output::{ReleasedText, TextOutput};
pub use stop::{Released, StopMatcher, StopStrings};
pub use template::{Chat, ChatTemplate, Message};
pub use tokenizer::Tokenizer;
pub use utf8::Utf8Stream;
