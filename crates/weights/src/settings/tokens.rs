//! The tokens that begin and end texts.

use motet_protocol::ModelError;
use motet_protocol::TokenId;

use super::super::fields::Fields;
use super::super::gguf::GgufMetadata;
use super::super::huggingface::{Folder, JsonObject};

type Tokens = (Option<TokenId>, Vec<TokenId>);

const BEGIN: &str = "bos_token_id";
const END: &str = "eos_token_id";

/// End tokens are the union of those of `config.json`, also under `text_config`, and of
/// `generation_config.json`: each of the three lacks some in some models. The begin token is
/// the one of `generation_config.json`, or else of `config.json`.
pub(super) fn of_folder(folder: &Folder, vocab_size: usize) -> Result<Tokens, ModelError> {
    let (mut begin, mut ends) = (None, Vec::new());
    for object in folder.objects() {
        if let Some(token) = object.token(BEGIN)? {
            check(object, BEGIN, token, vocab_size)?;
            begin = Some(token);
        }
        for token in end_tokens(object)? {
            check(object, END, token, vocab_size)?;
            if !ends.contains(&token) {
                ends.push(token);
            }
        }
    }
    Ok((begin, ends))
}

/// End tokens are the end of a text, of a turn and of a message.
pub(super) fn of_gguf(metadata: &GgufMetadata, vocab_size: usize) -> Result<Tokens, ModelError> {
    let mut ends = Vec::new();
    for name in [
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
    ] {
        if let Some(token) = metadata.token(name)? {
            check(metadata, name, token, vocab_size)?;
            if !ends.contains(&token) {
                ends.push(token);
            }
        }
    }
    let name = "tokenizer.ggml.bos_token_id";
    let begin = metadata.token(name)?;
    if let Some(token) = begin {
        check(metadata, name, token, vocab_size)?;
    }
    Ok((begin, ends))
}

fn check(
    fields: &impl Fields,
    name: &str,
    token: TokenId,
    vocab_size: usize,
) -> Result<(), ModelError> {
    if (token as usize) < vocab_size {
        return Ok(());
    }
    Err(fields.wrong(
        name,
        format!("found {token}"),
        format!("a token id below {vocab_size}"),
    ))
}

/// One id or a list of ids.
fn end_tokens(json: &JsonObject) -> Result<Vec<TokenId>, ModelError> {
    let Some(value) = json.get(END) else {
        return Ok(Vec::new());
    };
    let values = match value.as_array() {
        Some(values) => values.as_slice(),
        None => std::slice::from_ref(value),
    };
    // Negative ids stand for no token.
    let ids = values
        .iter()
        .filter(|value| value.as_i64().is_none_or(|id| id >= 0));
    let tokens = ids.map(|value| value.as_u64().and_then(|id| TokenId::try_from(id).ok()));
    tokens
        .collect::<Option<_>>()
        .ok_or_else(|| json.unlike(END, value, "a token id or an array of them"))
}
