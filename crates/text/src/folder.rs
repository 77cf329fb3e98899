//! Reads a model folder in the layout of `transformers`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::AddedToken;

use super::error::TextError;
use super::error::field_error;
use super::parts::Parts;
use super::pieces::{PieceRules, PieceSource, Pieces};
use motet_protocol::TokenId;
use motet_weights::python_json;

/// The special tokens that `tokenizer_config.json` may name.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

const EXPECTED: &str = "a tokenizer of the `tokenizers` library";

/// Token ids at and above this are rejected: the table of pieces has an entry for every id up to
/// the largest. The largest vocabularies have 2^18.
const VOCAB_SIZE_MAX: u32 = 1 << 22;

/// `tokenizer_config.json`; empty if the folder has none.
pub(super) struct TokenizerConfig {
    pub(super) path: PathBuf,
    pub(super) value: Value,
    /// `special_tokens_map.json`, the file that names special tokens in older folders.
    older: Value,
}

impl TokenizerConfig {
    pub(super) fn read(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer_config.json");
        let value = read_json(&path)?.unwrap_or(Value::Null);
        let older = read_json(&folder.join("special_tokens_map.json"))?;
        let older = older.unwrap_or(Value::Null);
        Ok(Self { path, value, older })
    }

    /// The special tokens that the files name, by name.
    pub(super) fn special_tokens(&self) -> Vec<(&'static str, &str)> {
        let texts = SPECIAL_TOKENS.iter().filter_map(|&name| {
            let named = token_text(&self.value[name]);
            Some((name, named.or_else(|| token_text(&self.older[name]))?))
        });
        texts.collect()
    }
}

/// The text of a special token: the value itself, or its `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// `chat_template.json`, which models have whose processor also reads pictures, and its path. Null
/// if the folder has none.
pub(super) fn processor_template(folder: &Path) -> Result<(PathBuf, Value), TextError> {
    let path = folder.join("chat_template.json");
    let value = read_json(&path)?.unwrap_or(Value::Null);
    Ok((path, value))
}

/// The file's bytes, or `None` if there is no such file.
pub(super) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

pub(super) fn read_tokenizer(folder: &Path) -> Result<Parts, TextError> {
    let path = folder.join("tokenizer.json");
    let bytes = read_optional(&path)?.ok_or_else(|| missing(folder, &path))?;
    let damaged = |error: tokenizers::Error| TextError::Damaged {
        path: path.clone(),
        what: error.to_string(),
        expected: EXPECTED,
    };
    let mut encoder = parsed(&bytes).map_err(damaged)?;
    encoder.with_truncation(None).map_err(damaged)?;
    encoder.with_padding(None);

    let config = TokenizerConfig::read(folder)?;
    let added = encoder.get_added_tokens_decoder();
    for (name, text) in config.special_tokens() {
        let Some(id) = encoder.token_to_id(text) else {
            if config.value[name].is_null() {
                continue;
            }
            let what = format!("`{text}` is no token");
            let file = config.path.display().to_string();
            return Err(field_error(file, name, what, "a token of tokenizer.json"));
        };
        let token = added.get(&id).cloned();
        let token = token.unwrap_or_else(|| AddedToken::from(text, true));
        encoder
            .add_special_tokens([token.special(true)])
            .map_err(damaged)?;
    }
    let begin = config.special_tokens().into_iter();
    let mut begin = begin.filter(|(name, _)| *name == "bos_token");
    let begin = begin.find_map(|(_, text)| encoder.token_to_id(text));
    let ends = [&config.value, &config.older].map(|file| token_text(&file["eos_token"]));
    let ends = ends.into_iter().flatten();
    let mut ends: Vec<TokenId> = ends.filter_map(|text| encoder.token_to_id(text)).collect();
    ends.dedup();
    Ok(Parts {
        pieces: pieces(&path, &encoder)?,
        encoder,
        begin,
        ends,
        add_begin: false,
        add_end: false,
    })
}

/// The error of a folder without `tokenizer.json`. It names another tokenizer that is there.
fn missing(folder: &Path, path: &Path) -> TextError {
    let has = |name: &str| folder.join(name).exists();
    let expected = if has("tekken.json") {
        "a tokenizer of the `tokenizers` library; tekken.json, Mistral's own format, is not read: \
         take tokenizer.json from a conversion of the model to Transformers, or a GGUF file"
    } else if has("tokenizer.model") {
        "a tokenizer of the `tokenizers` library; tokenizer.model, SentencePiece's own format, is \
         not read: load and save the tokenizer with Transformers, or take a GGUF file"
    } else {
        EXPECTED
    };
    TextError::Missing {
        path: path.to_owned(),
        expected,
    }
}

/// Parses the file with `tokenizers`, which panics at times if it is no JSON or has another
/// structure. (It is parsed in full: skipped parts are not checked to be text.)
fn parsed(bytes: &[u8]) -> tokenizers::Result<tokenizers::Tokenizer> {
    serde_json::from_slice::<Value>(bytes)?;
    let parse = || tokenizers::Tokenizer::from_bytes(bytes);
    std::panic::catch_unwind(parse).unwrap_or_else(|_| Err("it makes no sense".into()))
}

/// The decoder's table over all tokens of `encoder`.
fn pieces(path: &Path, encoder: &tokenizers::Tokenizer) -> Result<Pieces, TextError> {
    let file = path.display().to_string();
    let decoder = serde_json::to_value(encoder.get_decoder()).unwrap_or(Value::Null);
    let rules = PieceRules::from_decoder(&file, &decoder)?;
    let added = encoder.get_added_tokens_decoder();
    let vocabulary = encoder.get_vocab(true);
    let largest = vocabulary.values().max().copied().unwrap_or(0);
    if vocabulary.is_empty() || largest >= VOCAB_SIZE_MAX {
        let what = format!("{} tokens with ids up to {largest}", vocabulary.len());
        let expected = format!("at least one token, and ids below {VOCAB_SIZE_MAX}");
        return Err(field_error(file, "model.vocab", what, expected));
    }
    let mut tokens = vec![None; largest as usize + 1];
    for (text, &id) in &vocabulary {
        let known = added.get(&id);
        tokens[id as usize] = Some(PieceSource {
            text,
            added: known.is_some(),
            special: known.is_some_and(|token| token.special),
        });
    }
    Ok(Pieces::new(&rules, tokens.into_iter()))
}

fn read_json(path: &Path) -> Result<Option<Value>, TextError> {
    let Some(bytes) = read_optional(path)? else {
        return Ok(None);
    };
    let value = python_json::from_slice(&bytes).map_err(|error| TextError::Damaged {
        path: path.to_owned(),
        what: error.to_string(),
        expected: "JSON",
    })?;
    Ok(Some(value))
}
