//! Extracts added tokens from a text, as `tokenizers` does, except special ones of callers.

use std::ops::Range;

use tokenizers::normalizer::Range as Offsets;
use tokenizers::tokenizer::{Error, Model, PreTokenizer, Token};
use tokenizers::{NormalizedString, Normalizer, OffsetType, PreTokenizedString, Tokenizer};

use super::markup::{Added, Markup};
use super::table::SpellingTable;
use motet_protocol::TokenId;

/// The tokens of `text`, without begin and end tokens. A special token with a part that callers wrote
/// is text. These parts are ranges of bytes, in order and apart from one another.
/// A special token that only the normalizer spells is text too.
///
/// # Errors
///
/// The tokenizer's error.
pub(crate) fn encode(
    encoder: &Tokenizer,
    markup: &Markup,
    text: &str,
    callers: &[Range<usize>],
) -> Result<Vec<TokenId>, Error> {
    let mut words = PreTokenizedString::from(text);
    words.split(|_, piece| Ok(markup.extract(&markup.raw, piece, callers)))?;
    words.split(|_, mut piece| {
        if let Some(normalizer) = encoder.get_normalizer() {
            normalizer.normalize(&mut piece)?;
        }
        Ok(markup.extract(&markup.normalized, piece, callers))
    })?;
    if let Some(pre_tokenizer) = encoder.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut words)?;
    }
    words.tokenize(|word| encoder.get_model().tokenize(word.get()))?;
    let encoding = words.into_encoding(None, 0, OffsetType::None)?;
    Ok(encoding.get_ids().to_vec())
}

type Piece = (NormalizedString, Option<Vec<Token>>);

impl Markup {
    /// Cuts a piece of the text at the added tokens of `table`.
    fn extract(
        &self,
        table: &SpellingTable,
        piece: NormalizedString,
        callers: &[Range<usize>],
    ) -> Vec<Piece> {
        let text = piece.get();
        let mut pieces = Vec::new();
        let mut done = 0;
        let mut next = 0;
        for at in table.offsets(text) {
            if at < next {
                continue;
            }
            let counts =
                |number: usize, range| is_counted(&self.tokens[number], &piece, range, callers);
            // The template's own token may begin within one that does not count.
            let Some((number, bytes)) = table.at(text, at, counts) else {
                continue;
            };
            let added = &self.tokens[number];
            next = at + bytes;
            if added.token.single_word && !stands_alone(text, &(at..next)) {
                continue;
            }
            let (from, to) = added.range_with_spaces(text, at..next, done);
            if done < from {
                pieces.push((slice(&piece, done..from), None));
            }
            let spelled = slice(&piece, from..to);
            let bytes = spelled.get().len();
            let token = Token::new(added.id, spelled.get().to_owned(), (0, bytes));
            pieces.push((spelled, Some(vec![token])));
            done = to;
            next = next.max(to);
        }
        if done < text.len() || text.is_empty() {
            pieces.push((slice(&piece, done..text.len()), None));
        }
        pieces
    }
}

/// Whether the spelling at `range` of a piece counts: it is no special token, or all of it is the
/// template's own text.
fn is_counted(
    added: &Added,
    piece: &NormalizedString,
    range: Range<usize>,
    callers: &[Range<usize>],
) -> bool {
    if !added.is_special {
        return true;
    }
    let Some(original) = piece.convert_offsets(Offsets::Normalized(range)) else {
        return false;
    };
    let written = piece.get_range_original(Offsets::Original(original.clone()));
    let begin = piece.offsets_original().0;
    let (from, to) = (begin + original.start, begin + original.end);
    let next = callers.partition_point(|span| span.end <= from);
    let has_callers = callers.get(next).is_some_and(|span| span.start < to);
    !has_callers && written == Some(added.token.content.as_str())
}

impl Added {
    /// The token's range with the white space that it includes.
    fn range_with_spaces(&self, text: &str, range: Range<usize>, done: usize) -> (usize, usize) {
        let (mut from, mut to) = (range.start, range.end);
        if self.token.lstrip {
            from = text[..from].trim_end().len().max(done);
        }
        if self.token.rstrip {
            let rest = &text[to..];
            to += rest.len() - rest.trim_start().len();
        }
        (from, to)
    }
}

fn slice(piece: &NormalizedString, range: Range<usize>) -> NormalizedString {
    let sliced = piece.slice(Offsets::Normalized(range));
    sliced.expect("ranges lie on characters of the piece")
}

/// Whether no word continues before or after.
fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    !text[..range.start].ends_with(is_word) && !text[range.end..].starts_with(is_word)
}
