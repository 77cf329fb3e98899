//! Bound on the text that one token can stand for.
//!
//! A text of more bytes than a context has tokens, each of the longest spelling, cannot fit. That
//! is known without tokenising it. It holds to the byte if each byte of a text is a part of some
//! token's spelling: byte-level BPE, and SentencePiece's BPE with all byte tokens. Other
//! tokenizers may shorten text (Unicode normal forms), drop some of it (accents, white space) or
//! fuse a run of unknown characters into one token. For those the limit is [`SHORTENING_FACTOR`]
//! times as high: a text that loses more than three quarters of its bytes is rejected although it
//! would fit.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{ModelWrapper, Tokenizer};

use super::pieces::Pieces;

/// Bytes of text per byte of tokens, for a tokenizer that may shorten or drop text. No Unicode
/// normal form shortens a text by more.
const SHORTENING_FACTOR: usize = 4;

/// The most bytes of text that one token of `encoder` stands for, for the limit.
pub(super) fn token_bytes_max(encoder: &Tokenizer, pieces: &Pieces) -> usize {
    let spelled = pieces.longest().max(longest_added(encoder));
    let is_byte_level = spells_bytes(encoder);
    let longest = if is_byte_level {
        spelled
    } else {
        // A text may contain the spelling itself: SentencePiece's mark is three bytes for a
        // space.
        let vocabulary = encoder.get_vocab(true);
        let longest = vocabulary.keys().map(String::len).max().unwrap_or(0);
        spelled.max(longest)
    };
    let longest = longest.max(1);
    if keeps_every_byte(encoder, is_byte_level) {
        longest
    } else {
        longest.saturating_mul(SHORTENING_FACTOR)
    }
}

fn longest_added(encoder: &Tokenizer) -> usize {
    let added = encoder.get_added_tokens_decoder();
    let lengths = added.values().map(|token| token.content.len());
    lengths.max().unwrap_or(0)
}

/// Whether every byte of a text is a part of some token's spelling.
fn keeps_every_byte(encoder: &Tokenizer, is_byte_level: bool) -> bool {
    let added = encoder.get_added_tokens_decoder();
    let swallows_space = added.values().any(|token| token.lstrip || token.rstrip);
    let ModelWrapper::BPE(model) = encoder.get_model() else {
        return false;
    };
    !swallows_space
        && knows_every_byte(encoder, model, is_byte_level)
        && encoder.get_normalizer().is_none_or(never_shortens)
        && encoder.get_pre_tokenizer().is_none_or(is_lossless)
}

/// Whether every character is known to the model.
fn knows_every_byte(encoder: &Tokenizer, model: &BPE, is_byte_level: bool) -> bool {
    if is_byte_level {
        let letters = ByteLevel::alphabet();
        letters
            .iter()
            .all(|letter| encoder.token_to_id(&letter.to_string()).is_some())
    } else {
        let byte = |byte: u8| encoder.token_to_id(&format!("<0x{byte:02X}>"));
        model.byte_fallback && (0..=u8::MAX).all(|number| byte(number).is_some())
    }
}

/// Whether characters of the vocabulary stand for bytes, as in GPT-2.
fn spells_bytes(encoder: &Tokenizer) -> bool {
    fn normalizes(step: &NormalizerWrapper) -> bool {
        match step {
            NormalizerWrapper::ByteLevel(_) => true,
            NormalizerWrapper::Sequence(steps) => steps.as_ref().iter().any(normalizes),
            _ => false,
        }
    }
    fn cuts(step: &PreTokenizerWrapper) -> bool {
        match step {
            PreTokenizerWrapper::ByteLevel(_) => true,
            PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().any(cuts),
            _ => false,
        }
    }
    encoder.get_normalizer().is_some_and(normalizes)
        || encoder.get_pre_tokenizer().is_some_and(cuts)
        || matches!(encoder.get_decoder(), Some(DecoderWrapper::ByteLevel(_)))
}

/// Whether a normalizer never makes a text shorter.
fn never_shortens(step: &NormalizerWrapper) -> bool {
    match step {
        NormalizerWrapper::Prepend(_) | NormalizerWrapper::ByteLevel(_) => true,
        NormalizerWrapper::Replace(replace) => replaces_one_character(replace),
        NormalizerWrapper::Sequence(steps) => steps.as_ref().iter().all(never_shortens),
        _ => false,
    }
}

/// Whether the replaced pattern is a literal no longer than its replacement. The pattern can only
/// be read from its serialized form.
fn replaces_one_character(replace: &tokenizers::normalizers::replace::Replace) -> bool {
    let written = serde_json::to_value(replace).unwrap_or_default();
    let literal = written["pattern"]["String"].as_str();
    literal.is_some_and(|literal| literal.len() <= replace.content.len())
}

/// Whether the pre-tokenizer drops no text.
fn is_lossless(step: &PreTokenizerWrapper) -> bool {
    let keeps = |behavior: SplitDelimiterBehavior| behavior != SplitDelimiterBehavior::Removed;
    match step {
        PreTokenizerWrapper::ByteLevel(_)
        | PreTokenizerWrapper::Metaspace(_)
        | PreTokenizerWrapper::Digits(_)
        | PreTokenizerWrapper::UnicodeScripts(_) => true,
        PreTokenizerWrapper::Split(split) => keeps(split.behavior),
        PreTokenizerWrapper::Punctuation(punctuation) => keeps(punctuation.behavior),
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().all(is_lossless),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::normalizers::{NFC, Prepend, Sequence, Strip};

    #[test]
    fn only_lossless_tokenizers_are_bounded_to_the_byte() {
        let replace = |from: &str, to: &str| {
            let replace = tokenizers::normalizers::replace::Replace::new(from, to);
            NormalizerWrapper::from(replace.expect("a literal"))
        };
        let prepend = || NormalizerWrapper::from(Prepend::new("▁".into()));
        assert!(never_shortens(&replace(" ", "▁")));
        assert!(!never_shortens(&replace("  ", " ")));
        assert!(!never_shortens(&NFC.into()));
        assert!(!never_shortens(&Strip::new(true, true).into()));
        assert!(never_shortens(&Sequence::new(vec![prepend()]).into()));
        assert!(!never_shortens(
            &Sequence::new(vec![prepend(), NFC.into()]).into()
        ));
    }
}
