//! Reads a model folder in the layout of `transformers`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::AddedToken;

use super::TextError;
use super::error::field_error;
use super::parts::Parts;
use super::pieces::{PieceRules, PieceSource, Pieces};
use motet_core::TokenId;

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

/// Token ids at and above this are rejected: the table of pieces has an entry for every id up to
/// the largest. The largest vocabularies have 2^18.
const VOCAB_SIZE_MAX: u32 = 1 << 22;

/// `tokenizer_config.json`; empty if the folder has none.
pub(super) struct TokenizerConfig {
    pub(super) path: PathBuf,
    pub(super) value: Value,
}

impl TokenizerConfig {
    pub(super) fn read(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer_config.json");
        let value = read_json(&path)?.unwrap_or(Value::Null);
        Ok(Self { path, value })
    }

    /// The special tokens that the file names, by name.
    pub(super) fn special_tokens(&self) -> Vec<(&'static str, &str)> {
        let texts = SPECIAL_TOKENS.iter().filter_map(|&name| {
            let token = &self.value[name];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some((name, text))
        });
        texts.collect()
    }
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
    let bytes = read_optional(&path)?.ok_or_else(|| TextError::Missing {
        path: path.clone(),
        expected: "a tokenizer of the `tokenizers` library",
    })?;
    let damaged = |error: tokenizers::Error| TextError::Damaged {
        path: path.clone(),
        what: error.to_string(),
        expected: "a tokenizer of the `tokenizers` library",
    };
    let mut encoder = parsed(&bytes).map_err(damaged)?;
    encoder.with_truncation(None).map_err(damaged)?;
    encoder.with_padding(None);

    let config = TokenizerConfig::read(folder)?;
    let added = encoder.get_added_tokens_decoder();
    for (name, text) in config.special_tokens() {
        let Some(id) = encoder.token_to_id(text) else {
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
    let id = |name| {
        let named = config
            .special_tokens()
            .into_iter()
            .find(|(key, _)| *key == name);
        named.and_then(|(_, text)| encoder.token_to_id(text))
    };
    let (begin, end) = (id("bos_token"), id("eos_token"));
    let pieces = pieces(&path, &encoder)?;
    let ends = end_tokens(folder, end, pieces.len())?;
    Ok(Parts {
        pieces,
        encoder,
        begin,
        ends,
        add_begin: false,
        add_end: false,
    })
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

/// The `eos_token`, then those that `config.json` and `generation_config.json` add: no file names
/// all of them. Gemma's `eos_token` ends a text and its `generation_config.json` adds the end of a
/// turn; other models do it the other way round.
fn end_tokens(
    folder: &Path,
    end: Option<TokenId>,
    vocab_size: usize,
) -> Result<Vec<TokenId>, TextError> {
    let mut ends: Vec<TokenId> = end.into_iter().collect();
    for (file, within) in [
        ("config.json", None),
        // Configurations of models that also see pictures.
        ("config.json", Some("text_config")),
        ("generation_config.json", None),
    ] {
        let path = folder.join(file);
        let config = read_json(&path)?.unwrap_or(Value::Null);
        let config = within.map_or(&config, |member| &config[member]);
        for id in listed_ends(&path, within, &config["eos_token_id"], vocab_size)? {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
    }
    Ok(ends)
}

/// The ids of an `eos_token_id`: none, one or a list.
fn listed_ends(
    path: &Path,
    within: Option<&str>,
    value: &Value,
    vocab_size: usize,
) -> Result<Vec<TokenId>, TextError> {
    let listed = match value {
        Value::Null => vec![],
        Value::Array(ids) => ids.iter().collect(),
        id => vec![id],
    };
    let ids = listed.into_iter().map(|value| {
        let id = value.as_u64().filter(|id| *id < vocab_size as u64);
        id.and_then(|id| TokenId::try_from(id).ok()).ok_or_else(|| {
            let file = path.display().to_string();
            let field = within.map_or_else(
                || "eos_token_id".to_owned(),
                |member| format!("{member}.eos_token_id"),
            );
            let expected = format!("token ids below {vocab_size}");
            field_error(file, field, value.to_string(), expected)
        })
    });
    ids.collect()
}

fn read_json(path: &Path) -> Result<Option<Value>, TextError> {
    let Some(bytes) = read_optional(path)? else {
        return Ok(None);
    };
    let value = serde_json::from_slice(&bytes).map_err(|error| TextError::Damaged {
        path: path.to_owned(),
        what: error.to_string(),
        expected: "JSON",
    })?;
    Ok(Some(value))
}
