//! The added tokens of a tokenizer.

use std::ops::Range;

use tokenizers::{AddedToken, NormalizedString, Normalizer, Tokenizer};

use super::table::SpellingTable;
use motet_protocol::TokenId;

/// The added tokens of a tokenizer, and which of them structure a conversation.
pub(crate) struct Markup {
    /// Looked up in a text as it is.
    pub(super) raw: SpellingTable,
    /// Looked up in a normalised text.
    pub(super) normalized: SpellingTable,
    pub(super) tokens: Vec<Added>,
    /// Spellings that only a template may write.
    special: SpellingTable,
}

/// A token beside the model's own vocabulary.
pub(super) struct Added {
    pub(super) id: TokenId,
    pub(super) token: AddedToken,
    pub(super) is_special: bool,
}

impl Markup {
    pub(crate) fn new(encoder: &Tokenizer) -> Self {
        let mut tokens: Vec<Added> = encoder
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| Added {
                id,
                is_special: token.special || looks_special(&token.content),
                token,
            })
            .collect();
        tokens.sort_by_key(|added| added.id);
        let spelled = |selected: &dyn Fn(&Added) -> bool, spell: &dyn Fn(&Added) -> String| {
            let chosen = tokens
                .iter()
                .enumerate()
                .filter(|(_, added)| selected(added));
            SpellingTable::new(chosen.map(|(index, added)| (spell(added), index)))
        };
        let content = |added: &Added| added.token.content.clone();
        let normal = |added: &Added| normalized(encoder, &added.token.content);
        Self {
            raw: spelled(&|added| !added.token.normalized, &content),
            normalized: spelled(&|added| added.token.normalized, &normal),
            special: spelled(&|added| added.is_special, &content),
            tokens,
        }
    }

    /// Whether a special token is spelled with a caller's part.
    pub(crate) fn is_forged(&self, text: &str, callers: &[Range<usize>]) -> bool {
        let reach = self.special.bytes_max.saturating_sub(1);
        let mut done = 0;
        callers.iter().any(|span| {
            // It may begin before the part.
            let from = span.start.saturating_sub(reach).max(done);
            done = span.end;
            let mut places = self.special.offsets_within(text, from..span.end);
            places.any(|at| {
                let has_callers = |_, range: Range<usize>| range.end > span.start;
                self.special.at(text, at, has_callers).is_some()
            })
        })
    }

    /// Whether a text without a special token may get one by normalization.
    pub(crate) fn may_be_made_by_normalizer(&self, encoder: &Tokenizer) -> bool {
        let normalized = |added: &Added| added.is_special && added.token.normalized;
        encoder.get_normalizer().is_some() && self.tokens.iter().any(normalized)
    }
}

/// Whether a token is spelled as only structural tokens are. Some files do not mark these as
/// special, such as DeepSeek's `<｜User｜>`.
fn looks_special(token: &str) -> bool {
    let inner = token
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'));
    inner.is_some_and(|inner| {
        ['|', '｜'].iter().any(|bar| {
            inner.len() > 2 * bar.len_utf8() && inner.starts_with(*bar) && inner.ends_with(*bar)
        })
    })
}

fn normalized(encoder: &Tokenizer, text: &str) -> String {
    let mut normal = NormalizedString::from(text);
    let done = encoder
        .get_normalizer()
        .map_or(Ok(()), |normalizer| normalizer.normalize(&mut normal));
    match done {
        Ok(()) => normal.get().to_owned(),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structural_tokens_are_recognised_by_their_bars() {
        for (token, expected) in [
            ("<|im_end|>", true),
            ("<｜User｜>", true),
            ("<|>", false),
            ("<||>", false),
            ("<think>", false),
            ("<tool_call>", false),
            ("    ", false),
        ] {
            assert_eq!(looks_special(token), expected, "{token}");
        }
    }
}
