//! Text to token ids and back.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::error::TextError;
use super::gguf::GgufVocabulary;
use super::parts::Parts;
use super::special::{self, Markup};
use super::token_bytes_bound;
use super::{folder, gguf};
use motet_protocol::TokenId;
use motet_protocol::TokenSpelling;

/// Words that each thread caches. One takes 8 kB at most: 32 MB per thread for input of nothing
/// but long words.
const WORDS_CACHED_MAX: usize = 4096;

/// Bytes of the pieces in which the tokens of a long text are counted.
const PIECE_BYTES: usize = 32 << 10;

/// A model's tokenizer. Cheap to clone, and shared by all its clones.
///
/// The `tokenizers` crate encodes. Decoding is a table look-up with the result of `tokenizers`,
/// with one exception: malformed runs of byte tokens become U+FFFD character by character and not
/// as a whole, so that released text never changes.
///
/// Each encoding thread caches up to four thousand words, some MB of them: encode on few threads.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

/// A tokenizer's parts, and values computed from them.
struct Inner {
    parts: Parts,
    markup: Markup,
    /// Most bytes of text that one token stands for.
    token_bytes_max: usize,
}

impl Tokenizer {
    /// Reads a folder in the layout of Hugging Face's `transformers`: `tokenizer.json` and, if
    /// they exist, the special tokens of `tokenizer_config.json` and `special_tokens_map.json`.
    ///
    /// # Errors
    ///
    /// [`TextError`] naming the file, and the field where there is one.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        folder::read_tokenizer(folder).map(Self::new)
    }

    /// Builds the tokenizer that a GGUF file describes: byte-level BPE (model
    /// `gpt2`) or SentencePiece BPE (model `llama`).
    ///
    /// # Errors
    ///
    /// [`TextError::Field`] naming the metadata key that is missing, is invalid, or names a
    /// tokenizer that is not known exactly.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self, TextError> {
        gguf::build_tokenizer(vocabulary).map(Self::new)
    }

    /// The tokens of `text`. Special tokens spelled out in it are recognised.
    ///
    /// This takes about a second per megabyte of prose, whatever its words are, and some hundred
    /// bytes of memory per byte. Bound the length of untrusted text
    /// ([`token_bytes_max`](Self::token_bytes_max)), and encode a long one on a thread for
    /// blocking work. `Engine::tokenize` does both.
    ///
    /// With `special`, the begin and end tokens that the model expects are added; a begin token
    /// is never doubled.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`] when the vocabulary cannot spell the text.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>, TextError> {
        let encoding = self.0.parts.encoder.encode_fast(text, special);
        let encoding = encoding.map_err(|error| cannot_encode(text, &error))?;
        let mut tokens = Vec::with_capacity(encoding.len() + 2);
        if special && self.0.parts.add_begin {
            tokens.extend(self.0.parts.begin);
        }
        tokens.extend_from_slice(encoding.get_ids());
        if let Some(begin) = self.0.parts.begin
            && special
            && tokens.starts_with(&[begin, begin])
        {
            tokens.remove(0);
        }
        if special && self.0.parts.add_end {
            tokens.extend(self.0.parts.ends.first());
        }
        Ok(tokens)
    }

    /// Rejects a long text that has more than twice `tokens_max` tokens, at the cost of
    /// tokenising that many. Its pieces are tokenised one by one, cut anywhere. Each cut adds
    /// some tokens, but fewer than twice as many in total.
    ///
    /// # Errors
    ///
    /// [`TextError::TooManyTokens`], [`TextError::Encode`].
    pub fn check_count(&self, text: &str, tokens_max: usize) -> Result<(), TextError> {
        let rejected_above = tokens_max.saturating_mul(2);
        // A byte is at most one token, except for tokens that a tokenizer adds.
        if text.len() <= rejected_above.max(2 * PIECE_BYTES) {
            return Ok(());
        }
        let (mut rest, mut count) = (text, 0);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            let encoding = self.0.parts.encoder.encode_fast(piece, false);
            count += encoding
                .map_err(|error| cannot_encode(piece, &error))?
                .len();
            if count > rejected_above {
                return Err(TextError::TooManyTokens { tokens_max });
            }
            rest = after;
        }
        Ok(())
    }

    /// The tokens of a rendered conversation. Special tokens with a part that callers wrote are text.
    pub(super) fn encode_written(
        &self,
        text: &str,
        callers: &[Range<usize>],
    ) -> Result<Vec<TokenId>, TextError> {
        let (markup, encoder) = (&self.0.markup, &self.0.parts.encoder);
        if !markup.may_be_made_by_normalizer(encoder) && !markup.is_forged(text, callers) {
            return self.encode(text, false);
        }
        let tokens = special::encode(encoder, markup, text, callers);
        tokens.map_err(|error| cannot_encode(text, &error))
    }

    /// Token ids are below this. A model's own vocabulary may be padded beyond it.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.0.parts.pieces.len()
    }

    /// Ids below [`vocab_size`](Self::vocab_size) that no token has, ascending.
    #[must_use]
    pub fn missing_tokens(&self) -> &[TokenId] {
        self.0.parts.pieces.missing()
    }

    /// The id of the token that the vocabulary spells `token`.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.0.parts.encoder.token_to_id(token)
    }

    /// Whether the token steers the model and is no text: `<s>`, `<|im_end|>`.
    #[must_use]
    pub fn is_special(&self, token: TokenId) -> bool {
        self.0.parts.pieces.is_special(token)
    }

    /// The token that begins a text, if the model has one.
    #[must_use]
    pub fn begin_token(&self) -> Option<TokenId> {
        self.0.parts.begin
    }

    /// The tokens that end a text or a turn, the usual one first, as far as the tokenizer's own
    /// files name them.
    #[must_use]
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.0.parts.ends
    }

    /// The bytes that a token stands for. They may be part of a character.
    ///
    /// # Errors
    ///
    /// [`TextError::UnknownToken`].
    pub fn token_bytes(&self, token: TokenId) -> Result<&[u8], TextError> {
        self.0.parts.pieces.get(token)
    }

    /// The most bytes of text that one token stands for. A text of more bytes than this times a
    /// context's tokens does not fit. If the tokenizer may shorten text or drop some of it
    /// (Unicode normal forms, accents, runs of white space), it is four times the longest token.
    /// A text that shrinks by more is taken for too long.
    #[must_use]
    pub fn token_bytes_max(&self) -> usize {
        self.0.token_bytes_max
    }

    fn new(mut parts: Parts) -> Self {
        let mut model = parts.encoder.get_model().clone();
        model.resize_cache(WORDS_CACHED_MAX);
        parts.encoder.with_model(model);
        Self(Arc::new(Inner {
            markup: Markup::new(&parts.encoder),
            token_bytes_max: token_bytes_bound::token_bytes_max(&parts.encoder, &parts.pieces),
            parts,
        }))
    }

    /// Spaces that are dropped at the beginning of a text.
    pub(super) fn leading_spaces(&self) -> usize {
        self.0.parts.pieces.leading_spaces
    }
}

impl TokenSpelling for Tokenizer {
    /// Returns the token's bytes. A special token is spelled out, so that no character is unfinished
    /// after it.
    fn spelling(&self, token: TokenId) -> &[u8] {
        self.token_bytes(token).unwrap_or_default()
    }
}

fn cannot_encode(text: &str, error: &tokenizers::Error) -> TextError {
    TextError::Encode {
        bytes: text.len(),
        what: error.to_string().into(),
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
