//! Text to token ids and back.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::pieces::Pieces;
use super::{Detokenizer, GgufVocabulary, SpecialTokens, TextError, folder, gguf};
use crate::TokenId;

/// A model's tokenizer. Cheap to clone, and shared by all its clones.
///
/// Encoding is the work of the `tokenizers` crate; decoding is a table look-up
/// that gives what `tokenizers` would, except that malformed runs of byte tokens
/// become U+FFFD character by character and not as a whole, so that text once
/// given out stays as it was.
///
/// Each thread that encodes keeps a cache of up to ten thousand words: encode on
/// few threads.
#[derive(Clone)]
pub struct Tokenizer(Arc<Parts>);

/// What a tokenizer is made of, wherever it came from.
pub(super) struct Parts {
    pub(super) encoder: tokenizers::Tokenizer,
    pub(super) pieces: Pieces,
    pub(super) begin: Option<TokenId>,
    pub(super) ends: Vec<TokenId>,
    /// Whether the begin token goes before a text; false where `encoder` does it.
    pub(super) add_begin: bool,
    /// Whether the first end token goes after a text; false where `encoder` does it.
    pub(super) add_end: bool,
}

impl Tokenizer {
    /// Reads a folder as Hugging Face's `transformers` writes it: `tokenizer.json`
    /// and, where they exist, the special tokens of `tokenizer_config.json` and
    /// the end tokens of `generation_config.json`.
    ///
    /// # Errors
    ///
    /// [`TextError`] naming the file, and the field where there is one.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        folder::read_tokenizer(folder).map(|parts| Self(Arc::new(parts)))
    }

    /// Builds the tokenizer that a GGUF file describes: byte-level BPE (model
    /// `gpt2`) or SentencePiece BPE (model `llama`).
    ///
    /// # Errors
    ///
    /// [`TextError::Field`] naming the metadata key that is missing, makes no
    /// sense, or names a tokenizer that is not known exactly.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self, TextError> {
        gguf::build_tokenizer(vocabulary).map(|parts| Self(Arc::new(parts)))
    }

    /// The tokens of `text`. Special tokens spelled out in it are recognised.
    /// With `special`, begin and end tokens are added as the model wants them; a
    /// begin token is never doubled.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`] when the vocabulary cannot spell the text.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>, TextError> {
        let encoding = self.0.encoder.encode_fast(text, special);
        let encoding = encoding.map_err(|error| TextError::Encode {
            bytes: text.len(),
            what: error.to_string().into(),
        })?;
        let mut tokens = Vec::with_capacity(encoding.len() + 2);
        if special && self.0.add_begin {
            tokens.extend(self.0.begin);
        }
        tokens.extend_from_slice(encoding.get_ids());
        if let Some(begin) = self.0.begin
            && special
            && tokens.starts_with(&[begin, begin])
        {
            tokens.remove(0);
        }
        if special && self.0.add_end {
            tokens.extend(self.0.ends.first());
        }
        Ok(tokens)
    }

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

    /// Token ids are below this. A model's own vocabulary may be padded beyond.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.0.pieces.len()
    }

    /// The id of the token that the vocabulary spells `token`.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.0.encoder.token_to_id(token)
    }

    /// Whether the token steers the model and is no text: `<s>`, `<|im_end|>`.
    #[must_use]
    pub fn is_special(&self, token: TokenId) -> bool {
        self.0.pieces.is_special(token)
    }

    /// The token that begins a text, if the model has one.
    #[must_use]
    pub fn begin_token(&self) -> Option<TokenId> {
        self.0.begin
    }

    /// The tokens that end a text or a turn, the usual one first.
    #[must_use]
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.0.ends
    }

    /// The bytes that a token stands for. They may be part of a character.
    ///
    /// # Errors
    ///
    /// [`TextError::UnknownToken`].
    pub fn token_bytes(&self, token: TokenId) -> Result<&[u8], TextError> {
        self.0.pieces.get(token)
    }

    /// Spaces that are no text at the beginning of one.
    pub(super) fn leading_spaces(&self) -> usize {
        self.0.pieces.leading_spaces
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("begin_token", &self.begin_token())
            .field("end_tokens", &self.end_tokens())
            .finish_non_exhaustive()
    }
}
