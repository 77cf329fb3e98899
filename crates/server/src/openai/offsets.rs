//! Offsets of tokens in a text, in characters.
//!
//! A character may take several tokens. Each of them has the offset of that character, and the
//! token behind it the next.

use motet::TokenId;
use motet::text::TextCodec;
use motet_text::{Detokenizer, SpecialTokens};

/// Counts the characters before each token of an output.
#[derive(Debug)]
pub(crate) struct TextOffsets {
    detokenizer: Detokenizer,
    characters: usize,
}

impl TextOffsets {
    /// Offsets in an output's text, in which special tokens leave no trace, behind so many
    /// characters of other text.
    pub(crate) fn of_output(text: &TextCodec, after: usize) -> Self {
        Self {
            detokenizer: Detokenizer::new(text.tokenizer(), SpecialTokens::Skip),
            characters: after,
        }
    }

    /// The offset of the next token.
    pub(crate) fn next(&mut self, token: TokenId) -> usize {
        let offset = self.characters;
        let completed = self.detokenizer.push(token);
        self.characters += completed.map_or(0, |text| text.chars().count());
        offset
    }
}

/// The offsets of a prompt's tokens in its text. Tokens that a tokenizer put before the text are at
/// its beginning.
pub(crate) fn of_prompt(text: &TextCodec, tokens: &[TokenId], prompt: &str) -> Vec<usize> {
    let detokenizer = Detokenizer::new(text.tokenizer(), SpecialTokens::Keep);
    let mut offsets = TextOffsets {
        detokenizer,
        characters: 0,
    };
    let spelled: Vec<usize> = tokens.iter().map(|token| offsets.next(*token)).collect();
    let rest = offsets.detokenizer.finish().chars().count();
    let added = (offsets.characters + rest).saturating_sub(prompt.chars().count());
    let offsets = spelled.into_iter();
    offsets.map(|offset| offset.saturating_sub(added)).collect()
}
