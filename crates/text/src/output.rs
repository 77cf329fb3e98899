//! One sequence's output, from tokens to the text that its reader may see.

use super::codec::TextCodec;
use super::detokenizer::{Detokenizer, SpecialTokens};
use super::error::TextError;
use super::stop::{StopMatcher, StopStrings};
use motet_protocol::TokenId;

/// The text side of one sequence: detokenises, and ends at a stop string.
#[derive(Debug)]
pub struct TextOutput {
    detokenizer: Detokenizer,
    stops: Option<StopMatcher>,
}

/// The text that a token released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleasedText {
    /// Text that the reader may see; often empty.
    pub text: String,
    /// Bytes of text that the token completed, whether the reader may see them or not.
    pub completed_bytes: usize,
    /// Whether a stop string has appeared: then this is the last text.
    pub stopped: bool,
    /// Whether text of the tokens so far is held back: it ends within a character, or may begin a
    /// stop string.
    pub has_held_text: bool,
}

impl TextOutput {
    /// The output of a sequence that ends before any of `stop_strings`. With
    /// `with_special_tokens`, its text spells special tokens out.
    ///
    /// # Errors
    ///
    /// [`TextError::StopStrings`] when they are too many, too long or empty.
    pub fn new(
        codec: &TextCodec,
        stop_strings: &[String],
        with_special_tokens: bool,
    ) -> Result<Self, TextError> {
        let stops = match stop_strings {
            [] => None,
            some => Some(StopStrings::new(some)?.matcher()),
        };
        let special = if with_special_tokens {
            SpecialTokens::Keep
        } else {
            SpecialTokens::Skip
        };
        Ok(Self {
            detokenizer: Detokenizer::new(codec.tokenizer(), special),
            stops,
        })
    }

    /// Adds the next token.
    ///
    /// # Errors
    ///
    /// [`TextError::UnknownToken`].
    pub fn push(&mut self, token: TokenId) -> Result<ReleasedText, TextError> {
        let text = self.detokenizer.push(token)?;
        let completed_bytes = text.len();
        let mut released = match &mut self.stops {
            Some(stops) => {
                let released = stops.push(text);
                ReleasedText {
                    text: released.text.to_owned(),
                    stopped: released.stopped_by.is_some(),
                    completed_bytes,
                    has_held_text: !stops.held().is_empty(),
                }
            }
            None => ReleasedText {
                text: text.to_owned(),
                completed_bytes,
                ..ReleasedText::default()
            },
        };
        released.has_held_text |= self.detokenizer.is_torn();
        Ok(released)
    }

    /// Returns the text that was held back, since no more tokens come.
    pub fn finish(&mut self) -> String {
        let torn = self.detokenizer.finish();
        match &mut self.stops {
            Some(stops) => {
                let mut rest = stops.push(torn).text.to_owned();
                rest.push_str(stops.finish());
                rest
            }
            None => torn.to_owned(),
        }
    }
}
