//! The bytes that each token stands for.
//!
//! A tokenizer's decoder is a list of rules over token texts. Those of language
//! models (byte-level BPE, SentencePiece) look at one token at a time, so the
//! rules run once, when the tokenizer is loaded, and decoding is a table look-up.

use serde_json::Value;

use super::byte_level;
use super::error::TextError;
use super::error::field_error;
use motet_protocol::TokenId;

/// Every token's bytes, end to end.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where each token's bytes end; they begin where its predecessor's end.
    ends: Vec<u32>,
    special: Vec<bool>,
    /// Ids that the vocabulary skips, ascending.
    missing: Vec<TokenId>,
    /// Spaces that the decoder removes at the beginning of a text.
    pub(super) leading_spaces: usize,
}

/// A token to be added to the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceSource<'a> {
    /// The token as the vocabulary spells it.
    pub(super) text: &'a str,
    /// Whether it is not part of the model's own vocabulary and spells itself.
    pub(super) added: bool,
    /// Whether texts usually omit it.
    pub(super) special: bool,
}

impl Pieces {
    /// Applies `rules` to all tokens in the order of their ids; `None` is an id that the
    /// vocabulary skips. Such ids at the end are left out.
    pub(super) fn new<'a>(
        rules: &PieceRules,
        tokens: impl Iterator<Item = Option<PieceSource<'a>>>,
    ) -> Self {
        let mut pieces = Self {
            leading_spaces: rules.leading_spaces,
            ..Self::default()
        };
        for (id, token) in (0..).zip(tokens) {
            match token {
                Some(token) => rules.apply(token, &mut pieces.bytes),
                None => pieces.missing.push(id),
            }
            let end =
                u32::try_from(pieces.bytes.len()).expect("a vocabulary is smaller than 4 GiB");
            pieces.ends.push(end);
            pieces
                .special
                .push(token.is_some_and(|token| token.special));
        }
        let has_id = |id: &TokenId, pieces: &Self| *id as usize + 1 == pieces.len();
        while pieces.missing.last().is_some_and(|id| has_id(id, &pieces)) {
            pieces.missing.pop();
            pieces.ends.pop();
            pieces.special.pop();
        }
        pieces
    }

    /// The ids that the vocabulary skips, ascending.
    pub(super) fn missing(&self) -> &[TokenId] {
        &self.missing
    }

    /// Number of ids, skipped ones included.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let lengths = starts.zip(&self.ends).map(|(start, end)| end - start);
        lengths.max().unwrap_or(0) as usize
    }

    /// The token's bytes.
    ///
    /// # Errors
    ///
    /// [`TextError::UnknownToken`].
    pub(super) fn get(&self, token: TokenId) -> Result<&[u8], TextError> {
        let index = token as usize;
        let end = *self.ends.get(index).ok_or(TextError::UnknownToken {
            token,
            vocab_size: self.len(),
        })?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Ok(&self.bytes[start as usize..end as usize])
    }

    pub(super) fn is_special(&self, token: TokenId) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }
}

/// A decoder, as far as language models need one.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PieceRules {
    /// Characters stand for bytes, as in GPT-2.
    pub(super) byte_level: bool,
    /// Tokens `<0x00>` to `<0xFF>` are single bytes.
    pub(super) byte_fallback: bool,
    /// Text to replace in every token, in this order.
    pub(super) replaced: Vec<(String, String)>,
    /// Spaces that are dropped at the beginning of a text.
    pub(super) leading_spaces: usize,
}

impl PieceRules {
    /// The rules of the `decoder` of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`TextError::Field`] naming a decoder that works otherwise.
    pub(super) fn from_decoder(file: &str, decoder: &Value) -> Result<Self, TextError> {
        let mut rules = Self::default();
        match decoder["decoders"].as_array() {
            Some(decoders) => decoders.iter().try_for_each(|step| rules.add(file, step))?,
            None => rules.add(file, decoder)?,
        }
        Ok(rules)
    }

