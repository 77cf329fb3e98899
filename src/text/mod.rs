//! Between people's text and a model's tokens.
//!
//! Detokenising and stop matching run for every token of every sequence; they are
//! made of table look-ups and do not allocate once their buffers have grown.
//!
//! ```
//! use motet::text::StopStrings;
//!
//! let mut matcher = StopStrings::new(["\nUser:"])?.matcher();
//! assert_eq!(matcher.push("Hello.\n").text, "Hello.");
//! assert_eq!(matcher.push("Us").text, "");
//! let end = matcher.push("er: and");
//! assert_eq!((end.text, end.stopped_by), ("", Some(0)));
//! # Ok::<(), motet::text::TextError>(())
//! ```

mod byte_level;
mod detokenizer;
mod error;
mod folder;
mod gguf;
mod pieces;
mod pre_tokenizer;
mod sentence_piece;
mod stop;
mod tokenizer;
mod utf8;

pub use detokenizer::{Detokenizer, SpecialTokens};
pub use error::TextError;
pub use gguf::GgufVocabulary;
pub use stop::{Released, StopMatcher, StopStrings};
pub use tokenizer::Tokenizer;
pub use utf8::Utf8Stream;
