//! Builds a tokenizer from a GGUF file's metadata.

mod sentence_piece;
mod vocabulary;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Sequence};
use tokenizers::{AddedToken, Tokenizer};

use super::error::TextError;
use super::parts::Parts;
use super::pieces::{PieceRules, PieceSource, Pieces};
use super::pre_tokenizer::PreTokenizer;
use motet_protocol::TokenId;
pub use vocabulary::GgufVocabulary;
pub(crate) use vocabulary::METADATA;
use vocabulary::{END_NAMES, END_NAMES_OF_CONTROL, TokenType, bad};

pub(super) fn build_tokenizer(vocabulary: &GgufVocabulary) -> Result<Parts, TextError> {
    vocabulary.check()?;
    let (mut encoder, rules, add_begin) = match vocabulary.model.as_str() {
        "gpt2" => byte_level(vocabulary)?,
        "llama" => sentence_piece(vocabulary)?,
        other => return Err(bad("model", format!("`{other}`"), "gpt2 or llama")),
    };
    let added = added_tokens(vocabulary);
    encoder
        .add_tokens(added)
        .map_err(|error| bad("tokens", error.to_string(), "tokens that can be told apart"))?;
    let tokens = vocabulary.tokens.iter().enumerate().map(|(index, text)| {
        let kind = vocabulary.token_type(index);
        let special = matches!(kind, TokenType::Control | TokenType::Unknown);
        // Converters write such tokens where the model has rows and the tokenizer no token.
        let is_padding = kind == TokenType::Unused && *text == format!("[PAD{index}]");
        (!is_padding).then_some(PieceSource {
            text,
            added: special || kind == TokenType::UserDefined,
            special,
        })
    });
    Ok(Parts {
        pieces: Pieces::new(&rules, tokens),
        encoder,
        begin: vocabulary.begin,
        ends: end_tokens(vocabulary),
        add_begin: vocabulary.add_begin.unwrap_or(add_begin),
        add_end: vocabulary.add_end.unwrap_or(false),
    })
}

