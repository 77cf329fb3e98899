//! The merges of SentencePiece, which its files do not list.
//!
//! SentencePiece merges the pair whose token has the highest score; a list of merges in the order
//! of the scores does the same. `transformers` reads these vocabularies that way. If two pairs
//! make the same token, the one with the longer left half comes first; SentencePiece itself would
//! take the leftmost in the text.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use tokenizers::models::bpe::Merges;

use super::vocabulary::{GgufVocabulary, TokenType, bad};
use crate::error::TextError;

/// The character that SentencePiece writes for a space.
pub(super) const SPACE_MARK: &str = "▁";

/// Longest token that is split into pairs, in bytes; the work is quadratic in it. The longest in
/// use are runs of a hundred spaces.
const TOKEN_BYTES_MAX: usize = 4096;

/// One pair of tokens that makes a token.
struct Pair<'a> {
    score: f32,
    left: &'a str,
    right: &'a str,
}

/// All pairs of tokens that make a token, the highest score first.
pub(super) fn merges(vocabulary: &GgufVocabulary) -> Result<Merges, TextError> {
    if vocabulary.scores.is_empty() {
        return Err(bad("scores", "missing", "one score a token"));
    }
    let texts = vocabulary.tokens.iter().map(String::as_str);
    let mergeable = texts.enumerate().filter(|(index, _)| {
        let kind = vocabulary.token_type(*index);
        matches!(
            kind,
            TokenType::Normal | TokenType::UserDefined | TokenType::Unused
        )
    });
    let ids: FxHashMap<&str, usize> = mergeable.map(|(index, text)| (text, index)).collect();
    let mut tokens: Vec<(usize, &str)> = ids.iter().map(|(text, index)| (*index, *text)).collect();
    tokens.sort_unstable();

    let mut pairs = Vec::new();
    for (index, text) in tokens {
        if text.len() > TOKEN_BYTES_MAX {
            let what = format!("token {index} has {} bytes", text.len());
            return Err(bad("tokens", what, format!("at most {TOKEN_BYTES_MAX}")));
        }
        let score = vocabulary.scores[index];
        let first = pairs.len();
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if ids.contains_key(left) && ids.contains_key(right) {
                pairs.push(Pair { score, left, right });
            }
        }
        pairs[first..].sort_by_key(|pair| (ids[pair.left], ids[pair.right]));
    }
    pairs.sort_by(|a, b| {
        let length = |pair: &Pair<'_>| (pair.left.chars().count(), pair.right.chars().count());
        b.score
            .total_cmp(&a.score)
            .then_with(|| Reverse(length(a)).cmp(&Reverse(length(b))))
    });
    let merges = pairs
        .iter()
        .map(|pair| (pair.left.to_owned(), pair.right.to_owned()));
    Ok(merges.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_score_merges_first() {
        let tokens = ["<unk>", "a", "b", "c", "ab", "bc", "abc", "<s>", "▁a"];
        let vocabulary = GgufVocabulary {
            tokens: tokens.map(str::to_owned).to_vec(),
            scores: vec![0.0, -5.0, -6.0, -7.0, -2.0, -1.0, -3.0, 0.0, -0.5],
            token_types: vec![2, 1, 1, 1, 1, 1, 1, 3, 1],
            ..GgufVocabulary::default()
        };
        let found = merges(&vocabulary).expect("scores are there");
        let found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(found, [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]);
    }

    #[test]
    fn scores_and_bounds_are_checked() {
        let mut vocabulary = GgufVocabulary {
            tokens: vec!["a".repeat(5000)],
            ..GgufVocabulary::default()
        };
        let message =
            |vocabulary: &GgufVocabulary| merges(vocabulary).expect_err("bad").to_string();
        assert!(message(&vocabulary).contains("tokenizer.ggml.scores"));
        vocabulary.scores = vec![0.0];
        assert!(message(&vocabulary).contains("at most 4096"));
    }
}
