//! Tokens to text, one at a time.

use super::error::TextError;
use super::tokenizer::Tokenizer;
use super::utf8::Utf8Stream;
use motet_protocol::TokenId;

/// Treatment of special tokens in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are spelled out.
    Keep,
    /// They leave no trace.
    Skip,
}

/// Converts one sequence's tokens to text.
///
/// Every token returns the text that it completes, so that no piece ends inside a character. All
/// pieces joined are the text of all tokens. A token costs a table look-up and a check that its
/// bytes are UTF-8, about ten nanoseconds, and no allocation, however long the text has become.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    special: SpecialTokens,
    /// Leading spaces that are still to be dropped; only at the very beginning.
    leading_spaces: usize,
    characters: Utf8Stream,
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text. SentencePiece tokenizers put a space before its
    /// first word; it is removed.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, special: SpecialTokens) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            special,
            leading_spaces: tokenizer.leading_spaces(),
            characters: Utf8Stream::new(),
        }
    }

    /// A detokenizer within a text: the tokens continue a prompt, and a space before the first
    /// word is text like any other.
    #[must_use]
    pub fn continuing(tokenizer: &Tokenizer, special: SpecialTokens) -> Self {
        Self {
            leading_spaces: 0,
            ..Self::new(tokenizer, special)
        }
    }

    /// Adds the next token; returns the text that is now complete. It is empty if the token is
    /// skipped or ends inside a character.
    ///
    /// # Errors
    ///
    /// [`TextError::UnknownToken`]; the text so far is unharmed and the next
    /// token may follow.
    pub fn push(&mut self, token: TokenId) -> Result<&str, TextError> {
        let mut bytes = self.tokenizer.token_bytes(token)?;
        if self.special == SpecialTokens::Skip && self.tokenizer.is_special(token) {
            bytes = &[];
        }
        while self.leading_spaces > 0 && !bytes.is_empty() {
            let Some(rest) = bytes.strip_prefix(b" ") else {
                self.leading_spaces = 0;
                break;
            };
            self.leading_spaces -= 1;
            bytes = rest;
        }
        Ok(self.characters.push(bytes))
    }

    /// Whether the text so far ends within a character.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.characters.is_torn()
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.characters.finish()
    }
}

impl Tokenizer {
    /// The text of `tokens`, special ones spelled out.
    ///
    /// # Errors
    ///
    /// [`TextError::UnknownToken`].
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TextError> {
        let mut detokenizer = Detokenizer::new(self, SpecialTokens::Keep);
        let mut text = String::new();
        for &token in tokens {
            text.push_str(detokenizer.push(token)?);
        }
        text.push_str(detokenizer.finish());
        Ok(text)
    }
}