    fn add(&mut self, file: &str, step: &Value) -> Result<(), TextError> {
        let kind = step["type"].as_str().unwrap_or("none");
        match kind {
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Replace" if step["pattern"]["String"].is_string() => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                self.replaced
                    .push((text(&step["pattern"]["String"]), text(&step["content"])));
            }
            "Strip" if step["content"] == " " && step["stop"] == 0 => {
                self.leading_spaces = step["start"].as_u64().unwrap_or(0) as usize;
            }
            "Metaspace" => {
                let mark = step["replacement"].as_str().unwrap_or("▁");
                self.replaced.push((mark.to_owned(), " ".to_owned()));
                self.leading_spaces = usize::from(step["prepend_scheme"] != "never");
            }
            _ => {
                return Err(field_error(
                    file,
                    "decoder",
                    format!("`{kind}` is not supported as it stands"),
                    "ByteLevel, or SentencePiece's Replace, ByteFallback, Fuse, Strip or Metaspace",
                ));
            }
        }
        Ok(())
    }

    fn apply(&self, token: PieceSource<'_>, bytes: &mut Vec<u8>) {
        if self.byte_fallback
            && let Some(byte) = fallback_byte(token.text)
        {
            bytes.push(byte);
            return;
        }
        if self.byte_level && !token.added && byte_level::append_bytes(token.text, bytes) {
            return;
        }
        let mut text = std::borrow::Cow::Borrowed(token.text);
        for (from, to) in &self.replaced {
            if !from.is_empty() && text.contains(from.as_str()) {
                text = text.replace(from.as_str(), to).into();
            }
        }
        bytes.extend_from_slice(text.as_bytes());
    }
}

/// The byte that a token like `<0x0A>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).expect("two hexadecimal digits are a byte"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SENTENCE_PIECE: &str = r#"{"type":"Sequence","decoders":[
        {"type":"Replace","pattern":{"String":"▁"},"content":" "},
        {"type":"ByteFallback"},{"type":"Fuse"},
        {"type":"Strip","content":" ","start":1,"stop":0}]}"#;

    fn check(decoder: &Value, text: &str, added: bool, bytes: &[u8]) {
        let rules = PieceRules::from_decoder("tokenizer.json", decoder).expect("supported");
        let token = PieceSource {
            text,
            added,
            special: false,
        };
        let pieces = Pieces::new(&rules, [None, Some(token)].into_iter());
        assert_eq!(pieces.get(1).expect("in the table"), bytes, "{text}");
        assert_eq!(pieces.get(0).expect("skipped"), b"");
        assert!(matches!(
            pieces.get(2),
            Err(TextError::UnknownToken {
                token: 2,
                vocab_size: 2
            })
        ));
    }

    #[test]
    fn tokens_become_bytes() {
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false});
        check(&byte_level, "Ġthe", false, b" the");
        check(&byte_level, "ðŁ", false, b"\xf0\x9f");
        check(&byte_level, "é", true, "é".as_bytes());
        check(&byte_level, "<｜User｜>", false, "<｜User｜>".as_bytes());
        let sentence_piece = serde_json::from_str(SENTENCE_PIECE).expect("valid JSON");
        check(&sentence_piece, "▁the▁", false, b" the ");
        check(&sentence_piece, "<0x0A>", false, b"\n");
        check(&sentence_piece, "<0x0AB>", false, b"<0x0AB>");
        check(&sentence_piece, "<0x+F>", false, b"<0x+F>");
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"});
        check(&metaspace, "▁a", false, b" a");
    }

    #[test]
    fn unknown_decoders_are_rejected_by_name() {
        for decoder in [
            json!({"type": "WordPiece", "prefix": "##"}),
            json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}),
            json!({"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}),
            Value::Null,
        ] {
            let error = PieceRules::from_decoder("tokenizer.json", &decoder).expect_err("rejected");
            let name = decoder["type"].as_str().unwrap_or("none");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