/// The end tokens that the fields name, then those that are known by their names.
fn end_tokens(vocabulary: &GgufVocabulary) -> Vec<TokenId> {
    let fields = [
        vocabulary.end,
        vocabulary.end_of_turn,
        vocabulary.end_of_message,
    ];
    let tokens = vocabulary.tokens.iter().map(String::as_str);
    let known = tokens.enumerate().filter(|(index, text)| {
        let is_known = END_NAMES.contains(text) || END_NAMES_OF_CONTROL.contains(text);
        is_known && vocabulary.token_type(*index) == TokenType::Control
    });
    let mut known: Vec<(TokenId, &str)> = known
        .map(|(index, text)| (index as TokenId, text))
        .collect();
    let has = |name| known.iter().any(|(_, text)| *text == name);
    if has("<|return|>") && has("<|call|>") {
        // In the harmony format it ends a message, and another one may follow.
        known.retain(|(_, text)| *text != "<|end|>");
    }
    let mut ends = Vec::new();
    for id in fields
        .into_iter()
        .flatten()
        .chain(known.into_iter().map(|(id, _)| id))
    {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    ends
}

/// Tokens that are recognised in a text before any other processing.
///
/// Gemma's runs of spaces are the exception: files spell them with spaces, but `sentencepiece`
/// finds them after it has written `▁` for each space, so a `▁` in the text belongs to a run. A
/// normalizer that adds a space before the text would add one to the run as well.
fn added_tokens(vocabulary: &GgufVocabulary) -> Vec<AddedToken> {
    let runs_are_marked = vocabulary.model == "llama" && !vocabulary.adds_space_prefix();
    let tokens = vocabulary.tokens.iter().enumerate();
    let added = tokens.filter_map(|(index, text)| {
        let special = match vocabulary.token_type(index) {
            TokenType::Control | TokenType::Unknown => true,
            TokenType::UserDefined => false,
            TokenType::Normal | TokenType::Unused | TokenType::Byte => return None,
        };
        let is_run = !special && text.bytes().all(|byte| byte == b' ');
        let token = AddedToken::from(text.as_str(), special);
        let token = token.rstrip(special && takes_spaces_behind(vocabulary, text));
        Some(token.normalized(is_run && runs_are_marked))
    });
    added.collect()
}

/// Whether white space behind this special token belongs to it: Phi-3's do, all but three. Files
/// have no field for it.
fn takes_spaces_behind(vocabulary: &GgufVocabulary, text: &str) -> bool {
    vocabulary.architecture.as_deref() == Some("phi3")
        && vocabulary.model == "llama"
        && !["<unk>", "<s>", "<|endoftext|>"].contains(&text)
}

/// Byte-level BPE, as GPT-2 introduced it (Radford et al. 2019).
fn byte_level(vocabulary: &GgufVocabulary) -> Result<(Tokenizer, PieceRules, bool), TextError> {
    let name = vocabulary.pre.as_deref().unwrap_or("default");
    let pre_tokenizer = PreTokenizer::named(name).ok_or_else(|| {
        let known = PreTokenizer::names();
        bad("pre", format!("`{name}`"), format!("one of {known}"))
    })?;
    let merges: Result<Merges, TextError> =
        vocabulary.merges.iter().map(|pair| merge(pair)).collect();
    let model = BPE::builder()
        .vocab_and_merges(vocab(vocabulary), merges?)
        .ignore_merges(pre_tokenizer.ignore_merges)
        .build()
        .map_err(|error| {
            bad(
                "merges",
                error.to_string(),
                "pairs of tokens that make a token",
            )
        })?;
    let mut encoder = Tokenizer::new(model);
    encoder.with_pre_tokenizer(Some(pre_tokenizer.build()));
    let rules = PieceRules {
        byte_level: true,
        ..PieceRules::default()
    };
    Ok((encoder, rules, pre_tokenizer.add_begin))
}

/// SentencePiece's BPE with byte fallback, as Llama 2 uses it (Kudo and
/// Richardson 2018).
fn sentence_piece(vocabulary: &GgufVocabulary) -> Result<(Tokenizer, PieceRules, bool), TextError> {
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab(vocabulary), sentence_piece::merges(vocabulary)?)
        .byte_fallback(true)
        .fuse_unk(true);
    if let Some(unknown) = vocabulary.token(vocabulary.unknown) {
        builder = builder.unk_token(unknown.to_owned());
    }
    let model = builder
        .build()
        .map_err(|error| bad("tokens", error.to_string(), "a SentencePiece vocabulary"))?;
    let mark = sentence_piece::SPACE_MARK;
    let space_prefix = vocabulary.adds_space_prefix();
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if space_prefix {
        steps.push(Prepend::new(mark.to_owned()).into());
    }
    steps.push(
        Replace::new(" ", mark)
            .expect("a space is a valid pattern")
            .into(),
    );
    let mut encoder = Tokenizer::new(model);
    encoder
        .with_normalizer(Some(Sequence::new(steps)))
        .expect("there are no added tokens yet that could fail to normalise");
    let rules = PieceRules {
        byte_fallback: true,
        replaced: vec![(mark.to_owned(), " ".to_owned())],
        leading_spaces: usize::from(space_prefix),
        ..PieceRules::default()
    };
    Ok((encoder, rules, true))
}

fn vocab(vocabulary: &GgufVocabulary) -> Vocab {
    vocabulary.tokens.iter().cloned().zip(0..).collect()
}

/// Splits at the first space after the first character.
fn merge(pair: &str) -> Result<(String, String), TextError> {
    let first = pair.chars().next().map_or(0, char::len_utf8);
    let Some(space) = pair[first..].find(' ') else {
        let what = format!("`{pair}` has no space");
        return Err(bad("merges", what, "two tokens separated by a space"));
    };
    let (left, right) = pair.split_at(first + space);
    Ok((left.to_owned(), right[1..].to_owned()))
}
